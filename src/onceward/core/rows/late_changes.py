"""Delete old notes of rows that changed after they had ended; triggers of the schema write them."""

from __future__ import annotations

from typing import Final

from onceward.file.transaction import StoreTransaction

# A reader that returns after more late changes than these compares all rows.
KEPT: Final = 100_000
PRUNE: Final = f"""
DELETE FROM _onceward_late_changes
 WHERE seq IN (SELECT seq
                 FROM _onceward_late_changes
                WHERE seq <= (SELECT max(seq) FROM _onceward_late_changes) - {KEPT}
                ORDER BY seq LIMIT ?)
"""


def prune(tx: StoreTransaction, limit: int) -> int:
    """Delete a slice of the oldest notes; return how many."""
    return tx.run(PRUNE, (limit,))
