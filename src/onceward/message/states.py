"""
Define the state machines, as tables.

The schema repeats them as CHECKs and guard triggers; a test tries every pair;
the diagrams in the docs are drawn from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from onceward.message.clock import Millis
from onceward.message.vocabulary import Outcome, Reason

OUTBOX: Final[dict[tuple[str, str], str]] = {
    ("pending", "sent"): "the peer stored it, its handler is still to come",
    ("pending", "acked"): "the peer processed it, or storing was all that was asked",
    ("pending", "failed"): "the peer keeps it as a dead letter",
    ("pending", "cancelled"): "withdrawn before it left",
    ("pending", "dropped"): "a named policy dropped it, here or at the peer",
    ("sent", "pending"): "no outcome by the ack deadline: ask again",
    ("sent", "acked"): "the peer processed it",
    ("sent", "failed"): "the peer gave it up and keeps it as a dead letter",
    ("sent", "dropped"): "a named policy of the peer dropped it",
    ("acked", "dropped"): "storing was all that was asked, and a policy of the peer dropped it",
    ("acked", "pending"): "the peer's file was rolled back: it needs the message again",
    ("failed", "pending"): "the peer's file was rolled back: it needs the message again",
    ("failed", "acked"): "the peer replayed its dead letter and processed it",
}
"""Legal moves of an outbox row and why; ``sending`` is ``pending`` in the parcel in flight."""

INBOX: Final[dict[tuple[str, str], str]] = {
    ("pending", "processed"): "its handler's writes and this mark are one commit",
    ("pending", "dropped"): "the handler or a named policy dropped it",
    ("pending", "expired"): "its time to live ran out before it was handled",
}
"""Legal moves of an inbox row; ``processing`` is ``pending`` inside a leased lane."""

RUNS: Final[dict[tuple[str, str], str]] = {
    (
        "open",
        "done",
    ): "the handler returned: effects, messages, dedup records and this are one commit",
    (
        "open",
        "aborted",
    ): "preempted, stopped, or its process died: the same commit returns unconsumed messages",
    (
        "open",
        "failed",
    ): "the handler raised: its messages wait for another attempt, or are dead letters",
}
"""Legal moves of a run and why; an ended run never reopens, its messages may get another."""


@dataclass(frozen=True, slots=True)
class Done:
    """Handled: ``outcome`` is processed, dropped or expired, and ``reason`` says why."""

    outcome: Outcome = "processed"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Not now: may be claimed again from ``due_at`` on."""

    due_at: Millis
    error: str
    counted: bool = True
    """Whether the attempt counts against the budget."""


@dataclass(frozen=True, slots=True)
class Waits(RetryAt):
    """Not now: its handler waits for a reply, and is called again at ``due_at`` at the latest."""


AWAITS: Final = "waits for the reply to "
"""Begins the reason of a message whose handler waits for a reply."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Never: becomes a dead letter with ``reason``; ``error`` keeps the details."""

    reason: Reason
    error: str = ""
    tried: bool = True
    """Whether it was handed over this time; False for what no handler or reader has seen."""


ATTEMPT_NEVER_ENDED: Final = (
    "no attempt is left: its handler never came to an end (process killed or lease lost),"
    " or the budget was lowered"
)
"""Details of a dead letter that is not claimed again; its handler's last error is appended."""
Settlement = Done | RetryAt | Dead
"""How a lease ends."""


class LeaseInfo(Protocol):
    """The part of a lease that a message and its consumer read."""

    @property
    def id(self) -> str:
        """Id of the message."""
        ...

    @property
    def sender(self) -> str:
        """Agent that sent it."""
        ...

    @property
    def frame(self) -> str:
        """The stored frame."""
        ...

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        ...

    @property
    def received_at(self) -> Millis:
        """When the message was committed into the inbox."""
        ...
