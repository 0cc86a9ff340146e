"""Ask one file for everything that it stores about one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.message.clock import Millis
from onceward.ops.inspector.reading import Reader

LARGE: Final = 262_144
"""Bytes of the largest frame that a page shows."""
WINDOW: Final = 20_000
"""Transitions that are read at each end of a long time."""
HIGHEST: Final = "\U0010ffff"

SIZE: Final = "octet_length(frame)"
"""The view of the outbox makes the whole frame for it: it is asked for once."""
# An id is unique for each sender: the index on both is asked once for each sender there is.
SENDERS: Final = """
WITH RECURSIVE senders (name) AS (
    SELECT (SELECT sender FROM onceward_inbox WHERE sender > '' ORDER BY sender LIMIT 1)
     UNION ALL
    SELECT (SELECT sender FROM onceward_inbox WHERE sender > s.name ORDER BY sender LIMIT 1)
      FROM senders AS s WHERE s.name IS NOT NULL
)
"""
SENT: Final = f"""
SELECT seq, id, sender, recipient, session, lane, type, topic, priority, state, attempts,
       created_at, due_at, expires_at, sent_at, ended_at, reason, key, held_by, channel, kind,
       correlation_id, NULL, replays, {SIZE}
  FROM onceward_outbox WHERE id = ?
"""
RECEIVED: Final = f"""{SENDERS}
SELECT b.seq, b.id, b.sender, b.recipient, b.session, b.lane, b.type, b.topic, b.priority, b.state,
       b.attempts, b.received_at, NULL, b.expires_at, NULL, b.ended_at, b.reason, NULL, NULL,
       b.channel, b.kind, b.correlation_id, b.mailbox, b.replays, {SIZE}
  FROM senders AS s CROSS JOIN onceward_inbox AS b ON b.sender = s.name AND b.id = ?
"""
DEAD: Final = f"""
SELECT seq, origin, sender, recipient, session, lane, type, topic, priority, reason, last_error,
       attempts, created_at, dead_at, late_outcome, late_at, replays, correlation_id, {SIZE}
  FROM onceward_dead_letters WHERE id = ?
"""
PROCESSED: Final = """
SELECT outcome, processed_at, consumer
  FROM onceward_processed_messages WHERE sender = ? AND id = ?
"""
ACKNOWLEDGED: Final = """
SELECT participant, status, detail, first_at, at
  FROM onceward_acknowledgments WHERE message_id = ?
"""
IDS: Final = f"""{SENDERS}
SELECT id, 'outbox' FROM (SELECT id FROM onceward_outbox
                           WHERE id >= :low AND id < :high ORDER BY id LIMIT :limit)
 UNION ALL
SELECT id, 'dead' FROM (SELECT id FROM onceward_dead_letters
                         WHERE id >= :low AND id < :high ORDER BY id LIMIT :limit)
 UNION ALL
SELECT id, 'inbox' FROM (SELECT b.id FROM senders AS s
                          CROSS JOIN onceward_inbox AS b
                             ON b.sender = s.name AND b.id >= :low AND b.id < :high
                          LIMIT :limit)
"""
WHOLE: Final = {
    "outbox": "SELECT CAST(frame AS BLOB) FROM onceward_outbox WHERE seq = ?",
    "inbox": "SELECT CAST(frame AS BLOB) FROM onceward_inbox WHERE seq = ?",
    "dead": "SELECT CAST(frame AS BLOB) FROM onceward_dead_letters WHERE seq = ?",
}
STEP: Final = "SELECT seq, at FROM onceward_transitions WHERE seq >= ? ORDER BY seq LIMIT 1"
ENDS: Final = """
SELECT (SELECT seq FROM onceward_transitions WHERE seq >= 0 ORDER BY seq LIMIT 1),
       (SELECT seq FROM onceward_transitions WHERE seq >= 0 ORDER BY seq DESC LIMIT 1)
"""
STEPS: Final = """
SELECT seq, at, box, peer, from_state, to_state, reason
  FROM onceward_transitions
 WHERE seq BETWEEN ? AND ? AND id = ?
 ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a row of an outbox or an inbox."""

    seq: int
    id: str
    sender: str
    recipient: str
    session: str
    lane: str | None
    type: str
    topic: str | None
    priority: str
    state: str
    attempts: int
    at: Millis
    """When it was committed here: sent, or received."""
    due_at: Millis | None
    expires_at: Millis | None
    sent_at: Millis | None
    ended_at: Millis | None
    reason: str | None
    key: str | None
    held_by: str | None
    channel: str | None
    kind: str | None
    correlation_id: str | None
    mailbox: str | None
    replays: int
    size: int


@dataclass(frozen=True, slots=True)
class StoredDeath:
    """A message as a dead letter."""

    seq: int
    origin: str
    sender: str
    recipient: str
    session: str
    lane: str | None
    type: str
    topic: str | None
    priority: str
    reason: str
    last_error: str | None
    attempts: int
    created_at: Millis
    dead_at: Millis
    late_outcome: str | None
    late_at: Millis | None
    replays: int
    correlation_id: str | None
    size: int


@dataclass(frozen=True, slots=True)
class Processed:
    """The dedup record of a message."""

    outcome: str
    processed_at: Millis
    consumer: str


@dataclass(frozen=True, slots=True)
class Acknowledgment:
    """How far one recipient of a message of ours has come with it."""

    participant: str
    status: str
    detail: str | None
    first_at: Millis
    at: Millis


@dataclass(frozen=True, slots=True)
class Transition:
    """One recorded transition."""

    seq: int
    at: Millis
    box: str
    peer: str
    from_state: str | None
    to_state: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """All that one file stores about a message."""

    sent: StoredMessage | None
    received: tuple[StoredMessage, ...]
    dead: tuple[StoredDeath, ...]
    processed: tuple[Processed, ...]
    acknowledgments: tuple[Acknowledgment, ...]
    transitions: tuple[Transition, ...]

    def __bool__(self) -> bool:
        """Return whether the file knows the message at all."""
        return bool(self.sent or self.received or self.dead or self.processed)

    @property
    def any(self) -> StoredMessage | StoredDeath | None:
        """One of its rows: as it was sent, else as it was received, else as it died."""
        rows: list[StoredMessage | StoredDeath] = [*self.received, *self.dead]
        return self.sent or (rows[0] if rows else None)

    @property
    def died_here(self) -> StoredDeath | None:
        """The dead letter of a message that this file had received."""
        return next((each for each in self.dead if each.origin != "outbox"), None)


def message(reader: Reader, message_id: str, *, senders: tuple[str, ...] = ()) -> FoundMessage:
    """Return what a file stores about a message; *senders* may have a dedup record here."""
    sent = [StoredMessage(*row) for row in reader.rows(SENT, (message_id,))]
    received = tuple(StoredMessage(*row) for row in reader.rows(RECEIVED, (message_id,)))
    dead = tuple(StoredDeath(*row) for row in reader.rows(DEAD, (message_id,)))
    known = [row.sender for row in received] + [row.sender for row in dead]
    names = dict.fromkeys((*senders, *known))
    processed = [
        Processed(*row) for name in names for row in reader.rows(PROCESSED, (name, message_id))
    ]
    return FoundMessage(
        sent=sent[0] if sent else None,
        received=received,
        dead=dead,
        processed=tuple(processed),
        acknowledgments=tuple(
            Acknowledgment(*row) for row in reader.rows(ACKNOWLEDGED, (message_id,))
        ),
        transitions=tuple(_transitions(reader, message_id, [*sent, *received], dead)),
    )


def _transitions(
    reader: Reader, message_id: str, rows: list[StoredMessage], dead: tuple[StoredDeath, ...]
) -> list[Transition]:
    """Return the recorded transitions, which are found by the time of the message."""
    begins = [row.at for row in rows] + [row.created_at for row in dead]
    [(first, last)] = reader.rows(ENDS)
    if not begins or first is None:
        return []
    ends = [row.ended_at for row in rows] + [row.dead_at for row in dead]
    low = _first_since(reader, min(begins) - 1000, first, last)
    high = last if None in ends else _first_since(reader, max(filter(None, ends)) + 1000, low, last)
    spans = [(low, min(high, low + WINDOW)), (max(low + WINDOW + 1, high - WINDOW), high)]
    return [
        Transition(*row)
        for begin, end in spans
        if begin <= end
        for row in reader.rows(STEPS, (begin, end, message_id))
    ]


def _first_since(reader: Reader, at: Millis, low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        [(_, found_at), *_] = reader.rows(STEP, (middle,))
        low, high = (low, middle) if found_at >= at else (middle + 1, high)
    return low


def ids(reader: Reader, prefix: str, limit: int = 20) -> list[tuple[str, str]]:
    """Return ids that begin with *prefix*, each with the box in which it is."""
    named = {"low": prefix, "high": prefix + HIGHEST, "limit": limit}
    return [(str(message_id), str(box)) for message_id, box in reader.rows(IDS, named)]


def whole_frame(reader: Reader, box: str, seq: int) -> bytes | None:
    """Return a stored frame, however large."""
    rows = reader.rows(WHOLE[box], (seq,))
    return rows[0][0] if rows else None
