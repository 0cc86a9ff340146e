"""
Define the urgency of each state, for pages, the terminal and metrics.

Red means that a person must act now, amber that it waits and continues by itself; healthy and ended
states have no colour.
"""

from __future__ import annotations

from typing import Final, Literal

Level = Literal["act", "wait", "ok"]
"""Urgency: a person acts now, waits, or has nothing to do."""

TROUBLES: Final = ("paused", "breaker open", "dead letters", "schedule failing", "failing")
"""Words for the reasons that hold messages of an agent back, the worst first."""
OUTSIDE: Final = ("replaced", "disk full")
"""Words for what keeps an agent from working outside of its file."""
IDLE: Final = ("untaken", "undelivered")
"""Words for messages that no process handles or delivers."""
UNREADABLE: Final = "unreadable"
UNREAD: Final = "not read"
"""State of an agent whose file was not read yet."""
WELL: Final = "ok"
SEVERITY: Final = (UNREADABLE, *OUTSIDE, *TROUBLES, *IDLE, WELL, UNREAD)
"""States of agents, those that need a person first."""

ACT: Final = frozenset({UNREADABLE, *OUTSIDE, *TROUBLES}) - {"failing"} | {
    "failed", "dead", "given_up", "cannot send", "late",
}  # fmt: skip
"""States that last until a person acts."""
WAIT: Final = frozenset({
    *IDLE, "failing", "pending", "sending", "sent", "waiting", "ready", "retrying",
    "breaker half_open", "draining", "withdrawn",
})  # fmt: skip
"""States that continue by themselves: a failing lane is retried."""


def level(state: str) -> Level:
    """Return the urgency of a state; a breaker's state is passed as ``breaker open``."""
    return "act" if state in ACT else "wait" if state in WAIT else "ok"
