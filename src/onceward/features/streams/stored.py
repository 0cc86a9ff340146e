"""Store the output of a message's handler in batches, each under the lease of the message."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceward.core.handle.call import CallHome
from onceward.errors import LeaseLost
from onceward.file.sql_parts import orphaned
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.names import byte_length

TAILS: Final = """
SELECT name, max(last), sum(length(replace(kinds, 'r', ''))), sum(bytes)
  FROM _onceward_output_batches
 WHERE message_id = ? AND sender = ?
 GROUP BY name
"""
# The storing statement proves the lease: a late worker adds nothing. A batch whose COMMIT had an
# unknown outcome is stored again, with the chunks added since.
ADD: Final = """
INSERT INTO _onceward_output_batches (sender, message_id, name, first, last, kinds, chunks, bytes,
                                      attempt, stored_at)
SELECT b.sender, b.id, :name, :first, :last, :kinds, :chunks, :bytes, :attempt, :now
  FROM _onceward_lanes AS l JOIN _onceward_inbox AS b ON b.seq = :seq AND b.state = 'pending'
 WHERE l.lane_id = :lane AND l.token = :token AND l.owner = :owner
ON CONFLICT (message_id, sender, first) DO UPDATE
   SET last = excluded.last, kinds = excluded.kinds, chunks = excluded.chunks,
       bytes = excluded.bytes, stored_at = excluded.stored_at
"""
# The chunks of a stream before its restart are invalid: retries do not accumulate.
VOID: Final = """
DELETE FROM _onceward_output_batches
 WHERE message_id = :id AND sender = :sender AND name = :name AND last < :first
"""
PRUNE: Final = orphaned("_onceward_output_batches", "stored_at")
JSON: Final = "j"
BYTES: Final = "b"
RESTART: Final = "r"
"""Letters of ``kinds``: a JSON chunk, a bytes chunk, and the mark of a restart."""


class Batch(NamedTuple):
    """Chunks of one stream that follow each other."""

    name: str
    first: int
    """Position of its first chunk among all chunks of the message, from 1."""
    kinds: list[str]
    texts: list[str]
    """Its chunks as JSON."""

    @property
    def size(self) -> int:
        """Return the bytes of its chunks."""
        pairs = zip(self.kinds, self.texts, strict=True)
        return sum(byte_length(text) for kind, text in pairs if kind != RESTART)


class Tail(NamedTuple):
    """The part of a stream that earlier calls of the handler stored."""

    last: int
    """Position of its last chunk."""
    chunks: int
    bytes: int


def tails(read: Rows, sender: str, message_id: str) -> dict[str, Tail]:
    """Return the stored output of earlier calls, by stream name."""
    return {name: Tail(*rest) for name, *rest in read(TAILS, (message_id, sender))}


def add(tx: StoreTransaction, *, home: CallHome, batches: list[Batch]) -> None:
    """
    Store chunks.

    Raises:
        LeaseLost: another worker handles the message; roll the transaction back.

    """
    lane, token, owner = home.lease[:3]
    about = {"seq": home.leased.seq, "lane": lane, "token": token, "owner": owner}
    for each in batches:
        named = about | {
            "name": each.name,
            "first": each.first,
            "last": each.first + len(each.kinds) - 1,
            "kinds": "".join(each.kinds),
            "chunks": f"[{','.join(each.texts)}]",
            "bytes": each.size,
            "attempt": home.leased.attempt,
            "now": tx.now,
        }
        if not tx.run(ADD, named):
            msg = f"chunks of stream {each.name} were not stored: another worker has the message"
            raise LeaseLost(msg)
        if RESTART in each.kinds:
            about_message = {"id": home.leased.id, "sender": home.leased.sender}
            tx.run(VOID, about_message | {"name": each.name, "first": each.first})


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of the chunks whose messages no longer exist; return how many."""
    return tx.run(PRUNE, {"before": before, "limit": limit})
