"""Store positions and leases of a mailbox's named readers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from onceward.core.contract import LeaseTable, PositionTable
from onceward.errors import InvalidArgument, LeaseLost
from onceward.file import file_checks
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis, SystemClock
from onceward.message.times import Moment, moment

FIND: Final = """
SELECT reader_id, critical, urgent, normal, low, background FROM _onceward_mailbox_readers
 WHERE mailbox = :mailbox
   AND mode = :mode
   AND name = :name
   AND (expires_at IS NULL OR expires_at > :now)
"""
FORGET_ONE: Final = """
DELETE FROM _onceward_mailbox_leases
 WHERE reader_id IN (SELECT reader_id
                       FROM _onceward_mailbox_readers
                      WHERE mailbox = :mailbox AND mode = :mode AND name = :name)
"""
OPEN: Final = """
INSERT INTO _onceward_mailbox_readers (mailbox, mode, name, critical, urgent, normal, low,
                                       background, expires_at, read_at)
VALUES (:mailbox, :mode, :name, :after, :after, :after, :after, :after, :expires_at, :now)
ON CONFLICT (mailbox, mode, name) DO UPDATE
   SET critical = :after, urgent = :after, normal = :after, low = :after, background = :after,
       expires_at = :expires_at, read_at = :now
RETURNING reader_id
"""
NEWEST: Final = (
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)"
)
BEFORE_ID: Final = """
SELECT seq - 1
  FROM _onceward_inbox
 WHERE mailbox = ? AND id = ? AND state = 'pending' AND (expires_at IS NULL OR expires_at > ?)
"""
BEFORE_TIME: Final = """
SELECT min(seq) - 1
  FROM _onceward_inbox
 WHERE mailbox = ? AND state = 'pending' AND received_at >= ?
"""
WAKE: Final = """
UPDATE _onceward_mailbox_leases SET due_at = NULL, owner = NULL WHERE reader_id = ? AND due_at <= ?
"""
OWNERS: Final = """
SELECT DISTINCT l.owner
  FROM _onceward_mailbox_readers AS r
  JOIN _onceward_mailbox_leases AS l ON l.reader_id = r.reader_id
 WHERE r.mailbox = :mailbox AND r.mode = 'lease' AND r.name = :name AND l.owner IS NOT NULL
"""
# No process will settle them.
FREE: Final = """
UPDATE _onceward_mailbox_leases SET due_at = NULL, owner = NULL
 WHERE reader_id = ? AND owner IN (SELECT value FROM json_each(?))
"""
ADVANCE: Final = """
UPDATE _onceward_mailbox_readers
   SET critical = :critical, urgent = :urgent, normal = :normal, low = :low,
       background = :background, token = token + 1, read_at = :now
 WHERE reader_id = :reader
RETURNING token
"""
HOLD: Final = """
INSERT INTO _onceward_mailbox_leases (reader_id, seq, rank, token, owner, due_at, attempts)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (reader_id, seq) DO UPDATE
   SET token = excluded.token, owner = excluded.owner, due_at = excluded.due_at,
       attempts = excluded.attempts
"""
KEEP: Final = """
INSERT INTO _onceward_mailbox_leases (reader_id, seq, rank) VALUES (?, ?, ?) ON CONFLICT DO NOTHING
"""
TAKEN: Final = "DELETE FROM _onceward_mailbox_leases WHERE reader_id = ? AND seq = ?"
# A lease is proved in the statement that ends it; an expired message no longer has a lease.
MINE: Final = """
reader_id = :reader AND seq = :seq AND token = :token AND owner = :owner
   AND NOT EXISTS (SELECT 1
                     FROM _onceward_inbox AS b
                    WHERE b.seq = _onceward_mailbox_leases.seq AND b.expires_at <= :now)
"""
END: Final = f"DELETE FROM _onceward_mailbox_leases WHERE {MINE}"
PUT_BACK: Final = f"""
UPDATE _onceward_mailbox_leases SET owner = NULL, due_at = :due_at, attempts = :attempts
 WHERE {MINE}
"""
EXTEND: Final = f"UPDATE _onceward_mailbox_leases SET due_at = :due_at WHERE {MINE}"
NEXT_DUE: Final = "SELECT min(due_at) FROM _onceward_mailbox_leases WHERE due_at > ?"
OLD: Final = "DELETE FROM _onceward_mailbox_readers WHERE expires_at <= ?"
LOOSE: Final = """
DELETE FROM _onceward_mailbox_leases
 WHERE reader_id NOT IN (SELECT reader_id FROM _onceward_mailbox_readers)
    OR NOT EXISTS (SELECT 1
                     FROM _onceward_inbox AS b
                    WHERE b.seq = _onceward_mailbox_leases.seq AND b.state = 'pending')
   AND (owner IS NULL OR due_at <= ?)
"""
RANK_COLUMNS: Final = ("critical", "urgent", "normal", "low", "background")
"""A reader's position in each priority."""
RANKS: Final = len(RANK_COLUMNS)
PLACES: Final[dict[str, type | tuple[type, ...]]] = {
    "earliest": type(None),
    "latest": type(None),
    "from_id": str,
    "from_time": (int, float, datetime, timedelta, str),
}


@dataclass(frozen=True, slots=True)
class Start:
    """
    Start of a new position; an existing one is unchanged.

    ``Start("earliest")``; ``Start("latest")``: only later messages; ``Start("from_id", id)``: that
    message and later ones; ``Start("from_time", at)``: messages stored at that moment or later (a
    datetime, milliseconds, a date as text, or a duration ago such as ``"2h"``).
    """

    kind: str = "earliest"
    value: Moment | None = None

    def __post_init__(self) -> None:
        """Raise InvalidArgument for a start that is not valid."""
        known = PLACES.get(self.kind) if isinstance(self.kind, str) else None
        if known is None or not isinstance(self.value, known):
            raise InvalidArgument(
                f"start {self.kind!r} with {self.value!r}: give earliest, latest, from_id and an "
                "id, or from_time and a moment"
            )
        if self.kind == "from_time":
            moment("start", self.value or 0, SystemClock().now())


EARLIEST: Final = Start()


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxRef:
    """Key of a mailbox in its rows."""

    mailbox: str
    expires_at: Millis | None


class Reader(NamedTuple):
    """A named position: the last message passed of each priority."""

    reader_id: int
    passed: tuple[int, ...]


class MailboxLease(NamedTuple):
    """A message leased by one member of a group, and the token that proves it."""

    reader: int
    token: int
    owner: str
    seq: int
    sender: str
    id: str
    session: str
    frame: str
    digest: bytes
    attempt: int
    received_at: Millis


def find(read: Rows, place: MailboxRef, mode: str, name: str, *, now: Millis) -> Reader | None:
    """Return a position, or None; an expired mailbox's position does not count."""
    named = {"mailbox": place.mailbox, "mode": mode, "name": name, "now": now}
    return next((Reader(row[0], tuple(row[1:])) for row in read(FIND, named)), None)


def next_due(read: Rows, now: Millis) -> Millis | None:
    """Return when the first active lease ends."""
    due_at: Millis | None = read(NEXT_DUE, (now,))[0][0]
    return due_at


def open_reader(
    tx: StoreTransaction, place: MailboxRef, mode: str, name: str, start: Start
) -> Reader:
    """
    Return a position, created on first use; an expired mailbox's position does not count.

    Raises:
        InvalidArgument: it would begin at a message that does not exist.

    """
    found = find(tx.rows, place, mode, name, now=tx.now)
    return reset(tx, place, mode, name, start) if found is None else found


def reset(tx: StoreTransaction, place: MailboxRef, mode: str, name: str, start: Start) -> Reader:
    """
    Set a position to *start*, creating it if needed; delete its leases and kept messages.

    Its tokens continue, so an earlier lease never becomes valid again.

    Raises:
        InvalidArgument: it would begin at a message that does not exist.

    """
    after = resolve_start(tx, place.mailbox, start)
    tx.run(FORGET_ONE, {"mailbox": place.mailbox, "mode": mode, "name": name})
    named = asdict(place) | {"mode": mode, "name": name, "after": after, "now": tx.now}
    [(reader_id,)] = tx.rows(OPEN, named)
    return Reader(reader_id, (after,) * RANKS)


def resolve_start(tx: StoreTransaction, mailbox: str, start: Start) -> int:
    """Return the sequence after which *start* begins."""
    match start.kind:
        case "earliest":
            return 0
        case "from_id":
            found = tx.rows(BEFORE_ID, (mailbox, start.value, tx.now))
            if not found:
                raise InvalidArgument(
                    f"no message {start.value} in this mailbox:"
                    " start from another one, or from earliest"
                )
            return int(found[0][0])
        case "from_time":
            [(before,)] = tx.rows(BEFORE_TIME, (mailbox, moment("start", start.value or 0, tx.now)))
            if before is not None:
                return int(before)
    [(newest,)] = tx.rows(NEWEST)
    return int(newest)


def wake(tx: StoreTransaction, reader: Reader) -> None:
    """Release messages whose lease or delay has run out: recovery is claiming."""
    tx.run(WAKE, (reader.reader_id, tx.now))


def dead_owners(read: Rows, place: MailboxRef, group: str) -> list[str]:
    """Return the owners of a group's leases whose processes have ended."""
    owners = read(OWNERS, {"mailbox": place.mailbox, "name": group})
    return [owner for (owner,) in owners if file_checks.is_dead(owner)]


def free(tx: StoreTransaction, reader: Reader, owners: Sequence[str]) -> None:
    """Release the messages that processes had leased which have ended; their calls count."""
    if owners:
        tx.run(FREE, (reader.reader_id, json.dumps(owners)))


def advance(tx: StoreTransaction, reader: Reader, seen: Iterable[tuple[int, int]]) -> int:
    """Move the position past *seen*, (rank, sequence) of each; return this move's token."""
    passed = list(reader.passed)
    for rank, seq in seen:
        passed[rank] = max(passed[rank], seq)
    named = dict(zip(RANK_COLUMNS, passed, strict=True))
    [(token,)] = tx.rows(ADVANCE, named | {"now": tx.now, "reader": reader.reader_id})
    return int(token)


def hold(
    tx: StoreTransaction,
    reader: Reader,
    rows: Sequence[tuple[int, int, int]],
    *,
    token: int,
    owner: str,
    until: Millis,
) -> None:
    """Lease messages, (sequence, rank, attempt) of each, to *owner*."""
    tx.many(
        HOLD,
        [
            (reader.reader_id, seq, rank, token, owner, until, attempt)
            for seq, rank, attempt in rows
        ],
    )


def keep_skipped(tx: StoreTransaction, reader: Reader, rows: Sequence[tuple[int, int]]) -> None:
    """Keep messages, (sequence, rank) of each, for later although the position is past them."""
    tx.many(KEEP, [(reader.reader_id, seq, rank) for seq, rank in rows])


def forget_kept(tx: StoreTransaction, reader: Reader, seqs: Iterable[int]) -> None:
    """Delete kept messages that are now delivered."""
    tx.many(TAKEN, [(reader.reader_id, seq) for seq in seqs])


def end(tx: StoreTransaction, held: MailboxLease) -> None:
    """
    End a lease permanently, because this group has settled the message.

    Raises:
        LeaseLost: another member has it, or it has expired; roll the transaction back.

    """
    _assert_held(tx, END, held, {})


def put_back(tx: StoreTransaction, held: MailboxLease, due_at: Millis, *, counted: bool) -> None:
    """End a lease so that the message can be leased again at *due_at*; raise LeaseLost."""
    attempts = held.attempt - (not counted)
    _assert_held(tx, PUT_BACK, held, {"due_at": due_at, "attempts": attempts})


def extend(tx: StoreTransaction, held: MailboxLease, until: Millis) -> None:
    """Extend a lease; raise LeaseLost if it is not held."""
    _assert_held(tx, EXTEND, held, {"due_at": until})


def _assert_held(tx: StoreTransaction, sql: str, held: MailboxLease, more: dict[str, Any]) -> None:
    if not tx.run(sql, held._asdict() | more | {"now": tx.now}):
        raise LeaseLost(
            f"message {held.id} is no longer in flight here: its lease ran out, or it expired; no "
            "action is needed"
        )


def sweep(tx: StoreTransaction) -> None:
    """Delete positions of expired mailboxes, and leases without a message, to free space."""
    tx.run(OLD, (tx.now,))
    tx.run(LOOSE, (tx.now,))


LEASED: Final = """
SELECT h.reader_id, h.seq, r.name, h.owner, h.due_at
  FROM _onceward_mailbox_leases AS h
  JOIN _onceward_mailbox_readers AS r ON r.reader_id = h.reader_id
 WHERE h.owner IS NOT NULL AND h.due_at > :now
"""
SHORTEN: Final = """
UPDATE _onceward_mailbox_leases
   SET due_at = :until
 WHERE reader_id = :key AND seq = :row AND owner = :owner AND due_at = :ends
"""
PAST: Final = """
SELECT reader_id, name, max(critical, urgent, normal, low, background), :newest
  FROM _onceward_mailbox_readers
 WHERE max(critical, urgent, normal, low, background) > :newest
"""
SET_BACK: Final = """
UPDATE _onceward_mailbox_readers
   SET critical = min(critical, :to), urgent = min(urgent, :to), normal = min(normal, :to),
       low = min(low, :to), background = min(background, :to)
 WHERE reader_id = :key
"""


def repairs() -> tuple[LeaseTable, PositionTable]:
    """Return the leases and the positions of readers, for a repair."""
    return (
        LeaseTable("mailbox reader", LEASED, lambda tx, named: tx.run(SHORTEN, named)),
        PositionTable(
            "mailbox reader",
            "the mailbox reader {}",
            "the end",
            PAST,
            lambda tx, named: tx.run(SET_BACK, named),
        ),
    )
