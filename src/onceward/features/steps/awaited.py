"""Keep awaited messages until a step of their session takes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from onceward.core.rows import declarations, lanes, senders
from onceward.file.database import Database
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.body import BYTES, encode
from onceward.message.clock import Millis
from onceward.message.frame import Frame

KEEP: Final = """
INSERT INTO _onceward_awaited_messages (session, type, sender, message_id, media, body, came_at)
SELECT :session, :type, :sender, :id, :media, :body, :now
 WHERE EXISTS (SELECT 1 FROM _onceward_awaited_types WHERE type = :type)
"""
# The commit that stores it makes its waiting handlers due.
WAITING: Final = """
SELECT DISTINCT b.lane_id
  FROM _onceward_steps AS s
  JOIN _onceward_inbox AS b
    ON b.sender = s.sender AND b.id = s.message_id AND b.state = 'pending'
 WHERE s.awaits = :type AND s.awaits IS NOT NULL AND s.state = 'waiting' AND b.session = :session
"""
WAITS_HERE: Final = """
SELECT 1 FROM _onceward_awaited_messages WHERE session = ? AND type = ? LIMIT 1
"""
TAKE: Final = """
DELETE FROM _onceward_awaited_messages
 WHERE seq = (SELECT min(seq) FROM _onceward_awaited_messages WHERE session = ? AND type = ?)
RETURNING media, body
"""
# The row of the inbox goes first: while it is there, it shows that no step has taken the message.
PRUNE: Final = """
DELETE FROM _onceward_awaited_messages
 WHERE seq IN (SELECT seq
                 FROM _onceward_awaited_messages AS k
                WHERE came_at < :before
                  AND NOT EXISTS (SELECT 1 FROM _onceward_inbox AS b
                                   WHERE b.sender = k.sender AND b.id = k.message_id)
                ORDER BY came_at LIMIT :limit)
RETURNING sender, message_id
"""


FRAME: Final = "application/cloudevents+json"
"""Media type of a kept frame, whose body is stored outside of it."""


class AwaitedBody(NamedTuple):
    """The body of a message for which a step has waited."""

    media: str
    text: str


def declare(db: Database, types: Collection[str]) -> None:
    """Declare the types that handlers of this agent wait for, replacing earlier ones."""
    if declarations.awaited(db.read) != set(types):
        db.write(lambda tx: declarations.set_awaited(tx, types))


def keep(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Keep a message of an awaited type, and wake its handlers; return whether it was one."""
    kept = _as_kept(frame)
    named = {
        "session": frame.session,
        "type": frame.type,
        "sender": sender,
        "id": frame.id,
        "media": kept.media,
        "body": kept.text,
        "now": tx.now,
    }
    if not tx.run(KEEP, named):
        return False
    waiting = tx.rows(WAITING, {"type": frame.type, "session": frame.session})
    if waiting:
        lanes.hurry(tx, [lane_id for (lane_id,) in waiting])
    return True


def _as_kept(frame: Frame) -> AwaitedBody:
    """Return a message's body; the whole frame if its body is stored outside of it."""
    if frame.dataref is not None:
        return AwaitedBody(FRAME, frame.model_dump_json(exclude_unset=True))
    if frame.data_base64 is not None:
        return AwaitedBody(BYTES, encode(frame.data_base64).text)
    return AwaitedBody(frame.datacontenttype, encode(frame.data).text)


def is_there(read: Rows, session: str, type_name: str) -> bool:
    """Return whether there is a message of a type that no step has taken."""
    return bool(read(WAITS_HERE, (session, type_name)))


def take(tx: StoreTransaction, session: str, type_name: str) -> AwaitedBody | None:
    """Take the oldest message of a type in a session; return None if there is none."""
    rows = tx.rows(TAKE, (session, type_name))
    found = AwaitedBody(*rows[0]) if rows else None
    if found is not None and found.media == FRAME:
        return _as_kept(Frame.parse(found.text).with_stored_body())
    return found


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of the messages that no step took in time; return how many."""
    gone = tx.rows(PRUNE, {"before": before, "limit": limit})
    senders.mark_dropped(tx, gone)
    return len(gone)
