"""Define what is stored of the work on a message: steps, output, what others reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceward.message.clock import Millis
from onceward.message.vocabulary import AckStatus, StepState


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step of a message's handler."""

    name: str
    ordinal: int
    version: str
    state: StepState
    attempts: int
    started_at: Millis
    ended_at: Millis
    due_at: Millis | None
    awaits: str | None
    bytes: int
    error: str | None

    @property
    def took(self) -> float:
        """Seconds from the first call of its function until its end, pauses included."""
        return (self.ended_at - self.started_at) / 1000


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A stored step of an earlier run."""

    name: str
    """Its name, with its ordinal and version as ``onceward show`` prints them: ``think#2``."""
    state: StepState
    attempts: int
    result: Any
    """The result of its function, as plain JSON values or bytes; None unless it is done."""
    error: str | None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream of output of a message's handler."""

    name: str
    chunks: int
    bytes: int
    attempt: int
    """The newest attempt that wrote to it."""
    begun_at: Millis
    stored_at: Millis


@dataclass(frozen=True, slots=True)
class Acknowledgment:
    """The latest acknowledgment of one recipient for a message that this agent sent."""

    message_id: str
    participant: str
    status: AckStatus
    detail: str | None
    first_at: Millis
    at: Millis


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a message's state."""

    seq: int
    at: Millis
    agent: str
    box: str
    id: str
    peer: str
    from_state: str | None
    to_state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A call of the handler of a message that raised."""

    seq: int
    attempt: int
    worker: str
    error: str
    trace: str
    took: float | None
    """Seconds of the call."""
    failed_at: Millis
