"""Note what a handler handles, and has handled lately, so that a like message is dropped."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

from onceward.core.handle.inbox import LeasedMessage
from onceward.core.handle.invoke import Prepared
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import Done, Settlement

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
REPEATED: Final = "a message with the same type and body is to be handled, or was within unique_for"


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
    """Let a note hold for its span from now: its message is processed."""
    tx.run(KEEP, _named(tx, body))


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of the notes that hold no longer; return how many."""
    del before  # each note says itself how long it holds
    return tx.run(PRUNE, {"now": tx.now, "limit": limit})


def _named(tx: StoreTransaction, body: UniqueBody) -> dict[str, object]:
    return {**body._asdict(), "now": tx.now, "until": tx.now + body.span}


class UniqueBodies:
    """Drops a message with the type and body of another, of handlers that say ``unique_for``."""

    def note(self, ready: Prepared, leased: LeasedMessage) -> UniqueBody | None:
        """Return the note of a message, None where its handler takes every one."""
        return None if ready.handler.rules.unique_for is None else unique_body(ready, leased)

    def claim(self, tx: StoreTransaction, note: UniqueBody) -> Settlement | None:
        """Note the body of a message before its call; return how a repetition of one ends."""
        return None if claim(tx, note) else Done("dropped", REPEATED)

    def keep(self, tx: StoreTransaction, note: UniqueBody) -> None:
        """Let the note hold, in the commit that settles its message."""
        keep(tx, note)


def unique_body(ready: Prepared, leased: LeasedMessage) -> UniqueBody:
    """Return the note of a message: like ones have the same handler, type and body."""
    rules, frame = ready.handler.rules, ready.frame
    like = sha256(repr((frame.type, frame.data, frame.data_base64)).encode()).digest()
    return UniqueBody(ready.handler.pattern, like, leased.seq, rules.unique_for or 0)
