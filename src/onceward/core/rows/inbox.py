"""Lease messages of the inbox to workers, and settle them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap, takewhile
from operator import attrgetter, itemgetter
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from onceward.core.rows import dead_letters, lanes, receipts
from onceward.core.rows.lanes import Lease
from onceward.errors import StoreCorrupt
from onceward.file.sql_parts import senders
from onceward.file.transaction import Rows, StoreTransaction, bump, listed
from onceward.message.clock import Millis
from onceward.message.error_text import Raised
from onceward.message.frame import digest
from onceward.message.parcel import UNANSWERED, Receipt
from onceward.message.vocabulary import Dead, Done, Outcome, Reason, RetryAt, Settlement

NEXT: Final = """
SELECT seq, sender, id, session, frame, digest, expires_at, attempts + 1, received_at
  FROM _onceward_inbox
 WHERE lane_id = ? AND state = 'pending'
 ORDER BY seq LIMIT ?
"""
STILL_NEXT: Final = """
SELECT seq, id, attempts + 1
  FROM _onceward_inbox
 WHERE lane_id = ?1 AND state = 'pending'
 ORDER BY seq LIMIT ?2
"""
NEXT_OF: Final = """
SELECT seq, sender, id, session, frame, digest, expires_at, attempts + 1, received_at
  FROM _onceward_inbox
 WHERE lane_id = ? AND state = 'pending' AND type IN (SELECT value FROM json_each(?))
 ORDER BY seq LIMIT ?
"""
# Unleased messages of a channel: by priority, or in order of arrival from an arm per priority.
WAITS_IN: Final = """
SELECT b.rank, b.seq, b.topic
  FROM _onceward_inbox AS b
  JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.channel = :channel AND b.state = 'pending'
   AND (CASE WHEN :suspects THEN l.suspect = 1 AND l.owner IS NULL
             ELSE l.due_at IS NULL OR l.due_at <= :now END)"""
NEXT_IN: Final = (
    f"{WAITS_IN} AND (b.rank, b.seq) > (:rank, :seq) ORDER BY b.rank, b.seq LIMIT :limit"
)
NEXT_CAME: Final = (
    " UNION ALL ".join(
        f"SELECT * FROM ({WAITS_IN} AND b.rank = {n} AND b.seq > :seq ORDER BY b.seq LIMIT :limit)"
        for n in range(5)
    )
    + " ORDER BY 2 LIMIT :limit"
)
READY_KINDS: Final = f"""
SELECT _onceward_lanes.lane_id, token, isolate_upto_seq, _onceward_lanes.session IS NULL,
       _onceward_lanes.rank, head_seq, h.type, h.topic
  FROM _onceward_lanes CROSS JOIN _onceward_inbox AS h ON h.seq = head_seq
 WHERE head_seq IS NOT NULL AND due_at IS NULL AND {lanes.ORDINARY}
   AND (_onceward_lanes.rank, head_seq) > (:rank, :seq)
 ORDER BY _onceward_lanes.rank, head_seq
 LIMIT :limit
"""
NEXT_KINDS: Final = """
SELECT seq, sender, id, session, frame, digest, expires_at, attempts + 1, received_at, type, topic
  FROM _onceward_inbox
 WHERE lane_id = :lane AND state = 'pending'
   AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
 ORDER BY seq LIMIT :limit
"""
LANE_OF: Final = """
SELECT l.lane_id, l.token, l.isolate_upto_seq, b.attempts + 1
  FROM _onceward_inbox AS b JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.seq = ? AND b.state = 'pending' AND l.owner IS NULL
   AND (l.due_at IS NULL OR l.suspect = 1)
"""
PAGE: Final = 500
LANES_PAGE: Final = 10_000
"""Maximum lanes that are read at once."""
ONE: Final = """
SELECT seq, sender, id, session, frame, digest, expires_at, attempts + 1, received_at
  FROM _onceward_inbox
 WHERE seq = ?
"""
HANDED: Final = """
SELECT b.seq, b.sender, b.id, b.session, b.frame, b.digest, b.expires_at, b.received_at
  FROM _onceward_inbox AS b JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.seq = ? AND b.state = 'pending' AND l.lane_id = ? AND l.token = ? AND l.owner = ?
"""
UNENDED: Final = "a leased message could not be ended: its index is damaged, recover a copy"
BY_HANDLER: Final[Reason] = "dropped"
"""Reason of a message that its handler, not a policy, dropped."""
DEFAULTS: Final[dict[Outcome, Reason | None]] = {
    "processed": None,
    "dropped": BY_HANDLER,
    "expired": "expired",
    "cancelled": "cancelled",
}
"""The default reason of each outcome of a message."""
ASKS: Final = '"replyto"'
"""Text in every frame that asks for a reply; a body may also have it, which costs one query."""
WITHOUT_REPLY: Final = """
SELECT j.key
  FROM json_each(?) AS j
 WHERE NOT EXISTS (SELECT 1 FROM _onceward_outbox AS o WHERE o.in_reply_to = j.value)
"""
END: Final = """
UPDATE _onceward_inbox
   SET state = :outcome, ended_at = :now, reason = :reason, attempts = max(attempts, :attempt),
       padding = NULL
 WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'pending'
"""
MARK: Final = """
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
SELECT sender, id, session, :outcome, :now
  FROM _onceward_inbox
 WHERE seq IN (SELECT value FROM json_each(:seqs))
"""
MARK_ONE: Final = """
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
VALUES (?, ?, ?, ?, ?)
"""
END_HANDLED: Final = """
UPDATE _onceward_inbox
   SET state = 'processed', ended_at = ?, reason = NULL, attempts = max(attempts, ?), padding = NULL
 WHERE seq = ? AND state = 'pending'
"""
TRIED: Final = (
    "UPDATE _onceward_inbox SET attempts = ?, reason = ? WHERE seq = ? AND state = 'pending'"
)
ATTEMPTS_OF_MESSAGE: Final = 5
"""Maximum stored failed attempts of one message."""
ATTEMPTS_OF_FILE: Final = 1_000
"""Maximum stored failed attempts of a file."""

KEEP_ATTEMPT: Final = """
INSERT INTO _onceward_failed_attempts
       (sender, message_id, attempt, worker, error, trace, took, failed_at)
VALUES (:sender, :id, :attempt, :worker, :error, :trace, :took, :now)
RETURNING seq
"""
FORGET_ATTEMPTS: Final = f"""
DELETE FROM _onceward_failed_attempts
 WHERE seq <= :seq - {ATTEMPTS_OF_FILE}
    OR seq IN (SELECT seq FROM _onceward_failed_attempts
                WHERE message_id = :id AND sender = :sender
                ORDER BY seq DESC LIMIT -1 OFFSET {ATTEMPTS_OF_MESSAGE})
"""
# A dispatched task's result is sent by the worker that ends it; maintenance cannot.
EXPIRED: Final = """
SELECT b.seq FROM _onceward_inbox AS b JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.expires_at <= :now
   AND b.expires_at IS NOT NULL
   AND b.state = 'pending'
   AND b.run_seq IS NULL
   AND (:session IS NULL OR b.session = :session)
   AND (l.owner IS NULL OR l.sender IS NULL) AND instr(b.frame, '"callersession"') = 0
 ORDER BY b.expires_at LIMIT :limit
"""
NEXT_EXPIRY: Final = (
    "SELECT min(expires_at) FROM _onceward_inbox WHERE expires_at IS NOT NULL AND state = 'pending'"
)
OF_SEQS: Final = (
    "SELECT sender, id FROM _onceward_inbox WHERE seq IN (SELECT value FROM json_each(?))"
)
ATTEMPTED: Final = """
SELECT seq, sender, id, attempts
  FROM _onceward_inbox
 WHERE seq IN (SELECT value FROM json_each(?))
 ORDER BY seq
"""

FIND_RECEIVED: Final = f"""{senders("_onceward_inbox")}
SELECT b.seq
  FROM senders AS s
  JOIN _onceward_inbox AS b ON b.sender = s.name AND b.id = ? AND b.state = 'pending'
 WHERE b.run_seq IS NULL
"""
IS_CANCELLED: Final = "SELECT 1 FROM _onceward_inbox WHERE seq = ? AND state = 'cancelled'"

SEQ: Final = itemgetter(0)
"""The sequence of a row of ``NEXT``."""
SAME_ROW: Final = itemgetter(0, 2, 7)
"""Sequence, id and attempt of a row of ``NEXT``: while they are unchanged, so is the rest."""
SAME: Final = attrgetter("seq", "id", "attempt")
"""The same of a leased message."""
RowKey = tuple[Any, ...]
"""Sequence, id and attempt of a message."""


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


MESSAGE: Final = len(LeasedMessage._fields) - 1
"""Columns of a row that form a leased message; type and topic follow."""
Kind = tuple[str, str | None]
"""Type and topic of a message."""


class ClaimRequest(NamedTuple):
    """The request of a worker for messages of ready lanes."""

    messages: int
    lanes: int = 100
    session: str | None = None
    types: tuple[str, ...] | None = None
    served: frozenset[int] = frozenset()
    """Lanes that have had their turn: others of their rank are claimed first."""
    noted: bool = False
    """Whether the owner notes each call that it begins."""
    ahead: Mapping[RowKey, tuple[Any, ...]] | None = None
    """Rows that ``read_ahead`` found, by sequence, id and attempt."""


def read_ahead(read: Rows, wanted: ClaimRequest) -> list[tuple[Any, ...]]:
    """
    Return rows of the first lane that a claim would find now, without a lock.

    They prove nothing: the claim checks that each is still next. It does not return messages that
    must be claimed alone.
    """
    found = lanes.ready(read, wanted.lanes)
    for lane_id, _, careful_to, _, _ in lanes.in_turn(found, wanted.served)[:1]:
        rows = read(NEXT, (lane_id, wanted.messages))
        return rows if rows and rows[0][0] > careful_to else []
    return []


def claim(
    tx: StoreTransaction, wanted: ClaimRequest, *, owner: str, until: Millis
) -> list[list[LeasedMessage]]:
    """
    Lease lanes and return their next messages, lane by lane, each in order.

    A lane whose last lease ran out is handed over one message at a time, to find a message that
    kills its worker without failing others.
    """
    claimed: list[list[LeasedMessage]] = []
    left = wanted.messages
    found = lanes.claimable(tx, wanted.lanes, wanted.session)
    if wanted.served and len(found) > 1:
        found = lanes.in_turn(found, wanted.served)
    for lane_id, token, careful_to, shared, _ in found:
        if left <= 0:
            break
        if wanted.types is None:
            ahead = wanted.ahead
            rows = _next(tx, lane_id, left, ahead) if ahead else tx.rows(NEXT, (lane_id, left))
        else:
            next_of, types = listed(wanted.types, NEXT_OF)
            rows = tx.rows(next_of, (lane_id, types, left))
        if shared and rows:
            rows = lanes.before_runs(tx, rows)
        if rows and rows[0][0] <= careful_to:
            rows = rows[:1]
        if rows:
            claimable = (lane_id, token, careful_to)
            seqs, noted = list(map(SEQ, rows)), wanted.noted
            held = lanes.lease(tx, claimable, seqs, owner=owner, until=until, noted=noted)
            claimed.append(list(starmap(partial(LeasedMessage, held), rows)))
            left -= len(rows)
    return claimed


def _next(
    tx: StoreTransaction,
    lane_id: int,
    limit: int,
    ahead: Mapping[RowKey, tuple[Any, ...]] | None,
) -> list[tuple[Any, ...]]:
    """Return the next rows of a lane: those read ahead, if its first row was."""
    if ahead:
        known = map(ahead.get, tx.rows(STILL_NEXT, (lane_id, limit)))
        rows = list(takewhile(bool, known))
        if rows:
            return cast("list[tuple[Any, ...]]", rows)
    return tx.rows(NEXT, (lane_id, limit))


class ClaimGate(Protocol):
    """Decides which messages a worker may claim now."""

    def begin(self, now: Millis) -> None:
        """Forget the decisions of an earlier claim, which was rolled back or whose round ended."""

    def fits(self, kind: Kind) -> bool:
        """Return whether a message may be claimed now, without reading the file."""

    def admit(self, tx: StoreTransaction, rows: list[tuple[Any, ...]], *, alone: bool) -> int:
        """
        Return how many of a lane's next rows (``NEXT_KINDS``) are claimed, counted from the first.

        *alone*: the row is claimed in isolation, because it may kill its process.
        """

    def end(self, tx: StoreTransaction) -> None:
        """Store the admitted messages in the claim's transaction."""

    def call(self, seq: int) -> None:
        """Record that the handler of a message is called."""

    def give_back(self, tx: StoreTransaction, seqs: set[int]) -> None:
        """Undo the admission of messages in the commit that releases them."""

    def leave(self) -> None:
        """Undo all remaining admissions at the end of a round."""

    def wait(self, now: Millis) -> float | None:
        """Return the seconds until a claim may find messages again."""


def claim_admitted(
    tx: StoreTransaction, wanted: ClaimRequest, gate: ClaimGate, *, owner: str, until: Millis
) -> list[list[LeasedMessage]]:
    """
    Lease lanes as ``claim`` does, but only the messages that *gate* admits.

    A lane whose head must wait is neither leased nor written, so a waiting message costs no commit,
    and later lanes are found.
    """
    lanes.take_over(tx)
    lanes.wake_due(tx)
    gate.begin(tx.now)
    claimed: list[list[LeasedMessage]] = []
    left = wanted.messages
    lease = partial(_lease_admitted, tx, wanted, gate, owner=owner, until=until)
    for lane in _ready(tx, wanted, gate):
        if left <= 0:
            break
        if found := lease(lane, left):
            claimed.append(found)
            left -= len(found)
    for suspect in () if claimed else lanes.suspects(tx, limit=wanted.lanes):
        if found := lease(suspect[:4], 1):
            claimed.append(found)
            break
    gate.end(tx)
    return claimed


def _lease_admitted(
    tx: StoreTransaction,
    wanted: ClaimRequest,
    gate: ClaimGate,
    lane: tuple[int, int, int, int],
    limit: int,
    *,
    owner: str,
    until: Millis,
) -> list[LeasedMessage]:
    """Lease one lane for its next messages that *gate* admits; return them."""
    lane_id, token, careful_to, shared = lane
    rows = _next_kinds(tx, wanted, lane_id, limit)
    rows = lanes.before_runs(tx, rows) if shared and rows else rows
    alone = bool(rows) and rows[0][0] <= careful_to
    rows = rows[:1] if alone else rows
    rows = rows[: gate.admit(tx, rows, alone=alone)] if rows else rows
    if not rows:
        return []
    claimable, seqs = (lane_id, token, careful_to), [row[0] for row in rows]
    held = lanes.lease(tx, claimable, seqs, owner=owner, until=until, noted=wanted.noted)
    return [LeasedMessage(held, *row[:MESSAGE]) for row in rows]


def _next_kinds(
    tx: StoreTransaction, wanted: ClaimRequest, lane_id: int, limit: int
) -> list[tuple[Any, ...]]:
    types = None if wanted.types is None else json.dumps(wanted.types)
    return tx.rows(NEXT_KINDS, {"lane": lane_id, "types": types, "limit": limit})


def _ready(
    tx: StoreTransaction, wanted: ClaimRequest, gate: ClaimGate
) -> list[tuple[int, int, int, int]]:
    """Return the lanes to read; their heads fit, unless other types may be skipped."""
    if wanted.types is not None:
        found = lanes.ready(tx.rows, wanted.lanes)
    else:
        found = []
        for lane in _fitting(tx, wanted.lanes, gate):
            found.append(lane)
            if len(found) >= wanted.lanes:
                break
    return [lane[:4] for lane in lanes.in_turn(found, wanted.served)]


def _fitting(
    tx: StoreTransaction, limit: int, gate: ClaimGate
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the ready lanes whose heads fit, in pages that grow."""
    rank, seq, more = -1, 0, True
    while more:
        rows = tx.rows(READY_KINDS, {"rank": rank, "seq": seq, "limit": limit})
        for row in rows:
            rank, seq = row[4:6]
            if gate.fits(row[6:]):
                yield row[:5]
        more, limit = len(rows) == limit, min(10 * limit, LANES_PAGE)


def find_in(
    read: Rows, channel: str, fits: Callable[[str | None], bool], *, by_rank: bool, now: Millis
) -> int | None:
    """
    Return a channel's next message whose topic fits, in order, without a lock.

    A message that may have killed its reader comes after all others.
    """
    for suspects in (False, True):
        named = {"channel": channel, "now": now, "suspects": suspects, "limit": PAGE}
        named |= {"rank": -1, "seq": 0}
        while rows := read(NEXT_IN if by_rank else NEXT_CAME, named):
            for _, seq, topic in rows:
                if fits(topic):
                    return int(seq)
            named |= {"rank": rows[-1][0], "seq": rows[-1][1]}
    return None


def find_held(read: Rows, seq: int, held: Lease, attempt: int) -> LeasedMessage | None:
    """Return a message under its *attempt*-th lease; None if that has ended."""
    for *row, received_at in read(HANDED, (seq, held.lane_id, held.token, held.owner)):
        return LeasedMessage._make((held, *row, attempt, received_at))
    return None


def find_received(read: Rows, message_id: str) -> int | None:
    """Return a waiting message by its id, from any sender, or None."""
    found = read(FIND_RECEIVED, (message_id,))
    return int(found[0][0]) if found else None


def is_cancelled(read: Rows, seq: int) -> bool:
    """Return whether a message was cancelled."""
    return bool(read(IS_CANCELLED, (seq,)))


def claim_one(
    tx: StoreTransaction, seq: int, *, owner: str, lease_for: Callable[[int], Millis]
) -> LeasedMessage | None:
    """Lease one message; return None if another worker was faster."""
    lanes.take_over(tx)
    lanes.wake_due(tx)
    for lane_id, token, careful_to, attempt in tx.rows(LANE_OF, (seq,)):
        [row] = tx.rows(ONE, (seq,))  # before the lease, which may count the attempt
        held = lanes.lease(
            tx, (lane_id, token, careful_to), [seq], owner=owner, until=tx.now + lease_for(attempt)
        )
        return LeasedMessage(held, *row)
    return None


class SettledMessage(NamedTuple):
    """One message and how its lease ends."""

    leased: LeasedMessage
    settlement: Settlement


def settle(
    tx: StoreTransaction, ended: Sequence[SettledMessage], rest: dict[int, list[int]]
) -> None:
    """
    End leases with their settlements, in a constant number of statements.

    *rest* maps lanes to the messages that stay leased because the caller is still working on them.

    Raises:
        LeaseLost: another owner has one of the lanes; roll the transaction back.
        StoreCorrupt: a leased message is not pending; roll the transaction back.

    """
    lasts: dict[int, SettledMessage] = {}
    gone: list[int] = []
    for each in ended:
        lasts[each.leased.lane.lane_id] = each
        if not isinstance(each.settlement, RetryAt):
            gone.append(each.leased.seq)
    for lane_id, last in lasts.items():  # first: the lease proves the following statements
        again = last.settlement if isinstance(last.settlement, RetryAt) else None
        due_at = None if again is None else again.due_at
        if due_at is not None and last.leased.expires_at is not None:
            # then the message ends, and its lane continues
            due_at = min(due_at, last.leased.expires_at)
        left = [] if again else rest.get(lane_id, [])
        lanes.settle(tx, last.leased.lane, ended=gone, rest=left, due_at=due_at)
    if not apply_settlements(tx, ended):
        raise StoreCorrupt(UNENDED)


def settle_handled(tx: StoreTransaction, leased: LeasedMessage) -> None:
    """
    End the lease of one message that was handled and asks for no reply, as ``settle`` does.

    Raises:
        LeaseLost: another owner has the lane; roll the transaction back.
        StoreCorrupt: the message is not pending; roll the transaction back.

    """
    lanes.settle(tx, leased.lane, ended=(leased.seq,), rest=[], due_at=None)
    ended = tx.run(END_HANDLED, (tx.now, leased.attempt, leased.seq))
    tx.run(MARK_ONE, (leased.sender, leased.id, leased.session, "processed", tx.now))
    own = tx.own
    if own is not None and own.agent == leased.sender and own.acknowledge(tx, leased.id):
        bump(tx, ended=1, processed=1, acked=1, sent=-1)
    else:
        bump(tx, ended=1, processed=1)
        receipts.enqueue(tx, [(leased.sender, Receipt(leased.id, "processed"))])
    if not ended:
        raise StoreCorrupt(UNENDED)


def apply_settlements(tx: StoreTransaction, ended: Sequence[SettledMessage]) -> bool:
    """
    Settle messages and enqueue their receipts; return whether all of them were pending.

    The caller has proved its leases.

    The sender of a request that ends without a reply is notified, which ends its wait: replies must
    be in the outbox by now, from this transaction or earlier.
    """
    done: dict[tuple[Outcome, str | None, int], list[int]] = {}
    others: list[SettledMessage] = []
    owed: list[tuple[str, Receipt]] = []
    for each in ended:
        if ASKS in each.leased.frame:
            ended = _without_reply(tx, ended)
            break
    for each in ended:
        leased = each.leased
        match each.settlement:
            case Done(outcome=outcome, reason=reason):
                attempt = 0 if outcome == "expired" else leased.attempt
                done.setdefault((outcome, reason, attempt), []).append(leased.seq)
                plain = outcome == "processed" and reason is None
                told = (
                    Receipt(leased.id, "processed")
                    if plain
                    else receipt(leased.id, outcome, reason)
                )
                owed.append((leased.sender, told))
            case Dead(reason=reason):
                others.append(each)
                owed.append((leased.sender, Receipt(leased.id, "dead", reason)))
            case _:
                others.append(each)
    whole = True
    for (outcome, reason, attempt), seqs in done.items():
        whole &= _end(tx, seqs, outcome, reason, attempt=attempt) == len(seqs)
    for each in others:
        _bury_or_retry(tx, each)
    receipts.enqueue(tx, owed)
    return whole


def receipt(message_id: str, outcome: str, reason: str | None) -> Receipt:
    """
    Return the receipt of a processed, dropped, cancelled or expired message.

    A message that its handler dropped is reported as processed; one that a policy dropped, which
    *reason* names, as dropped.
    """
    if outcome == "expired":
        return Receipt(message_id, "dead", "expired")
    if outcome == "cancelled":
        return Receipt(message_id, "cancelled", reason)
    told = reason if reason is not None and reason.startswith(UNANSWERED) else None
    if outcome == "dropped" and told is None and reason not in {None, BY_HANDLER}:
        return Receipt(message_id, "dropped", reason)
    return Receipt(message_id, "processed", told)


def _without_reply(
    tx: StoreTransaction, ended: Sequence[SettledMessage]
) -> Sequence[SettledMessage]:
    """Return the settlements, with a reason for requests that end without a reply."""
    asked: dict[int, str] = {}
    for index, each in enumerate(ended):
        if ASKS in each.leased.frame and isinstance(each.settlement, Done):
            asked[index] = each.leased.id
    found = [index for (index,) in tx.rows(WITHOUT_REPLY, (json.dumps(asked),))]
    settled = list(ended)
    for index in map(int, found):
        leased, settlement = settled[index]
        if isinstance(settlement, Done) and _by_handler(settlement):
            reason = ": ".join(filter(None, (UNANSWERED, settlement.reason)))
            settled[index] = SettledMessage(leased, replace(settlement, reason=reason))
    return settled


def _by_handler(settlement: Done) -> bool:
    """Return whether a handler ended the message, not its expiry or a policy."""
    if settlement.outcome == "dropped":
        return settlement.reason is None
    return settlement.outcome == "processed"


def _bury_or_retry(tx: StoreTransaction, ended: SettledMessage) -> None:
    leased, settlement = ended
    match settlement:
        case RetryAt(error=error, counted=counted):
            tx.run(TRIED, (leased.attempt - (not counted), error[:500], leased.seq))
        case Dead() as dead:
            _dead_letter(tx, leased, dead)
    if isinstance(settlement, RetryAt | Dead) and settlement.raised is not None:
        _keep_attempt(tx, leased, settlement.error, settlement.raised)


def _keep_attempt(tx: StoreTransaction, leased: LeasedMessage, error: str, failed: Raised) -> None:
    """Store a failed attempt; forget those beyond the last ones of its message and the file."""
    named = {
        "sender": leased.sender,
        "id": leased.id,
        "attempt": leased.attempt,
        "worker": leased.lane.owner,
        "error": error[:500],
        "trace": failed.trace,
        "took": failed.took,
        "now": tx.now,
    }
    [(seq,)] = tx.rows(KEEP_ATTEMPT, named)
    tx.run(FORGET_ATTEMPTS, {"seq": seq, "id": leased.id, "sender": leased.sender})


def _end(
    tx: StoreTransaction, seqs: list[int], outcome: Outcome, reason: str | None, *, attempt: int = 0
) -> int:
    """End messages by the attempt of that number, 0 if no handler got them; return how many."""
    end, mark, bound = listed(seqs, END, MARK)
    named = {"attempt": attempt, "outcome": outcome, "now": tx.now, "seqs": bound}
    changed = tx.run(end, named | {"reason": reason or DEFAULTS[outcome]})
    tx.run(mark, named)
    bump(tx, ended=changed, **{outcome: changed})
    return changed


def mark(tx: StoreTransaction, seqs: Sequence[int], outcome: Outcome | Literal["dead"]) -> None:
    """Record how messages of the inbox ended, so that none of them is accepted again."""
    tx.run(MARK, {"outcome": outcome, "now": tx.now, "seqs": json.dumps(seqs)})


def mark_unseen(
    tx: StoreTransaction, sender: str, message_id: str, session: str, outcome: Outcome
) -> None:
    """Record the end of a message that may still come; its record then refuses it."""
    tx.run(MARK_ONE, (sender, message_id, session, outcome, tx.now))


def _dead_letter(tx: StoreTransaction, leased: LeasedMessage, dead: Dead) -> None:
    attempts = leased.attempt - (not dead.tried)
    dead_letters.add_from_inbox(
        tx, leased.seq, reason=dead.reason, error=dead.error[:2000], attempts=attempts
    )
    tx.run(MARK_ONE, (leased.sender, leased.id, leased.session, "dead", tx.now))


def expire(tx: StoreTransaction, limit: int, session: str | None = None) -> int:
    """End messages (of a session) that expired before a claim; return how many."""
    seqs = [seq for (seq,) in tx.rows(EXPIRED, {"now": tx.now, "limit": limit, "session": session})]
    end_unclaimed(tx, seqs, "expired")
    return len(seqs)


def next_expiry(read: Rows) -> Millis | None:
    """Return when the next waiting message expires, those in mailboxes included."""
    [(at,)] = read(NEXT_EXPIRY, None)
    return None if at is None else int(at)


def end_unclaimed(
    tx: StoreTransaction, seqs: list[int], outcome: Outcome, reason: str | None = None
) -> None:
    """End waiting messages without a lease, and store receipts for their senders."""
    if not seqs:
        return
    listed = json.dumps(seqs)
    owed = [(str(s), receipt(str(i), outcome, reason)) for s, i in tx.rows(OF_SEQS, (listed,))]
    _end(tx, seqs, outcome, reason)
    lanes.fence(tx, seqs)
    receipts.enqueue(tx, owed)


def bury_unclaimed(
    tx: StoreTransaction, seqs: Sequence[int], reason: Reason, error: str
) -> list[tuple[str, str]]:
    """
    Make dead letters of waiting messages without a lease, and store receipts for their senders.

    Return (id, sender) of each.
    """
    if not seqs:
        return []
    listed = json.dumps(seqs)
    rows = tx.rows(ATTEMPTED, (listed,))
    lanes.fence(tx, seqs)
    mark(tx, seqs, "dead")
    for seq, _, _, attempts in rows:
        dead_letters.add_from_inbox(tx, seq, reason=reason, error=error, attempts=attempts)
    receipts.enqueue(tx, [(sender, Receipt(i, "dead", reason)) for _, sender, i, _ in rows])
    return [(i, sender) for _, sender, i, _ in rows]
