"""
Store bodies once: long ones, and those that many messages share.

A frame that refers to a stored body ends before its data.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from onceward.file.transaction import StoreTransaction
from onceward.message.frame import BODY_ERROR, digest

INSERT: Final = "INSERT INTO _onceward_bodies (text, digest) VALUES (?, ?) RETURNING body_id"
RELEASE: Final = "DELETE FROM _onceward_bodies WHERE body_id = ?"
RELEASE_UNUSED: Final = """
DELETE FROM _onceward_bodies
 WHERE body_id = ?1 AND NOT EXISTS (SELECT 1 FROM _onceward_outbox WHERE body_id = ?1)
"""
MISSING: Final = f'null,"{BODY_ERROR}":"missing"'
"""Placeholder of a body that is gone: its message is delivered nevertheless."""
FULL_FRAME: Final = f"""
CASE WHEN o.body_id IS NULL THEN o.frame
     ELSE o.frame
          || coalesce((SELECT b.text FROM _onceward_bodies AS b WHERE b.body_id = o.body_id),
                      '{MISSING}')
          || '}}' END
"""
"""The frame of outbox AS o, with its body."""
BODY_DIGEST: Final = "(SELECT b.digest FROM _onceward_bodies AS b WHERE b.body_id = o.body_id)"


def insert_body(tx: StoreTransaction, text: str) -> int:
    """Store a body and return its number; it is deleted with the last message that uses it."""
    [(body_id,)] = tx.rows(INSERT, (text, digest(text)))
    return int(body_id)


def release_body(tx: StoreTransaction, body_id: int) -> None:
    """Take back a body that no message refers to after all."""
    tx.run(RELEASE, (body_id,))


def split_digest(head: str, body_digest: bytes) -> bytes:
    """Return 128 bits over a frame's head and the digest of its body, which is computed once."""
    return sha256(head.encode() + body_digest).digest()[:16]
