"""Collect everything that a file stores about one message."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onceward.core.rows import dead_letters
from onceward.core.rows.dead_letters import DeadLetter
from onceward.features.history import history
from onceward.file.caused import Root, in_home
from onceward.file.database import Database
from onceward.file.handler_work import handled
from onceward.file.sql_parts import columns, senders
from onceward.message.caused import CausedMessage, drawn
from onceward.message.clock import Millis
from onceward.message.handler_work import (
    Acknowledgment,
    FailedAttempt,
    StepInfo,
    StreamInfo,
    Transition,
)
from onceward.message.record import MessageRecord


@dataclass(frozen=True, slots=True)
class DedupRecord:
    """The record that a consumer has processed a message."""

    sender: str
    consumer: str
    outcome: str
    processed_at: Millis


@dataclass(frozen=True, slots=True)
class Journey:
    """Everything that a file stores about one message, as ``onceward show`` prints it."""

    records: tuple[MessageRecord, ...]
    """The message as a sent, received and dead message, if it is one."""
    processed: tuple[DedupRecord, ...]
    """The consumers that have processed it."""
    transitions: tuple[Transition, ...]
    """Its changes of state, if the file records them (``transitions=True``)."""
    steps: tuple[StepInfo, ...] = ()
    """The steps of its handler that are stored, in their order."""
    streams: tuple[StreamInfo, ...] = ()
    """The output of its handler, by stream."""
    failed_attempts: tuple[FailedAttempt, ...] = ()
    """The last calls of its handler that raised, with their tracebacks."""
    acknowledgments: tuple[Acknowledgment, ...] = ()
    """The latest acknowledgment of each recipient."""
    replays: int = 0
    """How often it was replayed as a dead letter."""
    children: tuple[CausedMessage, ...] = ()
    """
    The messages that its handler has sent, each with those that it caused in turn.

    Read in the files of the home, of one conversation, at most 1,000 messages on 32 levels.
    """

    @property
    def parent(self) -> str | None:
        """Id of the message whose handler sent it; None if no handler did."""
        return self.record.causation_id

    @property
    def tree(self) -> str:
        """Draw it with its children: a line for each message."""
        one = self.record
        parent = f", caused by {self.parent}" if self.parent else ""
        first = f"{one.type} {one.id}, {one.sender} to {one.recipient}, {one.state}{parent}"
        return "\n".join((first, *drawn(self.children)))

    @property
    def record(self) -> MessageRecord:
        """The message in its latest place: as a dead letter, else as received, else as sent."""
        return self.records[-1]

    @property
    def last_error(self) -> str | None:
        """Its error as a dead letter, else that of its last failed attempt; None without one."""
        if isinstance(self.record, DeadLetter):
            return self.record.last_error
        return self.failed_attempts[-1].error if self.failed_attempts else None

    @property
    def dead_at(self) -> Millis | None:
        """When it became a dead letter; None if it is none."""
        return self.record.dead_at if isinstance(self.record, DeadLetter) else None


PROCESSED: Final = f"""
SELECT {columns(DedupRecord)} FROM onceward_processed_messages WHERE id = ? ORDER BY seq
"""
TRANSITIONS: Final = f"""
SELECT {columns(Transition)} FROM onceward_transitions WHERE id = ? ORDER BY seq
"""
FAILED: Final = f"""
SELECT {columns(FailedAttempt)} FROM onceward_failed_attempts WHERE message_id = ? ORDER BY seq
"""
ACKNOWLEDGED: Final = f"""
SELECT {columns(Acknowledgment)} FROM onceward_acknowledgments WHERE message_id = ?
"""
REPLAYS: Final = f"""{senders("_onceward_inbox")}
SELECT replays FROM _onceward_outbox WHERE id = :id
 UNION ALL
SELECT b.replays FROM senders AS s JOIN _onceward_inbox AS b ON b.sender = s.name AND b.id = :id
 UNION ALL
SELECT replays FROM _onceward_dead_letters WHERE id = :id
"""


def find(db: Database, message_id: str) -> Journey | None:
    """Return the journey of a message; None if the file has no message of this id."""
    stored = [each for each in history.of_id(db, message_id) if each.state != "dead"]
    records = [*stored, *dead_letters.of_id(db, message_id)]
    if not records:
        return None
    one = (message_id,)
    steps, streams = handled(db.ask, message_id, records[-1].session)
    return Journey(
        records=tuple(records),
        processed=tuple(DedupRecord(*row) for row in db.ask(PROCESSED, one)),
        transitions=tuple(Transition(*row) for row in db.ask(TRANSITIONS, one)),
        steps=steps,
        streams=streams,
        failed_attempts=tuple(FailedAttempt(*row) for row in db.ask(FAILED, one)),
        acknowledgments=tuple(Acknowledgment(*row) for row in db.ask(ACKNOWLEDGED, one)),
        replays=max(replays for (replays,) in db.ask(REPLAYS, {"id": message_id})),
        children=_children(db, records[-1]),
    )


def _children(db: Database, one: MessageRecord) -> tuple[CausedMessage, ...]:
    root = Root(one.id, one.sender, one.recipient, one.correlation_id)
    return in_home(root, db.agent, db.ask, Path(db.path))
