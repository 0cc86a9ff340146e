"""Collect everything that a file stores about one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.features.history import history
from onceward.file.database import Database
from onceward.file.handler_work import handled
from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.message.handler_work import StepInfo, StreamInfo, Transition
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

    @property
    def record(self) -> MessageRecord:
        """The message in its latest place: as a dead letter, else as received, else as sent."""
        return self.records[-1]


PROCESSED: Final = f"""
SELECT {columns(DedupRecord)} FROM onceward_processed_messages WHERE id = ? ORDER BY seq
"""
TRANSITIONS: Final = f"""
SELECT {columns(Transition)} FROM onceward_transitions WHERE id = ? ORDER BY seq
"""


def find(db: Database, message_id: str) -> Journey | None:
    """Return the journey of a message; None if the file has no message of this id."""
    records = history.of_id(db, message_id)
    if not records:
        return None
    return Journey(
        tuple(records),
        tuple(DedupRecord(*row) for row in db.ask(PROCESSED, (message_id,))),
        tuple(Transition(*row) for row in db.ask(TRANSITIONS, (message_id,))),
        *handled(db.ask, message_id, records[-1].session),
    )
