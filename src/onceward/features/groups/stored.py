"""
Write groups and their messages.

Invariant: ``open`` counts the messages of a group that have not ended. The commit that ends the
last one sets ``due_at``, and the commit that clears ``due_at`` sends the group's message.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.ids import RepeatableIds
from onceward.message.record import GroupInfo

MESSAGES_TOLD: Final = 1000
FAILURES_TOLD: Final = 100
"""Maximum ids, and failures, that the message of a group names."""
JOIN: Final = "INSERT INTO _onceward_group_messages (message_id, group_id) VALUES (?, ?)"
# A limit may have dropped some of its messages in the same transaction: their tickets have ended.
DROPPED: Final = """
UPDATE _onceward_group_messages
   SET ended_at = :now,
       reason = (SELECT reason FROM _onceward_pending_replies WHERE id = message_id)
 WHERE group_id = :id AND ended_at IS NULL
   AND message_id IN (SELECT t.id
                        FROM _onceward_group_messages AS m
                        JOIN _onceward_pending_replies AS t ON t.id = m.message_id
                       WHERE m.group_id = :id AND t.state <> 'open')
"""
OPEN: Final = """
INSERT INTO _onceward_groups
       (id, session, recipient, type, data, sent, open, failed, due_at, created_at)
SELECT :id, :session, :recipient, :type, :data, count(*), count(*) - count(ended_at),
       count(reason), CASE WHEN count(*) = count(ended_at) THEN :now END, :now
  FROM _onceward_group_messages WHERE group_id = :id
"""
DUE: Final = """
SELECT id, session, recipient, type, data, sent, failed
  FROM _onceward_groups WHERE due_at <= ? ORDER BY due_at LIMIT 100
"""
MESSAGES: Final = f"""
SELECT message_id FROM _onceward_group_messages WHERE group_id = ?
 ORDER BY message_id LIMIT {MESSAGES_TOLD}
"""
FAILURES: Final = f"""
SELECT message_id, reason FROM _onceward_group_messages
 WHERE group_id = ? AND reason IS NOT NULL ORDER BY message_id LIMIT {FAILURES_TOLD}
"""
# Of several processes one sends the message.
END: Final = """
UPDATE _onceward_groups
   SET ended_at = :now, due_at = NULL, message_id = :message_id, last_error = NULL
 WHERE id = :id AND due_at IS NOT NULL
"""
PUT_OFF: Final = """
UPDATE _onceward_groups SET due_at = :until_at, last_error = :error
 WHERE id = :id AND due_at IS NOT NULL
"""
LIST: Final = """
SELECT id, session, recipient, type, sent, open, failed, created_at, ended_at, message_id,
       last_error, data
  FROM _onceward_groups WHERE :id IS NULL OR id = :id ORDER BY id DESC LIMIT :limit
"""
PRUNE_MESSAGES: Final = """
DELETE FROM _onceward_group_messages
 WHERE message_id IN (SELECT m.message_id
                        FROM _onceward_groups AS g
                        JOIN _onceward_group_messages AS m ON m.group_id = g.id
                       WHERE g.ended_at < :before
                       LIMIT :limit)
"""
PRUNE: Final = """
DELETE FROM _onceward_groups
 WHERE id IN (SELECT id FROM _onceward_groups AS g
               WHERE ended_at < :before
                 AND NOT EXISTS (SELECT 1 FROM _onceward_group_messages WHERE group_id = g.id)
               LIMIT :limit)
"""


class NewGroup(NamedTuple):
    """A group that is being sent."""

    id: str
    session: str
    recipient: str
    type: str
    data: str
    """Data of its message, as JSON."""


class DueGroup(NamedTuple):
    """A group all of whose messages have ended."""

    id: str
    session: str
    recipient: str
    type: str
    data: str
    sent: int
    failed: int


def repeated_id(tx: StoreTransaction, ids: RepeatableIds | None, then: str) -> str | None:
    """Return the id of a handler's group; None for a new one, as after a replay."""
    found = None if ids is None else ids(then, "group")
    return None if tx.rows("SELECT 1 FROM _onceward_groups WHERE id = ?", (found,)) else found


def join(tx: StoreTransaction, group: str, message_id: str) -> None:
    """Make a request that the same transaction sends a message of a group."""
    tx.run(JOIN, (message_id, group))


def add(tx: StoreTransaction, group: NewGroup) -> None:
    """Store a group, once all of its messages have joined."""
    tx.run(DROPPED, {"id": group.id, "now": tx.now})
    tx.run(OPEN, {**group._asdict(), "now": tx.now})


def due(read: Rows, now: Millis) -> list[DueGroup]:
    """Return groups all of whose messages have ended."""
    return [DueGroup(*row) for row in read(DUE, (now,))]


def messages(read: Rows, group: str) -> list[str]:
    """Return the ids of the messages of a group, in order."""
    return [message_id for (message_id,) in read(MESSAGES, (group,))]


def failures(read: Rows, group: str) -> dict[str, str]:
    """Return why messages of a group failed, by their ids."""
    return dict(read(FAILURES, (group,)))


def end(tx: StoreTransaction, group: str, message_id: str) -> bool:
    """End a group whose message the same transaction sends; return False if it has ended."""
    return tx.run(END, {"id": group, "message_id": message_id, "now": tx.now}) > 0


def put_off(tx: StoreTransaction, *, group: str, error: str, until_at: Millis) -> None:
    """Let the message of a group that could not be sent wait."""
    tx.run(PUT_OFF, {"id": group, "error": error[:500], "until_at": until_at})


def listed(read: Rows, limit: int, group: str | None = None) -> list[GroupInfo]:
    """Return groups, the newest first."""
    rows = read(LIST, {"id": group, "limit": limit})
    return [GroupInfo(*(*row[:-1], json.loads(row[-1]))) for row in rows]


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of the groups that ended before *before*; return how many rows."""
    named: dict[str, Any] = {"before": before, "limit": limit}
    return tx.run(PRUNE_MESSAGES, named) or tx.run(PRUNE, named)
