"""Count totals that survive pruning, in the transaction of the transition they count."""

from __future__ import annotations

from typing import Final

from onceward.file.transaction import StoreTransaction

BUMP: Final = "UPDATE _onceward_counters SET value = value + ? WHERE name = ?"


def bump(tx: StoreTransaction, **deltas: int) -> None:
    """Add each delta to the counter of its name; zero costs nothing."""
    changed: list[tuple[int, str]] = []
    for name, delta in deltas.items():
        if delta:
            changed.append((delta, name))
    if changed:
        tx.many(BUMP, changed)
