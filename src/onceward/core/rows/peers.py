"""Store peers: url, lease, backoff and circuit breaker, in rows that all processes share."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from onceward.core.rows import outbox
from onceward.errors import LeaseLost
from onceward.file.identity import RANDOM
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.parcel import generation_of
from onceward.message.retry import RetryPolicy
from onceward.message.settings import Settings
from onceward.message.times import seconds

KNOW: Final = f"""
INSERT INTO _onceward_peers (name, epoch)
VALUES (?, '00000001' || {RANDOM})
ON CONFLICT (name) DO NOTHING
"""
REGISTER: Final = f"""
INSERT INTO _onceward_peers (name, url, epoch)
VALUES (?, ?, '00000001' || {RANDOM})
ON CONFLICT (name) DO UPDATE
   SET url = excluded.url, due_at = NULL, failures = 0, breaker = 'closed', max_bytes = NULL
"""
FORGET: Final = "UPDATE _onceward_peers SET url = NULL WHERE name = ?"
URL: Final = "SELECT url FROM _onceward_peers WHERE name = ?"
OWED: Final = "EXISTS (SELECT 1 FROM _onceward_receipts AS r WHERE r.peer = :name)"
"""Whether receipts wait for a peer."""
READY: Final = """
EXISTS (SELECT 1
          FROM _onceward_outbox AS o
         WHERE o.recipient = :name
           AND o.state = 'pending'
           AND o.due_at IS NULL
           AND o.held_by IS NULL)
"""
"""Whether messages wait for a peer."""
UNPAUSED: Final = "(SELECT paused_at FROM _onceward_file_info) IS NULL"
LEASE: Final = f"""
UPDATE _onceward_peers
   SET owner = :owner, token = token + 1, lease_at = :until,
       breaker = CASE breaker WHEN 'open' THEN 'half_open' ELSE breaker END
 WHERE name = :name AND (owner IS NULL OR lease_at <= :now) AND (due_at IS NULL OR due_at <= :now)
   AND {UNPAUSED}
RETURNING in_flight_seqs, unsettled_ids, name, url, token, epoch, generation, number, last_id,
          redelivered_upto_seq, failures, breaker, successes, base_epoch, base_parcel, own_forks,
          max_bytes, owner, greeting, takeover,
          {OWED}, {READY}
"""
STORE: Final = """
UPDATE _onceward_peers
   SET in_flight_seqs = :parcel, unsettled_ids = :unsettled, lease_at = :until
 WHERE name = :name AND token = :token AND owner = :owner
"""
ADVANCE: Final = f"""
UPDATE _onceward_peers
   SET number = :number, last_id = :last_id, in_flight_seqs = NULL, greeting = NULL,
       unsettled_ids = CASE WHEN :number > number THEN '[]' ELSE unsettled_ids END,
       failures = 0, due_at = NULL,
       last_error = NULL, seen_at = :now,
       successes = CASE breaker WHEN 'half_open' THEN successes + 1 ELSE 0 END,
       breaker = CASE WHEN breaker = 'half_open' AND successes + 1 < :needed THEN 'half_open'
                      ELSE 'closed' END,
       (owner, lease_at) = (SELECT owner, lease_at WHERE ({OWED} OR {READY}) AND {UNPAUSED})
 WHERE name = :name AND token = :token AND owner = :owner
RETURNING breaker, successes, owner IS NOT NULL, {OWED}, {READY}
"""
BACK_OFF: Final = """
UPDATE _onceward_peers
   SET failures = :failures, due_at = :due_at, last_error = :error, successes = 0, owner = NULL,
       lease_at = NULL, breaker = :breaker
 WHERE name = :name AND token = :token AND owner = :owner
"""
DEFER: Final = """
UPDATE _onceward_peers SET due_at = :due_at, last_error = :error, owner = NULL, lease_at = NULL
 WHERE name = :name AND token = :token AND owner = :owner
"""
NOTE_ERROR: Final = """
UPDATE _onceward_peers
   SET due_at = max(coalesce(due_at, 0), :due_at), last_error = :error, owner = NULL,
       lease_at = NULL
 WHERE name = :name AND (owner IS NULL OR owner = :owner)
"""
NOTE_LEFT: Final = "UPDATE _onceward_peers SET last_error = ? WHERE name = ?"
UNSETTLED_IDS: Final = 64
"""Maximum stored last ids of unsettled parcels; a peer at an older one judges by id."""
OWNERS: Final = "SELECT DISTINCT owner FROM _onceward_peers WHERE owner IS NOT NULL"
FREE: Final = "UPDATE _onceward_peers SET lease_at = min(lease_at, ?) WHERE owner = ?"
SHORTEN: Final = """
UPDATE _onceward_peers
   SET lease_at = :until
 WHERE name = :key AND owner = :owner AND lease_at = :ends
"""
END_DOUBT: Final = "UPDATE _onceward_peers SET redelivered_upto_seq = 0 WHERE name = ?"
RELEASE_OWN: Final = """
UPDATE _onceward_peers SET owner = NULL, lease_at = NULL WHERE name = ? AND owner = ?
"""
RELEASE: Final = """
UPDATE _onceward_peers
   SET owner = NULL, lease_at = NULL
 WHERE name = :name AND token = :token AND owner = :owner
"""
SETTLED_DOWN: Final = 16
"""Parcels of one epoch after which a fork does not count as a repetition."""
NEWEST: Final = "(SELECT coalesce(max(seq), 0) FROM _onceward_outbox)"
GENERATION: Final = "max(generation, :seen) + 1"
NEW_EPOCH: Final = f"""
UPDATE _onceward_peers
   SET epoch = printf('%08x', {GENERATION}) || {RANDOM},
       generation = {GENERATION}, number = 0, last_id = '',
       in_flight_seqs = NULL,
       redelivered_upto_seq = CASE WHEN :in_doubt THEN {NEWEST} ELSE redelivered_upto_seq END,
       own_forks = CASE WHEN NOT :own THEN own_forks
                        WHEN number > {SETTLED_DOWN} THEN 1
                        ELSE own_forks + 1 END,
       last_error = :why,
       base_epoch = coalesce(:there, CASE WHEN number > 0 THEN epoch ELSE base_epoch END),
       base_parcel = coalesce(:upto,
                              CASE WHEN number > 0
                                    AND (base_epoch <> epoch
                                         OR base_parcel < ((generation << 32) | number))
                                   THEN (generation << 32) | number ELSE base_parcel END)
 WHERE name = :name AND token = :token AND owner = :owner
RETURNING epoch, generation, redelivered_upto_seq, base_epoch, base_parcel, own_forks
"""
NUMBERS: Final = (1 << 32) - 1
"""The part of an ordinal that is the number; the rest is the generation of its epoch."""
# Receipts that came outside the stream depend on parcels whose answers may have been lost. If they
# arrive from a different epoch while parcel 1 is in flight, the lease is released and parcel 1 is
# sent again with the new base. A position that this file cannot know is the work of a copy, or of a
# future that was put back.
RECORD_BASE: Final = f"""
UPDATE _onceward_peers
   SET redelivered_upto_seq =
           CASE WHEN (epoch = :epoch AND :number <= number + 1)
                  OR (base_epoch = :epoch AND :number <= (base_parcel & 4294967295) + 1)
                THEN redelivered_upto_seq ELSE {NEWEST} END,
       base_epoch = :epoch,
       base_parcel = (CASE :epoch WHEN epoch THEN generation
                           WHEN base_epoch THEN base_parcel >> 32
                           ELSE 0 END << 32) | :number,
       owner = CASE WHEN epoch = :epoch THEN owner END,
       lease_at = CASE WHEN epoch = :epoch THEN lease_at END
 WHERE name = :name AND CASE epoch WHEN :epoch THEN number < :number ELSE number = 0 END
   AND NOT (base_epoch = :epoch AND (base_parcel & 4294967295) >= :number)
"""
NOTE_ROOM: Final = """
UPDATE _onceward_peers SET room = min(:room, 10000) +
       (SELECT count(*) FROM _onceward_outbox
         WHERE recipient = :name AND ended_at IS NULL AND state = 'sent'
           AND pool IN (SELECT name FROM _onceward_peers WHERE url = 'pool:'))
 WHERE name = :name
"""
AWAY: Final = "SELECT 1 FROM _onceward_peers WHERE name = ? AND failures > 0"
RESET_BREAKER: Final = """
UPDATE _onceward_peers
   SET breaker = 'closed', failures = 0, due_at = NULL, successes = 0, max_bytes = NULL
 WHERE name = ?
"""
ALLOW: Final = f"""
INSERT INTO _onceward_peers (name, epoch, inbound_rule)
VALUES (?, '00000001' || {RANDOM}, ?)
ON CONFLICT (name) DO UPDATE SET inbound_rule = excluded.inbound_rule
"""
LIMIT: Final = """
UPDATE _onceward_peers SET max_bytes = :max_bytes
 WHERE name = :name AND token = :token AND owner = :owner
"""


class PeerLease(NamedTuple):
    """The right to push to one peer, and its stream position when the lease was taken."""

    parcel: tuple[int, ...] | None
    """Sequences of the messages of the parcel in flight; None if there is none."""
    unsettled: tuple[str, ...]
    """Last ids of the parcels that were stored since one was settled, the one in flight last."""
    name: str
    url: str | None
    token: int
    epoch: str
    generation: int
    number: int
    last_id: str
    redelivered_upto_seq: int
    failures: int
    breaker: str
    successes: int
    base_epoch: str
    base_parcel: int
    own_forks: int
    """Consecutive forks that this file caused by being restored or copied."""
    max_bytes: int | None
    """Largest parcel that the peer has said it accepts, or None."""
    owner: str
    greeting: str | None = None
    """The greeting that the next parcel carries; see ``Parcel.greeting``."""
    takeover: str | None = None
    """The newest takeover of the peer that this file knows."""
    owed: int = 1
    """Whether receipts may wait for the peer."""
    ready: int = 1
    """Whether messages may wait for it."""

    @property
    def fence(self) -> dict[str, Any]:
        """The values that prove ownership in a statement."""
        return {"name": self.name, "token": self.token, "owner": self.owner}

    @property
    def ordinal(self) -> int:
        """The parcel in flight as one number that grows across epochs."""
        return (self.generation << 32) | (self.number + 1)

    @property
    def base_position(self) -> tuple[str, int] | None:
        """Base position of an epoch's first parcel; None for parcels that have a predecessor."""
        return (
            (self.base_epoch, self.base_parcel & NUMBERS)
            if self.number == 0 and self.base_epoch
            else None
        )

    def ordinal_of(self, epoch: str, number: int) -> int:
        """Return a position of this epoch or its base as the outbox stores it; 0 for others."""
        if epoch == self.epoch:
            return (self.generation << 32) | number
        relied = (
            self.base_parcel & ~NUMBERS
            if self.base_position is not None and epoch == self.base_epoch
            else 0
        )
        return relied and relied | number


def lease(tx: StoreTransaction, name: str, *, owner: str, until: Millis) -> PeerLease | None:
    """
    Lease the right to push to *name*, and store it as a known peer.

    Return None while it backs off, another owner has it, or the file is paused.
    """
    named = {"name": name, "owner": owner, "until": until, "now": tx.now}
    found = tx.rows(LEASE, named)
    if not found and tx.run(KNOW, (name,)):
        found = tx.rows(LEASE, named)
    if not found:
        return None
    in_flight, unsettled, *held = found[0]
    parcel = None if in_flight is None else tuple(from_json(in_flight))
    return PeerLease(parcel, tuple(from_json(unsettled)), *held)


def _lost(held: PeerLease) -> LeaseLost:
    """Return the error for a change that another dispatcher's lease prevented."""
    return LeaseLost(f"the lease on peer {held.name} ran out; another dispatcher pushes to it now")


def store_parcel(
    tx: StoreTransaction, held: PeerLease, seqs: tuple[int, ...], last_id: str, *, until: Millis
) -> PeerLease:
    """Store the rows of the next parcel, before it is pushed."""
    unsettled = (*held.unsettled, last_id)[-UNSETTLED_IDS:]
    listed = {"parcel": to_json(seqs).decode(), "unsettled": to_json(unsettled).decode()}
    if not tx.run(STORE, held.fence | listed | {"until": until}):
        raise _lost(held)
    return held._replace(parcel=seqs, unsettled=unsettled)


class Advanced(NamedTuple):
    """The lease after a successful push, and whether the breaker closed."""

    lease: PeerLease
    held: bool
    """Whether the peer stays leased because it has messages or receipts."""
    closed: bool


def advance(
    tx: StoreTransaction, held: PeerLease, by: int, last_id: str, settings: Settings
) -> Advanced:
    """
    Record a successful push, *by* one parcel or none; release a peer without more, or if paused.

    Raises:
        LeaseLost: another dispatcher pushes to this peer.

    """
    found = tx.rows(
        ADVANCE,
        held.fence
        | {
            "number": held.number + by,
            "last_id": last_id,
            "now": tx.now,
            "needed": settings.tuning.breaker_successes,
        },
    )
    if not found:
        raise _lost(held)
    breaker, successes, leased, owed, ready = found[0]
    closed = held.breaker != "closed" and breaker == "closed"
    after = held._replace(
        number=held.number + by,
        last_id=last_id,
        parcel=None,
        greeting=None,
        unsettled=() if by else held.unsettled,
        failures=0,
        breaker=breaker,
        successes=successes,
        owed=owed,
        ready=ready,
    )
    return Advanced(after, bool(leased), closed)


def limit_parcels(tx: StoreTransaction, held: PeerLease, max_bytes: int) -> PeerLease:
    """Record the largest parcel that the transport to a peer accepts."""
    if not tx.run(LIMIT, held.fence | {"max_bytes": max_bytes}):
        raise _lost(held)
    return held._replace(max_bytes=max_bytes)


class Backoff(NamedTuple):
    """The end of a peer's backoff, and whether its breaker opened."""

    due_at: Millis
    opened: bool


def back_off(
    tx: StoreTransaction,
    held: PeerLease,
    error: str,
    *,
    policy: RetryPolicy,
    rng: random.Random,
    settings: Settings,
) -> Backoff:
    """Back off after a failure, by delay or by the breaker, and release the lease."""
    failures = held.failures + 1
    opened = held.breaker == "half_open" or failures >= settings.tuning.breaker_failures
    wait = policy.delay(failures, rng)
    open_for = (
        settings.tuning.breaker_open_for
        if policy.open_for is None
        else seconds("open_for", policy.open_for)
    )
    due_at = tx.now + (max(wait, round(open_for * 1000)) if opened else wait)
    breaker = "open" if opened else "closed"
    named = {"failures": failures, "due_at": due_at, "error": error[:500], "breaker": breaker}
    if not tx.run(BACK_OFF, held.fence | named):
        raise _lost(held)
    return Backoff(
        due_at, opened and held.breaker == "closed" and failures == settings.tuning.breaker_failures
    )


def defer(tx: StoreTransaction, held: PeerLease, error: str, *, due_at: Millis) -> None:
    """Release the lease until the moment that the peer requested; this is not a failure."""
    if not tx.run(DEFER, held.fence | {"due_at": due_at, "error": error}):
        raise _lost(held)


def note_left(tx: StoreTransaction, name: str, error: str) -> None:
    """Record why this process leaves a peer to another one, which may push at once."""
    tx.run(KNOW, (name,))
    tx.run(NOTE_LEFT, (error[:500], name))


def note_error(tx: StoreTransaction, name: str, error: str, *, owner: str, due_at: Millis) -> None:
    """Record an error of this process, not of the peer; stop pushing until then."""
    tx.run(KNOW, (name,))
    tx.run(NOTE_ERROR, {"name": name, "error": error[:500], "owner": owner, "due_at": due_at})


def owners(read: Rows) -> list[str]:
    """Return the owners of leases."""
    return [owner for (owner,) in read(OWNERS, ())]


def end_dead_owner(tx: StoreTransaction, *owners: str) -> None:
    """End the leases of dispatchers whose process has died."""
    for owner in owners:
        tx.run(FREE, (tx.now, owner))


def shorten(tx: StoreTransaction, named: Mapping[str, Any]) -> bool:
    """End a lease earlier; return False if it has changed since it was read."""
    return tx.run(SHORTEN, named) > 0


def release(tx: StoreTransaction, held: PeerLease) -> None:
    """Release the lease; do nothing if it is lost."""
    tx.run(RELEASE, held.fence)


def release_own(tx: StoreTransaction, owner: str, names: Iterable[str]) -> None:
    """Release the peers of these names that *owner* leases."""
    tx.many(RELEASE_OWN, [(name, owner) for name in names])


def record_base(tx: StoreTransaction, name: str, stands: tuple[str, int]) -> None:
    """Record the stream position of *name* at its receipts; a rollback before it loses them."""
    tx.run(RECORD_BASE, {"name": name, "epoch": stands[0], "number": stands[1]})


class Fork(NamedTuple):
    """A peer's position that does not continue our stream, and which file is the cause."""

    epoch: str
    number: int
    own: bool
    """Whether this file was restored or copied, rather than the peer's."""
    in_doubt: bool
    """Whether a copy may have pushed messages that this file does not know."""
    lacks_after: int | None
    """The last parcel of this file that the peer has, if it lacks later ones."""


def new_epoch(
    tx: StoreTransaction, held: PeerLease, why: str, *, fork: Fork | None = None
) -> PeerLease:
    """
    Open a new epoch: number 1 follows nothing, and the parcel in flight is given up.

    The messages of that parcel are marked: the peer may know them. A new epoch resolves every
    irregularity: a fork, an abandoned parcel, a peer that was rolled back. Its first parcel names
    its base: the last position that the peer answered or, after a fork, the peer's own position. So
    a peer that is restored at the same moment is still detected.
    """
    if held.parcel:
        outbox.mark_pushed(tx, held.parcel)
    named: dict[str, Any] = {"why": why[:500], "there": None, "upto": None, "seen": 0}
    named |= {"own": False, "in_doubt": False}
    if fork is not None:
        upto = held.ordinal_of(fork.epoch, fork.number) or fork.number
        named |= {"there": fork.epoch, "upto": upto, "seen": generation_of(fork.epoch)}
        named |= {"own": fork.own, "in_doubt": fork.in_doubt}
    found = tx.rows(NEW_EPOCH, held.fence | named)
    if not found:
        raise _lost(held)
    epoch, generation, again_seq, there, upto, own_forks = found[0]
    fresh = {
        "epoch": epoch,
        "generation": generation,
        "redelivered_upto_seq": again_seq,
        "base_epoch": there,
        "base_parcel": upto,
        "own_forks": own_forks,
    }
    return held._replace(number=0, last_id="", parcel=None, **fresh)


def register(tx: StoreTransaction, urls: Mapping[str, str]) -> None:
    """Register the urls of peers, by name; their circuit breakers close."""
    tx.many(REGISTER, list(urls.items()))


def forget(tx: StoreTransaction, name: str) -> None:
    """Drop the url of a peer; its stream is kept."""
    tx.run(FORGET, (name,))


def url_of(rows: Rows, name: str) -> str | None:
    """Return the registered url of a peer, or None."""
    found = rows(URL, (name,))
    return found[0][0] if found else None


def end_doubt(tx: StoreTransaction, name: str) -> None:
    """Assume that a peer knows no message which was written before this file was restored."""
    tx.run(END_DOUBT, (name,))


def allow(tx: StoreTransaction, name: str, rule: str) -> None:
    """Accept from a peer only the names of a rule."""
    tx.run(ALLOW, (name, rule))


def note_room(tx: StoreTransaction, name: str, room: int) -> None:
    """Store that a member may have what it has accepted of pools, and as many more."""
    tx.run(NOTE_ROOM, {"name": name, "room": room})


def is_away(rows: Rows, name: str) -> bool:
    """Return whether the last push to a peer failed."""
    return bool(rows(AWAY, (name,)))


def reset_breaker(tx: StoreTransaction, name: str) -> None:
    """Close the circuit breaker of a peer, and end its backoff."""
    tx.run(RESET_BREAKER, (name,))
