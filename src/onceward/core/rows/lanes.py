"""
Write the lanes, the unit of order of the inbox: one lease holds a lane's next messages.

Invariant: ``head_seq`` is the lowest pending message of the lane, NULL without one. A lane without
an owner has no ``leased_seqs``; its ``due_at`` is the end of its backoff, NULL for a claimable one.
With an owner, ``due_at`` is the end of the lease. Each lease adds one to ``token``, and each change
by a holder compares lane, token and owner in its own statement: a late holder changes nothing.

Order of the steps: a message arrives (open, set_heads), its lane is claimed (lease), prolonged
(extend), and settled or released; a lease that nothing settles ends by its time (wake_due), by the
death of its process (end_dead_worker) or by force (seize, fence).

``isolate_upto_seq`` protects neighbours: messages up to it are claimed alone. It rises to the
messages of a lease that ended unsettled, because one of them may have ended its process, and to
those of a commit that failed, because one of them may be at fault. It never falls; later messages
are claimed together again.

A lane that is ``PARKED`` waits for the turn of its ``group_name``, which a lease from there keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from pydantic_core import to_json

from onceward.core.rows import holders, inbox
from onceward.core.rows.holders import LaneRow
from onceward.errors import LeaseLost
from onceward.file.transaction import StoreTransaction, listed
from onceward.message.clock import Millis
from onceward.message.frame import digest
from onceward.message.vocabulary import PARKED, Dead, Done, Settlement

NEW_HEAD: Final = """
SELECT min(seq)
  FROM _onceward_inbox
 WHERE lane_id = _onceward_lanes.lane_id AND state = 'pending'
"""
UNLEASED: Final = "owner = NULL, leased_seqs = NULL, due_at = NULL, group_name = NULL"
HELD: Final = "lane_id = :lane AND token = :token AND owner = :owner"
OPEN: Final = """
INSERT INTO _onceward_lanes (sender, name, rank, session) VALUES (?, ?, ?, ?)
ON CONFLICT (sender, name, rank) DO UPDATE
   SET session = CASE WHEN session = excluded.session THEN session END
RETURNING lane_id
"""
OPEN_AND_ASK: Final = f"""
{OPEN.strip()}, EXISTS (SELECT 1 FROM _onceward_awaited_types), called_id
"""
# An upsert of an unchanged row takes three times as long.
KNOWN: Final = """
SELECT lane_id, EXISTS (SELECT 1 FROM _onceward_awaited_types), called_id
  FROM _onceward_lanes
 WHERE sender = ?1 AND name = ?2 AND rank = ?3 AND (session = ?4 OR session IS NULL)
"""
# A lane without a sender is the queue of a session with runs.
OPEN_QUEUE: Final = """
INSERT INTO _onceward_lanes (sender, name, rank, session) VALUES (NULL, ?1, ?2, ?1)
ON CONFLICT (name, rank) WHERE sender IS NULL DO UPDATE SET session = excluded.session
RETURNING lane_id
"""
# Messages came to empty lanes; *moved*: or left lanes.
HEADS: Final = f"""
UPDATE _onceward_lanes
   SET head_seq = ({NEW_HEAD}), due_at = nullif(due_at, {PARKED})
 WHERE lane_id IN (SELECT value FROM json_each(:lanes)) AND (head_seq IS NULL OR :moved)
"""
# A message was just inserted into an empty lane.
HEAD: Final = """
UPDATE _onceward_lanes SET head_seq = last_insert_rowid() WHERE lane_id = ? AND head_seq IS NULL
"""
# A holder prolongs its lease, or passes it on under the same token; the holder of one that ran out
# lives, and gets more time once.
EXTEND: Final = f"""
UPDATE _onceward_lanes
   SET owner = coalesce(:to, owner), due_at = coalesce(:until, due_at), late_at = :late_at
 WHERE {HELD}
"""
# A holder does not prolong its lease any more, although it cannot end its call.
GIVE_UP: Final = f"UPDATE _onceward_lanes SET late_at = 0 WHERE {HELD} AND late_at IS NULL"
# A call of a message that its process has not survived counts once the message is stored. The
# token says that it was counted.
NOTE_CALLED: Final = """
UPDATE _onceward_lanes
   SET called = CASE WHEN called_id = :id THEN called + 1 ELSE 1 END, called_id = :id,
       token = token + 1
 WHERE lane_id = :lane AND token = :token AND owner IS NULL
"""
CALLED: Final = """
SELECT b.seq, l.called
  FROM _onceward_lanes AS l JOIN _onceward_inbox AS b ON b.sender = l.sender AND b.id = l.called_id
 WHERE l.lane_id = ? AND b.state = 'pending'
"""
# The calls are counted, or their message was given up by its sender.
FORGET_CALLED: Final = "UPDATE _onceward_lanes SET called_id = NULL, called = 0 WHERE lane_id = ?"
# One of the messages may have ended its process, or may be why their commit failed.
CAREFUL: Final = (
    "UPDATE _onceward_lanes SET isolate_upto_seq = max(isolate_upto_seq, ?) WHERE lane_id = ?"
)
# A backoff or a lease is over.
RELEASE: Final = f"""
UPDATE _onceward_lanes SET {UNLEASED}, suspect = 0
 WHERE lane_id IN (SELECT value FROM json_each(?))
"""
# A lane rests until a date or the turn of a group, and as a suspect until all others are served.
REST: Final = """
UPDATE _onceward_lanes
   SET due_at = :due_at, suspect = max(suspect, :suspect), group_name = value ->> 1
  FROM json_each(:lanes) WHERE lane_id = value ->> 0 AND owner IS NULL
"""
# What a lane waits for has come: it is claimable now, unless its head may end the process.
HURRY: Final = """
UPDATE _onceward_lanes SET due_at = NULL
 WHERE lane_id IN (SELECT value FROM json_each(?)) AND owner IS NULL AND suspect = 0
"""
# Without an owner, the token says that the calls of a claim that was rolled back are counted.
LEASE: Final = f"""
UPDATE _onceward_lanes
   SET owner = :owner, token = token + 1, due_at = :until, leased_seqs = :seqs,
       isolate_upto_seq = max(isolate_upto_seq, :isolate), late_at = NULL, suspect = 0,
       group_name = CASE WHEN due_at = {PARKED} THEN group_name END
 WHERE lane_id = :lane AND token = :token AND owner IS NULL
"""
# Further messages of the lane join a lease; later they are claimed alone.
MORE: Final = f"""
UPDATE _onceward_lanes
   SET leased_seqs = :seqs, isolate_upto_seq = max(isolate_upto_seq, :isolate)
 WHERE {HELD}
"""
# The new owner gets a new token, which fences the former one off.
SEIZE: Final = """
UPDATE _onceward_lanes
   SET owner = :owner, token = token + 1, due_at = :until, leased_seqs = :seqs
 WHERE lane_id = :lane
RETURNING token
"""
ISOLATE_HEADS: Final = """
UPDATE _onceward_lanes AS l
   SET isolate_upto_seq = max(isolate_upto_seq, coalesce((
           SELECT max(seq)
             FROM (SELECT seq
                     FROM _onceward_inbox
                    WHERE lane_id = l.lane_id AND state = 'pending'
                    ORDER BY seq LIMIT ?)), 0))
 WHERE head_seq IS NOT NULL
"""
ISOLATED: Final = 200
"""Messages of a lane that are claimed alone after a worker died; later deaths cover later ones."""
HEAD_AFTER: Final = f"({NEW_HEAD.rstrip()} AND seq NOT IN (SELECT value FROM json_each(:ended)))"
"""The new head of a lane from which messages end in the same transaction."""
# Messages of a lease end or go back; without a rest, so does the lease. An empty lane has no
# backoff.
SETTLE: Final = f"""
UPDATE _onceward_lanes
   SET head_seq = {HEAD_AFTER},
       owner = CASE WHEN :rest IS NULL THEN NULL ELSE owner END,
       leased_seqs = :rest,
       due_at = CASE WHEN :rest IS NOT NULL THEN due_at
                     WHEN :due_at IS NOT NULL AND {HEAD_AFTER} IS NOT NULL THEN :due_at END,
       group_name = CASE WHEN :rest IS NOT NULL THEN group_name END
 WHERE {HELD}
"""
# A lease without messages holds a lane for a call that cannot commit; that call has returned.
LET_GO: Final = f"UPDATE _onceward_lanes SET {UNLEASED} WHERE {HELD} AND leased_seqs = '[]'"
# Messages end from outside: a lease on one of them is over, its holder commits no more, and so is
# the backoff of a head.
FENCE: Final = f"""
UPDATE _onceward_lanes
   SET head_seq = {HEAD_AFTER},
       token = token + f.held,
       owner = CASE WHEN f.held THEN NULL ELSE owner END,
       leased_seqs = CASE WHEN f.held THEN NULL ELSE leased_seqs END,
       due_at = CASE WHEN f.held OR (owner IS NULL AND f.first) THEN NULL ELSE due_at END,
       suspect = CASE WHEN f.first THEN 0 ELSE suspect END
  FROM (SELECT l.lane_id AS id,
               EXISTS (SELECT 1
                         FROM json_each(l.leased_seqs) AS h
                        WHERE h.value IN (SELECT value FROM json_each(:ended))) AS held,
               coalesce(l.head_seq IN (SELECT value FROM json_each(:ended)), 0) AS first
          FROM _onceward_lanes AS l
         WHERE l.lane_id IN (SELECT lane_id
                               FROM _onceward_inbox
                              WHERE seq IN (SELECT value FROM json_each(:ended)))) AS f
 WHERE lane_id = f.id
"""
FORGET: Final = """
DELETE FROM _onceward_lanes WHERE lane_id IN (
    SELECT lane_id FROM _onceward_lanes AS l
     WHERE head_seq IS NULL AND owner IS NULL AND due_at IS NULL AND lane_id > ?
       AND NOT EXISTS (SELECT 1
                         FROM _onceward_inbox
                        WHERE _onceward_inbox.lane_id = l.lane_id AND state = 'pending')
     ORDER BY lane_id LIMIT ?)
"""
DETACHED: Final = "handed"
"""Owner of leases without a process: these leases only expire, no reaper ends them."""
NO_LANE: Final = None
"""Pseudo lane of messages for mailboxes, which no worker claims."""


class Lease(NamedTuple):
    """The right to work on one lane until its token changes."""

    lane_id: int
    token: int
    owner: str
    isolate: bool
    """Whether one message was claimed alone."""
    counted: bool = False
    """Whether its attempt was counted beforehand, because its owner notes no calls."""

    @property
    def named(self) -> dict[str, Any]:
        """The bindings that prove that a change is the holder's."""
        return {"lane": self.lane_id, "token": self.token, "owner": self.owner}


NO_LEASE: Final = Lease(0, 0, "", isolate=False)
"""The lease of a message that is not claimed yet."""


class LeasedMessage(NamedTuple):
    """A leased message, and the lease that proves it."""

    lane: Lease
    seq: int
    sender: str
    id: str
    session: str
    frame: str
    digest: bytes
    expires_at: Millis | None
    attempt: int
    received_at: Millis

    @property
    def intact(self) -> bool:
        """Whether the frame is unchanged since it was accepted."""
        return digest(self.frame) == self.digest

    def undeliverable(self, now: Millis) -> Settlement | None:
        """Return its settlement if it must not be delivered: Done(expired) or Dead(corrupt)."""
        if self.expires_at is not None and self.expires_at <= now:
            return Done("expired")
        if digest(self.frame) != self.digest:
            return Dead("corrupt", "the stored frame does not match its digest", tried=False)
        return None


def open_lane(tx: StoreTransaction, sender: str, name: str, rank: int, *, session: str) -> int:
    """Return the number of a lane, created on first use."""
    [(lane_id,)] = tx.rows(OPEN, (sender, name, rank, session))
    return int(lane_id)


def open_queue(tx: StoreTransaction, session: str, rank: int) -> int:
    """Return the number of the lane of a session with runs, created on first use."""
    [(lane_id,)] = tx.rows(OPEN_QUEUE, (session, rank))
    return int(lane_id)


OpenLane = tuple[int, int, str | None]
"""
A lane, whether the file declares types that handlers wait for, and the id that ``note_called`` has
noted, if any.
"""


def open_lane_and_ask(
    tx: StoreTransaction, sender: str, name: str, rank: int, *, session: str
) -> OpenLane:
    """Return a lane, created on first use."""
    lane = (sender, name, rank, session)
    [found] = tx.rows(KNOWN, lane) or tx.rows(OPEN_AND_ASK, lane)
    return cast("OpenLane", found)


def set_heads(tx: StoreTransaction, lane_ids: list[int], *, moved: bool = False) -> None:
    """Set the head of lanes that were empty; *moved*: also of those that messages have left."""
    heads, bound = listed(lane_ids, HEADS)
    tx.run(heads, {"lanes": bound, "moved": moved})


def set_head(tx: StoreTransaction, lane_id: int) -> None:
    """Make the message that was just inserted the head of its lane, if the lane was empty."""
    tx.run(HEAD, (lane_id,))


def note_called(tx: StoreTransaction, lane_id: int, token: int, message_id: str) -> bool:
    """Note a call of a message that is not stored yet; return whether its lane was free."""
    return tx.run(NOTE_CALLED, {"lane": lane_id, "token": token, "id": message_id}) > 0


def take_called(tx: StoreTransaction, lane_id: int) -> list[tuple[int, int]]:
    """Return (sequence, number of calls) of the message that ``note_called`` noted; forget it."""
    found = cast("list[tuple[int, int]]", tx.rows(CALLED, (lane_id,)))
    tx.run(FORGET_CALLED, (lane_id,))
    return found


def pass_token(tx: StoreTransaction, lane_id: int, token: int, *, isolate: int) -> bool:
    """Give a free lane the token of a claim that was rolled back; return whether it was free."""
    named = {"lane": lane_id, "token": token, "owner": None, "until": None, "seqs": None}
    return tx.run(LEASE, named | {"isolate": isolate}) > 0


def free(tx: StoreTransaction, lane_ids: Sequence[int]) -> None:
    """End the backoff or the lease of lanes."""
    statement, bound = listed(lane_ids, RELEASE)
    tx.run(statement, (bound,))


def lease(
    tx: StoreTransaction,
    lane: tuple[int, int, int],
    seqs: list[int],
    *,
    owner: str,
    until: Millis,
    noted: bool = False,
    isolate: int = 0,
) -> Lease:
    """
    Lease a free lane for *seqs*; messages up to *isolate* are claimed alone if it ends unsettled.

    In isolation the attempt is counted beforehand, unless *noted*: the owner notes its calls.

    Raises:
        LeaseLost: the lane was leased in between.

    """
    lane_id, token, careful_to = lane
    named = {
        "owner": owner,
        "until": until,
        "seqs": to_json(seqs).decode(),
        "isolate": isolate,
        "lane": lane_id,
        "token": token,
    }
    if not tx.run(LEASE, named):
        msg = f"lane {lane_id} was leased in between"
        raise LeaseLost(msg)
    careful = seqs[0] <= careful_to
    counted = careful and not noted
    if counted:
        inbox.count_attempts(tx, seqs[0], 1)
    return Lease(lane_id, token + 1, owner, careful, counted)


def _as_json(seqs: Sequence[int]) -> str:
    return to_json(seqs).decode()


def take_more(tx: StoreTransaction, held: Lease, seqs: Sequence[int]) -> None:
    """Give a lease other messages; each is claimed alone, should the lease end unsettled."""
    tx.run(MORE, held.named | {"seqs": _as_json(seqs), "isolate": max(seqs)})


def seize(
    tx: StoreTransaction, lane_id: int, owner: str, seqs: Sequence[int], *, until: Millis
) -> Lease | None:
    """Lease a lane and fence its present owner off; None if the lane is gone."""
    named = {"lane": lane_id, "owner": owner, "until": until, "seqs": _as_json(seqs)}
    rows = tx.rows(SEIZE, named)
    return Lease(lane_id, rows[0][0], owner, isolate=True) if rows else None


def extend(
    tx: StoreTransaction,
    held: Lease | LaneRow,
    *,
    until: Millis | None = None,
    owner: str | None = None,
    late_at: Millis | None = None,
) -> bool:
    """
    Change the end of a lease, or pass it to another owner; return False if it is lost.

    *late_at* is since when its owner is known to be late.
    """
    named = {"lane": held.lane_id, "token": held.token, "owner": held.owner}
    return tx.run(EXTEND, named | {"until": until, "to": owner, "late_at": late_at}) > 0


def give_up(tx: StoreTransaction, held: Lease) -> None:
    """Let a lease run out at its end, although its owner's process lives."""
    tx.run(GIVE_UP, held.named)


def shorten(tx: StoreTransaction, lane_id: int, *, until: Millis) -> bool:
    """End a lease earlier, or give its backoff another date; return False if there is none."""
    lane = holders.lease_of(tx, lane_id)
    return lane is not None and extend(tx, lane, until=until, late_at=lane.late_at)


def hold(tx: StoreTransaction, held: Lease, owner: str, *, until: Millis) -> None:
    """
    Empty a lease and pass it to the *owner* of a call that can commit no more.

    The lane's next message waits for that call, until *until* at the latest; see ``let_go``.
    """
    if tx.run(SETTLE, held.named | {"ended": "[]", "rest": "[]", "due_at": None}):
        extend(tx, held, until=until, owner=owner)


def let_go(tx: StoreTransaction, held: Lease) -> None:
    """Release a lane that ``hold`` holds for a call."""
    tx.run(LET_GO, held.named)


def fence(tx: StoreTransaction, seqs: Sequence[int]) -> None:
    """End the leases on messages that end from outside, and set the heads of their lanes."""
    tx.run(FENCE, {"ended": _as_json(seqs)})


def rest(tx: StoreTransaction, lane_id: int, due_at: Millis, *, suspect: bool = False) -> None:
    """Let a lane that is not leased rest until a date; *suspect*: other lanes are served first."""
    tx.run(REST, {"lanes": f"[[{lane_id}]]", "due_at": due_at, "suspect": suspect})


def park(tx: StoreTransaction, placed: Sequence[tuple[int, str]]) -> None:
    """Let lanes that are not leased wait for the turns of their heads' groups."""
    tx.run(REST, {"lanes": to_json(placed).decode(), "due_at": PARKED, "suspect": False})


def hurry(tx: StoreTransaction, lane_ids: Sequence[int]) -> None:
    """Make lanes claimable whose date was later, because what they wait for has come."""
    statement, bound = listed(lane_ids, HURRY)
    tx.run(statement, (bound,))


def settle(
    tx: StoreTransaction,
    held: Lease,
    *,
    ended: Sequence[int] = (),
    rest: list[int],
    due_at: Millis | None,
) -> None:
    """
    Advance the lane's head past messages that end in this transaction.

    With *rest* empty the lease ends; the lane may then be claimed from *due_at*.

    Raises:
        LeaseLost: another owner has the lane; the caller's transaction must be rolled back.

    """
    statement, gone = listed(ended, SETTLE)
    named = {
        "ended": gone,
        "rest": _as_json(rest) if rest else None,
        "due_at": due_at,
        "lane": held.lane_id,
        "token": held.token,
        "owner": held.owner,
    }
    if not tx.run(statement, named):
        msg = f"the lease on lane {held.lane_id} ran out; another worker has it"
        raise LeaseLost(msg)


def forget_empty(tx: StoreTransaction, limit: int) -> int:
    """Delete a slice of the empty lanes; return how many."""
    return tx.run(FORGET, (0, limit))


def isolate(tx: StoreTransaction, lane_id: int, seq: int) -> None:
    """Make the messages of a lane up to *seq* be claimed alone."""
    tx.run(CAREFUL, (seq, lane_id))


def isolate_heads(tx: StoreTransaction) -> None:
    """Make the next messages of every lane be claimed alone, those that are there now."""
    tx.run(ISOLATE_HEADS, (ISOLATED,))


def release(
    tx: StoreTransaction,
    held: Lease,
    seqs: list[int],
    *,
    broken: bool,
    due_at: Millis | None = None,
) -> None:
    """
    Release a lane unhandled, to be claimed again from *due_at*; skip a lost one.

    *broken*: its messages were handled but could not be committed; each is claimed alone and gets
    its own commit.
    """
    named = held.named | {"ended": "[]", "rest": None, "due_at": due_at}
    if broken:  # also if the claim was rolled back with its handlers' writes
        tx.run(CAREFUL, (max(seqs), held.lane_id))
    released = tx.run(SETTLE, named) > 0
    if released and held.isolate and held.counted is not broken:
        inbox.count_attempts(tx, seqs[0], 1 if broken else -1)
