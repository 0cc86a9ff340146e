"""Define the verdicts on one message: their words, their meaning, and which of them are bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self

from onceward.message.clock import SystemClock

Weight = Literal["good", "ended", "moving", "stuck", "open", "bad"]
"""``good``: took effect; ``ended``: otherwise, with a reason; ``moving``: under way; ``stuck``:
overdue at its recipient; ``open``: unproved; ``bad``: must not be."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word for the outcome of a message."""

    name: str
    weight: Weight
    meaning: str


VERDICTS: Final[tuple[Verdict, ...]] = (
    Verdict("delivered_once", "good", "it took effect exactly once"),
    Verdict(
        "late",
        "good",
        "it took effect exactly once, but after the limit, or after its sender gave it up",
    ),
    Verdict("overdue", "good", "it took effect exactly once, but after its time to live"),
    Verdict(
        "other_contents",
        "good",
        "it took effect exactly once, and a second message with its id had other contents",
    ),
    Verdict("dropped", "ended", "its handler, or a named policy, dropped it"),
    Verdict("cancelled", "ended", "it was cancelled, before it left or before it took effect"),
    Verdict("expired", "ended", "its time to live ran out before it took effect"),
    Verdict(
        "dead_lettered",
        "ended",
        "it was given up with a reason and is, or was, kept as a dead letter",
    ),
    Verdict(
        "in_flight",
        "moving",
        "its sender still keeps it, or it moved within the grace before the reading",
    ),
    Verdict("kept", "moving", "it is kept for a wait of its recipient, and no wait has taken it"),
    Verdict(
        "waiting",
        "moving",
        "its handler, or its lane, waits: for a message, a reply, or a moment that is to come;"
        " or it waits in its sender's file for a member of its pool",
    ),
    Verdict(
        "unprocessed",
        "stuck",
        "its recipient keeps it, unhandled for longer than the grace, and waits for nothing, or"
        " what it waited for is overdue",
    ),
    Verdict(
        "forgotten",
        "open",
        "one side's records were pruned by age; the remaining ones contradict nothing",
    ),
    Verdict("unwitnessed", "open", "the file of the other side was not read, or not far enough"),
    Verdict("orphan", "bad", "it arrived, but its sender's file does not know it"),
    Verdict("duplicated", "bad", "it was accepted more than once, in two files of its recipient"),
    Verdict("double_processed", "bad", "it took effect more than once"),
    Verdict(
        "lost",
        "bad",
        "its sender counts it as done, or a log has it, but its recipient has no trace of it",
    ),
)
"""From good to bad; every message gets exactly one."""

MEANING: Final = {verdict.name: verdict.meaning for verdict in VERDICTS}
NAMES: Final = tuple(verdict.name for verdict in VERDICTS)
FATAL: Final = ("lost", "duplicated", "double_processed")
"""Verdicts that break the promise: with any of these the command ends with exit code 1."""
UNPROVED: Final = ("forgotten", "unwitnessed", "orphan")
"""Verdicts that neither prove nor break it: one of its two files does not know the message."""
STUCK: Final = tuple(verdict.name for verdict in VERDICTS if verdict.weight == "stuck")
FailOn = Literal["loss", "quarantine", "stuck", "open"]
"""
When a reconciliation fails: if the promise was broken (``loss``), or also if a file could not be
read (``quarantine``), or also if a message is stuck at its recipient (``stuck``), or also if one is
undecided (``open``). Each includes those before it.
"""
SETTLED: Final = ("delivered_once", "late", "overdue")
"""Messages that took effect once, whose latencies are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How moving messages are distinguished from lost ones; written into every report."""

    now: int
    """The moment of the reading, in milliseconds since 1970."""
    grace: float = 900.0
    """Seconds before the reading without verdicts: files are read in turn, and messages travel."""
    late_after: float = 3600.0
    """Seconds from send to effect after which a message counts as late."""

    @classmethod
    def at_present(cls, *, grace: float = 900.0, late_after: float = 3600.0) -> Self:
        """Return the rules of a reading that begins now."""
        return cls(now=SystemClock().now(), grace=float(grace), late_after=float(late_after))

    @property
    def cutoff(self) -> int:
        """The moment after which nothing is judged."""
        return self.now - round(1000 * self.grace)

    @property
    def grace_ms(self) -> int:
        """The grace in milliseconds."""
        return round(1000 * self.grace)

    @property
    def late_ms(self) -> int:
        """The limit in milliseconds."""
        return round(1000 * self.late_after)
