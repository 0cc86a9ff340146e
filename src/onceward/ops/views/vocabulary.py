"""
Say what each state means for a person: one list of words for pages, the terminal and metrics.

Red is for what a person acts on now, amber for what waits and goes on by itself; what is
well, and what has ended, is quiet.
"""

from __future__ import annotations

from typing import Final, Literal

Level = Literal["act", "wait", "ok"]
"""Urgency: a person acts now, waits, or has nothing to do."""

TROUBLES: Final = ("paused", "breaker open", "dead letters", "schedule failing", "failing")
"""Words for each thing that holds messages of an agent back, the worst first."""
UNREADABLE: Final = "unreadable"
UNREAD: Final = "not read"
"""State of an agent whose file's turn has not come."""
WELL: Final = "ok"
SEVERITY: Final = (UNREADABLE, *TROUBLES, WELL, UNREAD)
"""States of agents, those that need a person first."""

ACT: Final = frozenset({UNREADABLE, *TROUBLES, "failed", "dead", "given_up"}) - {"failing"} | {
    "cannot send", "late",
}  # fmt: skip
"""States that last until a person acts."""
WAIT: Final = frozenset({
    "failing", "pending", "sending", "sent", "waiting", "ready", "retrying", "breaker half_open",
    "draining", "withdrawn",
})  # fmt: skip
"""States that go on by themselves: a lane that fails is tried again."""


def level(state: str) -> Level:
    """Return how urgent a state is; that of a breaker is asked for as ``breaker open``."""
    return "act" if state in ACT else "wait" if state in WAIT else "ok"
