"""
Record messages that came a second time under their id, with other contents.

The first one stays. A handler that asks a clock or a model, and is called again after a restore of
its file, sends such a message. Both files have a record, kept for the retention.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

NOTE: Final = """
INSERT INTO _onceward_differing_messages (box, peer, id, noticed_at) VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
PRUNE: Final = """
DELETE FROM _onceward_differing_messages
 WHERE seq IN (SELECT seq FROM _onceward_differing_messages WHERE noticed_at < ? LIMIT ?)
"""


def note(
    tx: StoreTransaction, box: Literal["outbox", "inbox"], peer: str, ids: Iterable[str]
) -> tuple[str, ...]:
    """Record messages of a peer, each once; return those that were not recorded."""
    return tuple(each for each in ids if tx.run(NOTE, (box, peer, each, tx.now)))


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of the records from before a moment; return how many."""
    return tx.run(PRUNE, (before, limit))
