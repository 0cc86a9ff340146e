"""Rank message states as numbers, with the SQLite and Spark expressions that do so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OUT_STATES: Final = ("pending", "sending", "sent", "cancelled", "dropped", "failed", "acked")
IN_STATES: Final = ("pending", "processing", "expired", "dropped", "cancelled", "processed")
OUTCOMES: Final = ("expired", "dropped", "cancelled", "dead", "processed")
"""From early to late, ranked from one; zero is none. Of two copies the later state counts."""
FILE, OUTBOX, SENT_DEAD, INBOX, MARK, TAKEN_DEAD, LOST_MARK, COPIED_INBOX = range(8)
LOGGED_OUT, LOGGED_IN, DIFFERING = 8, 9, 10
"""
A row's source: file, outbox, sender's dead letters, inbox, dedup record, recipient's dead letters.

A differing row says that a second message came under the id, with other contents.

The lost mark and the copied inbox show only what happened twice: a dedup record that its file lost
by a restore or that a differing copy has, and an acceptance by such a copy. The last two are rows
of a log whose file, read beside it, must have them too: they show only what was deleted there.
"""


def ladder(column: str, names: tuple[str, ...]) -> str:
    """Return the expression that ranks a state in *names* from one; zero for an unknown one."""
    return (
        f"CASE {column} "
        + " ".join(f"WHEN '{name}' THEN {place}" for place, name in _ranked(names))
        + " ELSE 0 END"
    )


def spelt(column: str, names: tuple[str, ...], none: str) -> str:
    """Return the expression that turns a rank back into its state."""
    return (
        f"CASE {column} "
        + " ".join(f"WHEN {place} THEN '{name}'" for place, name in _ranked(names))
        + f" ELSE '{none}' END"
    )


def _ranked(names: tuple[str, ...]) -> Iterable[tuple[int, str]]:
    """Return the names with their ranks, the last one first: most messages have ended."""
    return reversed([*enumerate(names, 1)])
