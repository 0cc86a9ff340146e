"""Note what a handler has handled lately, so that a like message is dropped."""

from __future__ import annotations

from typing import Final

from onceward.db.transaction import StoreTransaction
from onceward.model.clock import Millis

CLAIM: Final = """
INSERT INTO _onceward_unique_bodies (handler, digest, until_at) VALUES (:handler, :digest, :until)
ON CONFLICT (handler, digest) DO UPDATE
   SET until_at = excluded.until_at
 WHERE until_at <= :now
"""
PRUNE: Final = """
DELETE FROM _onceward_unique_bodies
 WHERE (handler, digest) IN (SELECT handler, digest
                               FROM _onceward_unique_bodies
                              WHERE until_at <= :now
                              LIMIT :limit)
"""


def claim(tx: StoreTransaction, *, handler: str, digest: bytes, span: Millis) -> bool:
    """Note a body for *span* milliseconds; return False where it is noted already."""
    named = {"handler": handler, "digest": digest, "now": tx.now, "until": tx.now + span}
    return tx.run(CLAIM, named) == 1


def prune(tx: StoreTransaction, *, limit: int) -> int:
    """Delete a slice of the notes whose span is over; return how many."""
    return tx.run(PRUNE, {"now": tx.now, "limit": limit})
