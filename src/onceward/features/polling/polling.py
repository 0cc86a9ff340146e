"""Read an inbox by one cursor per session, which is the ack; or peek without moving it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from onceward.core.contract import PositionTable
from onceward.core.end import received
from onceward.core.run import recovery
from onceward.errors import InvalidArgument
from onceward.file import identity
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.frame import digest
from onceward.message.record import MessageRecord, read_record
from onceward.message.topics import matches_any
from onceward.message.vocabulary import Outcome

CURSOR: Final = "SELECT seq FROM _onceward_poll_cursors WHERE session = ?"
MOVE: Final = """
INSERT INTO _onceward_poll_cursors (session, seq, read_at) VALUES (?, ?, ?)
ON CONFLICT (session) DO UPDATE SET seq = excluded.seq, read_at = excluded.read_at
"""
NEWEST: Final = (
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)"
)
# Messages of sessions with runs, and of mailboxes, are read elsewhere.
SCAN: Final = 500
"""Maximum rows that one poll examines."""
NEXT: Final = """
SELECT b.seq, b.sender, b.id, b.topic, b.frame, b.digest, b.received_at, b.expires_at,
       l.owner IS NOT NULL OR l.due_at IS NOT NULL
  FROM _onceward_inbox AS b JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.seq > ?
   AND b.session = ?
   AND b.state = 'pending'
   AND b.mailbox IS NULL
   AND b.run_seq IS NULL
   AND l.sender IS NOT NULL
 ORDER BY b.seq LIMIT ?
"""
TAIL: Final = """
SELECT frame, digest, received_at, state, attempts FROM _onceward_inbox
 WHERE session = :session AND mailbox IS NULL AND (:all OR expires_at IS NULL OR expires_at > :now)
 ORDER BY seq DESC LIMIT :limit
"""
TOPICS: Final = """
SELECT session, topic, count(*), total(expires_at <= :now), sum(length(CAST(frame AS BLOB)))
  FROM _onceward_inbox WHERE mailbox IS NULL AND (:session IS NULL OR session = :session)
 GROUP BY session, topic ORDER BY session, topic
"""
CURSORS: Final = (
    "SELECT session, seq FROM _onceward_poll_cursors WHERE :session IS NULL OR session = :session"
)


MOST: Final = 1 << 62


class PolledRow(NamedTuple):
    """A row that a poll reads."""

    seq: int
    sender: str
    id: str
    topic: str | None
    frame: str
    digest: bytes
    received_at: Millis
    expires_at: Millis | None
    held: int
    """Whether its lane is leased or backs off, so that a poll skips it."""

    def record(self) -> MessageRecord:
        """Return the message as a record."""
        sound = digest(self.frame) == self.digest
        return read_record(self.frame, self.received_at, state="processed", sound=sound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The request of a poll."""

    session: str
    topics: tuple[str, ...] | None = None
    consume_skipped: bool = True
    limit: int

    def wants(self, row: PolledRow) -> bool:
        """Return whether a message matches."""
        return matches_any(self.topics, row.topic)


class ScanPosition(NamedTuple):
    """How far a poll has read, and the first skipped message, before which the cursor stays."""

    looked_to: int | None = None
    left: int | None = None


class PollResult(NamedTuple):
    """Messages found by one step of a poll, its move of the cursor, and how far it read."""

    rows: list[PolledRow]
    cursor_from: int
    cursor_to: int
    reach: ScanPosition
    more: bool


def poll(tx: StoreTransaction, wanted: Poll, reach: ScanPosition) -> PollResult:
    """
    Move a session's cursor and end the messages it passes.

    Matching ones end processed, skipped ones dropped, late ones expired, all in the caller's commit
    before any is returned. The cursor stops before the first leased or kept message.
    """
    cursor = _cursor(tx, wanted.session)
    if identity.is_paused(tx.rows):
        return PollResult([], cursor, cursor, reach, more=False)
    recovery.wake_due(tx)
    after = cursor if reach.looked_to is None else reach.looked_to
    looked = [PolledRow(*row) for row in tx.rows(NEXT, (after, wanted.session, SCAN))]
    sorted_out = _sort(looked, wanted, tx.now)
    for outcome, rows in sorted_out.ends.items():
        received.end_unclaimed(tx, [row.seq for row in rows], outcome)
    taken = sorted_out.ends["processed"]
    through = len(looked) < SCAN and (not looked or sorted_out.reached == looked[-1].seq)
    upto = int(tx.rows(NEWEST)[0][0]) if through else sorted_out.reached
    left = reach.left or sorted_out.left
    to = max(cursor, upto if left is None else min(upto, left - 1))
    if to != cursor:
        tx.run(MOVE, (wanted.session, to, tx.now))
    return PollResult(
        taken, cursor, to, ScanPosition(upto, left), more=not through and len(taken) < wanted.limit
    )


@dataclass(slots=True)
class _SortedRows:
    """Messages by outcome, the first one that does not end, and the last sequence read."""

    ends: dict[Outcome, list[PolledRow]]
    left: int | None = None
    reached: int = 0


def _sort(looked: list[PolledRow], wanted: Poll, now: Millis) -> _SortedRows:
    found = _SortedRows({"processed": [], "dropped": [], "expired": []})
    for row in looked:
        if len(found.ends["processed"]) == wanted.limit:
            break
        found.reached = row.seq
        fits = wanted.wants(row)
        if row.held or (not fits and not wanted.consume_skipped):
            found.left = found.left or row.seq
        elif row.expires_at is not None and row.expires_at <= now:
            found.ends["expired"].append(row)
        else:
            found.ends["processed" if fits else "dropped"].append(row)
    return found


def limit_of(limit: int | None) -> int:
    """Return *limit*, None as a large number; raise InvalidArgument if it is below 1."""
    if limit is None:
        return MOST
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidArgument(f"limit {limit!r} must be a positive number of messages")
    return limit


def _cursor(tx: StoreTransaction, session: str) -> int:
    found = tx.rows(CURSOR, (session,))
    return int(found[0][0]) if found else 0


def tail(
    rows: Rows, session: str, limit: int, *, include_expired: bool, now: Millis
) -> list[MessageRecord]:
    """Return the newest messages of a session, oldest first; move no cursor."""
    found = rows(TAIL, {"session": session, "limit": limit, "all": include_expired, "now": now})
    return [
        read_record(frame, at, state=state, attempts=attempts, sound=digest(frame) == seen)
        for frame, seen, at, state, attempts in reversed(found)
    ]


def stats(rows: Rows, session: str | None, *, now: Millis) -> dict[str, dict[str, Any]]:
    """Return by session: messages, expired ones, counts by topic, bytes, and the cursor."""
    found: dict[str, dict[str, Any]] = {}
    for name, topic, messages, expired, size in rows(TOPICS, {"session": session, "now": now}):
        one = found.setdefault(name, _empty())
        one["messages"] += messages
        one["expired"] += round(expired)
        one["topics"][topic or ""] = messages
        one["bytes"] += size
    for name, seq in rows(CURSORS, {"session": session}):
        found.setdefault(name, _empty())["cursor"] = seq
    return found


def _empty() -> dict[str, Any]:
    return {"messages": 0, "expired": 0, "topics": {}, "bytes": 0, "cursor": 0}


PAST: Final = """
SELECT c.session, c.session, c.seq,
       min(:newest, coalesce((SELECT min(b.seq) - 1
                                FROM _onceward_inbox AS b
                               WHERE b.session = c.session AND b.state = 'pending'
                                 AND b.mailbox IS NULL), :newest))
  FROM _onceward_poll_cursors AS c
 WHERE c.seq > :newest
"""
SET_BACK: Final = "UPDATE _onceward_poll_cursors SET seq = :to WHERE session = :key AND seq = :from"


def repairs() -> tuple[PositionTable]:
    """Return the cursors, for a repair."""
    return (
        PositionTable(
            "session",
            "the cursor of session {}",
            "before the oldest message that was not read",
            PAST,
            lambda tx, named: tx.run(SET_BACK, named),
        ),
    )
