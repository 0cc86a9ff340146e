"""Delete what the limits of handlers no longer need."""

from __future__ import annotations

from onceward.features.handler_limits import rates, unique_bodies
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of the expired notes and full buckets; return how many."""
    notes = unique_bodies.prune(tx, before=before, limit=limit)
    return notes + rates.prune(tx, before=before, limit=limit)
