"""Note what a handler handles, and has handled lately, so that a like message is dropped."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

# A note is bound to its message until that is processed. Where the message ends in another way,
# or its row is gone with a dead letter, the note holds no longer: nothing has to delete it.
PENDING: Final = """
EXISTS (SELECT 1
          FROM _onceward_inbox AS b
         WHERE b.seq = _onceward_unique_bodies.seq AND b.state = 'pending')
"""
CLAIM: Final = f"""
INSERT INTO _onceward_unique_bodies (handler, digest, until_at, seq)
VALUES (:handler, :digest, :until, :seq)
ON CONFLICT (handler, digest) DO UPDATE
   SET until_at = excluded.until_at, seq = excluded.seq
 WHERE seq = excluded.seq
    OR CASE WHEN seq IS NULL THEN until_at <= :now ELSE NOT {PENDING} END
"""
KEEP: Final = """
UPDATE _onceward_unique_bodies SET until_at = :until, seq = NULL
 WHERE handler = :handler AND digest = :digest AND seq = :seq
"""
PRUNE: Final = f"""
DELETE FROM _onceward_unique_bodies
 WHERE (handler, digest) IN (SELECT handler, digest
                               FROM _onceward_unique_bodies
                              WHERE until_at <= :now AND NOT {PENDING}
                              LIMIT :limit)
"""


class UniqueBody(NamedTuple):
    """A body as a handler notes it, the message that has it, and for how many milliseconds."""

    handler: str
    digest: bytes
    seq: int
    span: Millis


def claim(tx: StoreTransaction, body: UniqueBody) -> bool:
    """
    Note the body of a message that is about to be handled; return False for a repetition.

    That is one of another message that is pending, or was processed within the span.
    """
    return tx.run(CLAIM, _named(tx, body)) == 1


def keep(tx: StoreTransaction, body: UniqueBody) -> None:
    """Let a note hold for its span from now on: its message is processed."""
    tx.run(KEEP, _named(tx, body))


def prune(tx: StoreTransaction, *, limit: int) -> int:
    """Delete a slice of the notes that hold no longer; return how many."""
    return tx.run(PRUNE, {"now": tx.now, "limit": limit})


def _named(tx: StoreTransaction, body: UniqueBody) -> dict[str, object]:
    return {**body._asdict(), "now": tx.now, "until": tx.now + body.span}
