"""List the attempts of the handler of one message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onceward.message.clock import Millis
from onceward.ops.inspector.journey import ENDINGS, Tone
from onceward.ops.views.messages import FoundMessage

HANDLED = frozenset({"processed", "dropped"})
"""States of a message whose last attempt returned."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of the handler."""

    number: int
    at: Millis | None
    """When it ended; None while it runs."""
    took: float | None
    worker: str
    told: str
    """Its error, or how it ended."""
    trace: str
    tone: Tone


def attempts(recipient: FoundMessage) -> list[Attempt]:
    """Return the attempts stored in the recipient's file, oldest first."""
    failed = [
        Attempt(each.attempt, each.failed_at, each.took, each.worker, each.error, each.trace, "bad")
        for each in recipient.attempts
    ]
    return [*failed, *_last(recipient, failed[-1].number if failed else 0)]


def _last(recipient: FoundMessage, failed: int) -> Iterator[Attempt]:
    """Yield the attempt that returned or is running; it has no row of its own."""
    for row in recipient.received:
        if row.state in HANDLED and row.attempts:
            word, tone = ENDINGS[row.state]
            yield Attempt(row.attempts, row.ended_at, None, "", word, "", tone)
        elif row.state == "processing":
            yield Attempt(max(row.attempts, failed + 1), None, None, "", "runs now", "", "wait")
