"""States as numbers: how far a message has come on either side, and the expressions, of SQLite and of Spark, that rank and spell them."""

from __future__ import annotations

from typing import Final

OUT_STATES: Final = ("pending", "sending", "sent", "cancelled", "failed", "acked")
IN_STATES: Final = ("pending", "processing", "expired", "dropped", "processed")
OUTCOMES: Final = ("expired", "dropped", "dead", "processed")
"""From early to late, ranked from one; zero is none. Of two copies of a file the one that has come further is believed."""
FILE, OUTBOX, SENT_DEAD, INBOX, MARK, TAKEN_DEAD = range(6)
"""Whose word a row is: the file's own, the outbox, the sender's dead letters, the inbox, a mark, the recipient's dead letters."""


def ladder(column: str, names: tuple[str, ...]) -> str:
    """Return the expression that ranks a state by its place in *names*, from one; zero for one that is not known here."""
    return (
        f"CASE {column} "
        + " ".join(f"WHEN '{name}' THEN {place}" for place, name in enumerate(names, 1))
        + " ELSE 0 END"
    )


def spelt(column: str, names: tuple[str, ...], none: str) -> str:
    """Return the expression that turns a rank back into its state."""
    return (
        f"CASE {column} "
        + " ".join(f"WHEN {place} THEN '{name}'" for place, name in enumerate(names, 1))
        + f" ELSE '{none}' END"
    )
