"""Ask one file for everything that it stores about one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from onceward.file.handler_work import handled
from onceward.file.sql_parts import columns, senders
from onceward.message.clock import Millis
from onceward.message.handler_work import (
    Acknowledgment,
    FailedAttempt,
    StepInfo,
    StreamInfo,
    Transition,
)
from onceward.ops.views.asking import (
    HIGHEST,
    Source,
    first_since,
    ids_from,
    moment_from,
    some_ids,
    values,
)

WINDOW: Final = 20_000
"""Maximum transitions that are read at each end of a long period."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a row of outbox, inbox or dead letters; missing columns are None."""

    box: str
    seq: int
    id: str
    origin: str | None
    sender: str
    recipient: str
    session: str
    lane: str | None
    type: str
    topic: str | None
    priority: str
    state: str
    attempts: int
    key: str | None
    created_at: Millis | None
    received_at: Millis | None
    due_at: Millis | None
    expires_at: Millis | None
    sent_at: Millis | None
    ended_at: Millis | None
    dead_at: Millis | None
    reason: str | None
    last_error: str | None
    late_outcome: str | None
    late_at: Millis | None
    held_by: str | None
    channel: str | None
    kind: str | None
    correlation_id: str | None
    mailbox: str | None
    queue: str | None
    replays: int

    @property
    def at(self) -> Millis:
        """When it was committed here: sent, received, or dead."""
        return self.dead_at or self.created_at or self.received_at or 0

    @property
    def why(self) -> str | None:
        """Why it is in its state; the last error of a dead letter, whose state is its reason."""
        if self.dead_at is not None:
            return self.last_error
        return self.reason or (f"held by {self.held_by}" if self.held_by else None)


@dataclass(frozen=True, slots=True)
class Processed:
    """The dedup record of a message."""

    box: str
    id: str
    sender: str
    recipient: str
    consumer: str
    session: str
    state: str
    ended_at: Millis


@dataclass(frozen=True, slots=True)
class Result:
    """The value that the handler of a message returned, where it keeps results."""

    sender: str
    body: str | None
    bytes: int
    stored_at: Millis
    until_at: Millis
    """When it is deleted."""


@dataclass(frozen=True, slots=True)
class BodyPart:
    """A part of a message's body, and the length of the whole body."""

    sender: str
    text: str | None
    length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """Everything that one file stores about a message."""

    sent: StoredMessage | None = None
    received: tuple[StoredMessage, ...] = ()
    dead: tuple[StoredMessage, ...] = ()
    processed: tuple[Processed, ...] = ()
    acknowledgments: tuple[Acknowledgment, ...] = ()
    transitions: tuple[Transition, ...] = ()
    steps: tuple[StepInfo, ...] = ()
    streams: tuple[StreamInfo, ...] = ()
    attempts: tuple[FailedAttempt, ...] = ()
    results: tuple[Result, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the file knows the message at all."""
        return bool(self.rows)

    @property
    def rows(self) -> tuple[StoredMessage | Processed, ...]:
        """Its rows in outbox, inbox, dead letters and dedup records."""
        sent = () if self.sent is None else (self.sent,)
        return (*sent, *self.received, *self.dead, *self.processed)

    @property
    def any(self) -> StoredMessage | None:
        """One of its rows: sent, else received, else dead."""
        return next((each for each in self.rows if isinstance(each, StoredMessage)), None)

    @property
    def died_here(self) -> StoredMessage | None:
        """The dead letter of a received message."""
        return next((each for each in self.dead if each.origin != "outbox"), None)


VIEWS: Final = {
    "outbox": "onceward_outbox",
    "inbox": "onceward_inbox",
    "dead": "onceward_dead_letters",
}
DEATH: Final = ("origin", "dead_at", "last_error", "late_outcome", "late_at", "queue")
LACKS: Final = {
    "outbox": ("received_at", "mailbox", *DEATH),
    "inbox": ("key", "created_at", "due_at", "sent_at", "held_by", *DEATH),
    "dead": ("key", "received_at", "due_at", "expires_at", "sent_at", "ended_at", "held_by"),
}
"""Fields of a stored message without a column in a box."""


def stored(box: str, kind: type = StoredMessage, of: str = "", **given: str) -> str:
    """Return the columns of a stored message of a box."""
    lacking = dict.fromkeys(LACKS[box], "NULL") | ({"state": "'dead'"} if box == "dead" else {})
    return columns(kind, of, box=f"'{box}'", **lacking, **given)


def of_row(expression: str) -> dict[str, str]:
    """Return the statement for an expression of one row, by its box."""
    return {box: f"SELECT {expression} FROM {view} WHERE seq = ?" for box, view in VIEWS.items()}


def in_boxes(sql: str) -> str:
    """Return the statement for rows of all boxes; *sql* names their ``{view}``."""
    return "\n UNION ALL\n".join(sql.format(view=view) for view in VIEWS.values())


COLUMNS: Final = {box: stored(box) for box in VIEWS}


SENDERS: Final = senders("onceward_inbox")
HANDLED_SENDERS: Final = senders("onceward_processed_messages")
SENT: Final = f"SELECT {COLUMNS['outbox']} FROM onceward_outbox WHERE id = :id"
RECEIVED: Final = f"""{SENDERS}
SELECT {COLUMNS["inbox"]}
  FROM senders AS s CROSS JOIN onceward_inbox AS b ON b.sender = s.name AND b.id = :id
"""
DEAD: Final = f"SELECT {COLUMNS['dead']} FROM onceward_dead_letters WHERE id = :id"
PROCESSED: Final = f"""{HANDLED_SENDERS}
SELECT {columns(Processed, "m.", box="'processed'", state="m.outcome", ended_at="m.processed_at")}
  FROM senders AS s
 CROSS JOIN onceward_processed_messages AS m ON m.sender = s.name AND m.id = :id
"""
ACKNOWLEDGED: Final = f"""
SELECT {columns(Acknowledgment)} FROM onceward_acknowledgments WHERE message_id = :id
"""
FAILED: Final = f"""
SELECT {columns(FailedAttempt)} FROM onceward_failed_attempts WHERE message_id = :id ORDER BY seq
"""
RESULTS: Final = f"""
SELECT {columns(Result)} FROM onceward_results WHERE message_id = :id ORDER BY seq
"""
IDS: Final = f"""{SENDERS}
SELECT id, 'outbox' FROM ({ids_from("onceward_outbox")})
 UNION ALL
SELECT id, 'dead' FROM ({ids_from("onceward_dead_letters")})
 UNION ALL
SELECT id, 'inbox' FROM (SELECT b.id FROM senders AS s
                          CROSS JOIN onceward_inbox AS b
                             ON b.sender = s.name AND b.id >= :low AND b.id < :high
                          LIMIT :limit)
"""
HANDLED_IDS: Final = f"""{HANDLED_SENDERS}
SELECT m.id FROM senders AS s
 CROSS JOIN onceward_processed_messages AS m
    ON m.sender = s.name AND m.id >= :low AND m.id < :high
 LIMIT :limit
"""
DEAD_IDS: Final = ids_from("onceward_dead_letters")
# The view of the outbox makes the whole frame for it.
SIZE: Final = of_row("octet_length(frame)")
FRAME: Final = of_row("CAST(frame AS BLOB)")
BODY: Final = of_row("body")
BODY_PART: Final = in_boxes("SELECT seq, sender, body FROM {view} WHERE id = :id")
PART: Final = f"""
SELECT sender, substr(body, :first, :most), length(body)
  FROM ({BODY_PART}) ORDER BY seq LIMIT 1
"""
OF_ROOT: Final = "SELECT correlation_id FROM {view} WHERE id = :id AND correlation_id IS NOT NULL"
ROOT: Final = f"{in_boxes(OF_ROOT)}\n LIMIT 1"


def sent_message(source: Source, message_id: str) -> StoredMessage | None:
    """Return a message of the outbox."""
    return next(iter(values(source, StoredMessage, SENT, id=message_id)), None)


def message(source: Source, message_id: str, *, window: int = WINDOW) -> FoundMessage:
    """Return everything that a file stores about a message, with limited transitions."""
    sent = sent_message(source, message_id)
    received = values(source, StoredMessage, RECEIVED, id=message_id)
    dead = values(source, StoredMessage, DEAD, id=message_id)
    rows = [*([sent] if sent else []), *received, *dead]
    session = next((each.session for each in (*received, *dead)), "")
    steps, streams = handled(source.rows, message_id, session)
    return FoundMessage(
        sent=sent,
        received=received,
        dead=dead,
        processed=values(source, Processed, PROCESSED, id=message_id),
        acknowledgments=values(source, Acknowledgment, ACKNOWLEDGED, id=message_id),
        transitions=_transitions(source, message_id, rows, window),
        steps=steps,
        streams=streams,
        attempts=values(source, FailedAttempt, FAILED, id=message_id),
        results=values(source, Result, RESULTS, id=message_id),
    )


def ids(source: Source, prefix: str, limit: int) -> list[tuple[str, str]]:
    """Return ids that begin with *prefix*, each with its box."""
    named = {"low": prefix, "high": prefix + HIGHEST, "limit": limit}
    return [(str(message_id), str(box)) for message_id, box in source.rows(IDS, named)]


def message_ids(source: Source, prefix: str) -> list[str]:
    """Return a few ids of messages that begin with *prefix*, including dedup records."""
    found = (*some_ids(source, IDS, prefix), *some_ids(source, HANDLED_IDS, prefix))
    return list(dict.fromkeys(found))


def dead_ids(source: Source, prefix: str) -> list[str]:
    """Return a few ids of dead letters that begin with *prefix*."""
    return some_ids(source, DEAD_IDS, prefix)


def frame_size(source: Source, box: str, seq: int) -> int:
    """Return the size of a stored frame in bytes; 0 if it no longer exists."""
    return next((int(size) for (size,) in source.rows(SIZE[box], (seq,))), 0)


def whole_frame(source: Source, box: str, seq: int) -> bytes | None:
    """Return a stored frame of any size; None if it no longer exists."""
    rows = source.rows(FRAME[box], (seq,))
    return rows[0][0] if rows else None


def body_text(source: Source, box: str, seq: int) -> str:
    """Return the body of a message; empty if it has none or no longer exists."""
    return next((str(text) for (text,) in source.rows(BODY[box], (seq,)) if text is not None), "")


def body_part(source: Source, message_id: str, *, first: int, most: int) -> BodyPart | None:
    """Return *most* characters of a body from the *first* one, counted from 1; None without it."""
    found = values(source, BodyPart, PART, id=message_id, first=first, most=most)
    return found[0] if found else None


def root_of(source: Source, message_id: str) -> str:
    """Return the id of the message that began the conversation of a message: its own, if none."""
    return next((str(root) for (root,) in source.rows(ROOT, {"id": message_id})), message_id)


# -- transitions --------------------------------------------------------------------------

RECORDED: Final = """
SELECT name FROM sqlite_schema
 WHERE type = 'trigger' AND name = '_onceward_transitions_inbox_insert'
"""
ENDS: Final = """
SELECT (SELECT seq FROM onceward_transitions WHERE seq >= 0 ORDER BY seq LIMIT 1),
       (SELECT seq FROM onceward_transitions WHERE seq >= 0 ORDER BY seq DESC LIMIT 1)
"""
STEP: Final = moment_from("onceward_transitions", "at")
STEPS: Final = f"""
SELECT {columns(Transition)} FROM onceward_transitions
 WHERE seq BETWEEN :first AND :last AND id = :id ORDER BY seq
"""
NEXT_STEPS: Final = f"""
SELECT {columns(Transition)} FROM onceward_transitions
 WHERE seq > :after ORDER BY seq LIMIT :limit
"""


def records_transitions(source: Source) -> bool:
    """Return whether the file records the transitions of its messages."""
    return bool(source.rows(RECORDED))


def last_transition(source: Source) -> int:
    """Return the number of the newest transition; 0 if there is none."""
    return int(source.rows(ENDS)[0][1] or 0)


def transitions_after(source: Source, seq: int, limit: int) -> tuple[Transition, ...]:
    """Return the transitions after one, oldest first."""
    return values(source, Transition, NEXT_STEPS, after=seq, limit=limit)


def _transitions(
    source: Source, message_id: str, rows: Sequence[StoredMessage], window: int
) -> tuple[Transition, ...]:
    """Return the recorded transitions, which are found by the time of the message."""
    begins = [row.created_at or row.at for row in rows]
    [(first, last)] = source.rows(ENDS)
    if not begins or first is None:
        return ()
    ends = [row.ended_at or row.dead_at for row in rows]
    low, high = first_since(source, STEP, min(begins) - 1000, first, last), last
    if None not in ends:
        high = first_since(source, STEP, max(filter(None, ends)) + 1000, low, last)
    spans = [(low, min(high, low + window)), (max(low + window + 1, high - window), high)]
    return tuple(
        step
        for begin, end in spans
        for step in values(source, Transition, STEPS, first=begin, last=end, id=message_id)
    )
