"""Record bodies that a handler handles or recently handled, to drop repetitions."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

from onceward.core.handle.attempt import Prepared
from onceward.core.rows.lanes import LeasedMessage
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import Done, Settlement

# A note belongs to its message until that is processed. If the message ends otherwise, or its row
# becomes a dead letter, the note no longer applies and needs no deletion.
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
REPEATED: Final = (
    "a message with the same type and body is pending, or was handled within unique_for"
)
THROTTLED: Final = "throttled: another message is pending, or was handled within throttle"


class UniqueBody(NamedTuple):
    """A body's digest for a handler, its message, and how many milliseconds it applies."""

    handler: str
    digest: bytes
    seq: int
    span: Millis
    throttled: bool = False
    """Whether the digest is that of a key."""


def claim(tx: StoreTransaction, body: UniqueBody) -> bool:
    """
    Record the body of a message before its handler is called; return False for a repetition.

    A repetition has the body of another message that is pending, or was processed within the span.
    """
    return tx.run(CLAIM, _named(tx, body)) == 1


def keep(tx: StoreTransaction, body: UniqueBody) -> None:
    """Make a note apply for its span from now: its message is processed."""
    tx.run(KEEP, _named(tx, body))


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of expired notes; return how many."""
    del before  # each note has its own expiry
    return tx.run(PRUNE, {"now": tx.now, "limit": limit})


def _named(tx: StoreTransaction, body: UniqueBody) -> dict[str, object]:
    return {**body._asdict(), "now": tx.now, "until": tx.now + body.span}


class UniqueBodies:
    """
    Drops a message with the type and body of another one, for handlers with ``unique_for``.

    For handlers with ``throttle``, one with the key of another one.
    """

    def note(self, ready: Prepared, leased: LeasedMessage) -> UniqueBody | None:
        """Return the note of a message; None if its handler accepts repetitions."""
        rules = ready.handler.rules
        if rules.unique_for is not None:
            return unique_body(ready, leased)
        return None if rules.throttle is None else throttled(ready, leased)

    def claim(self, tx: StoreTransaction, note: UniqueBody) -> Settlement | None:
        """Record the body of a message before its call; return the settlement of a repetition."""
        if claim(tx, note):
            return None
        return Done("dropped", THROTTLED if note.throttled else REPEATED)

    def keep(self, tx: StoreTransaction, note: UniqueBody) -> None:
        """Make the note apply, in the commit that settles its message."""
        keep(tx, note)


def unique_body(ready: Prepared, leased: LeasedMessage) -> UniqueBody:
    """Return the note of a message: repetitions have the same handler, type and body."""
    rules, frame = ready.handler.rules, ready.frame
    like = sha256(repr((frame.type, frame.content)).encode()).digest()
    return UniqueBody(ready.handler.pattern, like, leased.seq, rules.unique_for or 0)


def throttled(ready: Prepared, leased: LeasedMessage) -> UniqueBody:
    """Return the note of a message: the key takes the place of type and body."""
    rules, frame = ready.handler.rules, ready.frame
    try:
        key = "" if rules.key is None else rules.key.of(frame, ready.body)
    except Exception:  # noqa: BLE001 - the claim has logged it
        key = ""
    like = sha256(repr(("throttle", key)).encode()).digest()
    return UniqueBody(ready.handler.pattern, like, leased.seq, rules.throttle or 0, throttled=True)
