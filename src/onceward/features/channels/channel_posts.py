"""Store a file's channel data: posts, held messages, tasks, acknowledgments, history."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from onceward.core.rows import inbox, outbox
from onceward.errors import refuse
from onceward.features.channels.directory import ChannelInfo
from onceward.file import identity
from onceward.file.database import Database
from onceward.file.sql_parts import columns
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.handler_work import Acknowledgment

TASKS: Final = "SELECT kind, name, position, held FROM _onceward_background_tasks"
TASK: Final = f"{TASKS} WHERE kind = ? AND name = ?"
START: Final = """
INSERT INTO _onceward_background_tasks (kind, name, position)
VALUES (?, ?, ?)
ON CONFLICT DO NOTHING
"""
ADVANCE: Final = """
UPDATE _onceward_background_tasks SET position = max(position, :position)
 WHERE kind = :kind AND name = :name
"""
HOLD: Final = "UPDATE _onceward_background_tasks SET held = 1 WHERE kind = 'channel' AND name = ?"
LET_GO: Final = "UPDATE _onceward_background_tasks SET held = 0 WHERE kind = 'channel' AND name = ?"
DONE: Final = "DELETE FROM _onceward_background_tasks WHERE kind = 'channel' AND name = ?"
KEEP: Final = """
INSERT INTO _onceward_retained_posts (channel, session, lane, type, topic, kind, rank, expires_at,
                                      correlation_id, head, tail, body_id, size, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
KNOWN: Final = "SELECT 1 FROM _onceward_retained_posts WHERE channel = ? AND correlation_id = ?"
RETAINED: Final = """
SELECT session, lane, type, topic, kind, rank, expires_at, correlation_id, head, tail, p.body_id,
       created_at, b.digest
  FROM _onceward_retained_posts AS p JOIN _onceward_bodies AS b ON b.body_id = p.body_id
 WHERE channel = ? AND (expires_at IS NULL OR expires_at > ?)
 ORDER BY number
"""
TOO_OLD: Final = "DELETE FROM _onceward_retained_posts WHERE channel = ? AND created_at < ?"
TOO_MANY: Final = """
DELETE FROM _onceward_retained_posts
 WHERE channel = ?1
   AND number <= (SELECT number
                    FROM _onceward_retained_posts
                   WHERE channel = ?1
                   ORDER BY number DESC LIMIT 1 OFFSET ?2)
"""
TOO_MUCH: Final = """
DELETE FROM _onceward_retained_posts WHERE channel = ?1 AND number <= (
    SELECT max(number)
      FROM (SELECT number, sum(size) OVER (ORDER BY number DESC) AS total
              FROM _onceward_retained_posts
             WHERE channel = ?1)
     WHERE total > ?2)
"""
FORGET: Final = "DELETE FROM _onceward_retained_posts WHERE channel = ?"
UNDER_WAY: Final = """
SELECT count(*)
  FROM _onceward_outbox
 WHERE channel = ? AND ended_at IS NULL AND held_by IS NULL
"""
WAITING: Final = """
SELECT seq
  FROM _onceward_outbox
 WHERE channel = ? AND ended_at IS NULL AND held_by = 'channel:' || channel
 ORDER BY seq
"""
ASKED: Final = """
SELECT sender, expires_at
  FROM _onceward_inbox
 WHERE correlation_id = ?1 AND channel = ?2 AND kind = ?3
UNION ALL
SELECT NULL, expires_at
  FROM _onceward_outbox
 WHERE correlation_id = ?1 AND channel = ?2 AND kind = ?3
LIMIT 1
"""

# In the directory: notices that this agent must send; in its own file: dead letters.
NOTICES: Final = """
SELECT number, topic, body
  FROM system_notices
 WHERE agent = ? AND number > ?
 ORDER BY number LIMIT 100
"""
TOLD: Final = "DELETE FROM system_notices WHERE agent = ? AND number <= ?"
DEAD_LETTERS: Final = """
SELECT seq, id, origin, peer, session, type, reason, coalesce(last_error, ''), attempts
  FROM _onceward_dead_letters
 WHERE seq > ? AND (topic IS NULL OR topic NOT GLOB '_system.*')
 ORDER BY seq LIMIT 100
"""
ALL_TOLD: Final = """
DELETE FROM _onceward_background_tasks
 WHERE kind = 'dead_letters' AND name = ''
   AND NOT EXISTS (SELECT 1 FROM _onceward_dead_letters AS d
                    WHERE d.seq > position
                      AND (d.topic IS NULL OR d.topic NOT GLOB '_system.*'))
"""
LAST_DEAD_LETTER: Final = "SELECT coalesce(max(seq), 0) FROM _onceward_dead_letters"
TELLING: Final = "SELECT 1 FROM _onceward_background_tasks WHERE kind = 'notices'"


def start(tx: StoreTransaction, kind: str, name: str, position: int) -> None:
    """Start a background task at *position*; an existing one keeps its own."""
    tx.run(START, (kind, name, position))


class Task(NamedTuple):
    """A background task and its progress."""

    kind: str
    name: str
    position: int
    held: int
    """Whether messages wait for it."""


def tasks(read: Rows) -> list[Task]:
    """Return all background tasks."""
    return [Task(*row) for row in read(TASKS, ())]


def task(tx: StoreTransaction, kind: str, name: str) -> Task | None:
    """Return a background task; None if there is none."""
    return next((Task(*row) for row in tx.rows(TASK, (kind, name))), None)


def advance(tx: StoreTransaction, kind: str, name: str, position: int) -> None:
    """Store the position of a task."""
    tx.run(ADVANCE, {"position": position, "kind": kind, "name": name})


def end_tasks(tx: StoreTransaction, channel: str) -> None:
    """End the tasks of a channel, and delete its retained posts."""
    tx.run(FORGET, (channel,))
    tx.run(DONE, (channel,))


def hold(tx: StoreTransaction, channel: str) -> None:
    """Record that messages wait for a channel."""
    tx.run(HOLD, (channel,))


def is_retained(tx: StoreTransaction, channel: str, correlation_id: str | None) -> bool:
    """Return whether a channel retains a post of a conversation."""
    return bool(tx.rows(KNOWN, (channel, correlation_id)))


def notices(read: Rows, agent: str, after: int) -> list[tuple[int, str, str]]:
    """Return the next notices of a home (number, topic, body) that an agent must send."""
    return [(number, topic, body) for number, topic, body in read(NOTICES, (agent, after))]


def forget_notices(tx: StoreTransaction, agent: str, upto: int) -> None:
    """Delete the notices of a home that an agent has sent."""
    tx.run(TOLD, (agent, upto))


def is_telling(read: Rows) -> bool:
    """Return whether this agent sends notices."""
    return bool(read(TELLING, ()))


def last_dead_letter(read: Rows) -> int:
    """Return the sequence of the newest dead letter; 0 if there is none."""
    return int(read(LAST_DEAD_LETTER, ())[0][0])


def next_dead_letters(read: Rows, after: int) -> list[tuple[Any, ...]]:
    """Return the next dead letters to notify about, their sequence first."""
    return read(DEAD_LETTERS, (after,))


def end_telling(tx: StoreTransaction) -> None:
    """End the task that notifies about dead letters once none is left."""
    tx.run(ALL_TOLD)


def keep(tx: StoreTransaction, values: tuple[Any, ...]) -> None:
    """Store a retained post, whose body is already stored."""
    tx.run(KEEP, values)


def trim(tx: StoreTransaction, found: ChannelInfo) -> None:
    """Delete the oldest posts above the channel's retention, and those of one before it."""
    channel, config, oldest = found.name, found.config, found.created_at
    if config.retain_for is not None:
        oldest = max(oldest, tx.now - round(1000 * config.retain_for))
    tx.run(TOO_OLD, (channel, oldest))
    if config.retain_count is not None:
        tx.run(TOO_MANY, (channel, config.retain_count))
    if config.retain_bytes is not None:
        tx.run(TOO_MUCH, (channel, config.retain_bytes))


class RetainedPost(NamedTuple):
    """A post that a channel retains for later members; its body is stored once."""

    session: str
    lane: str
    type: str
    topic: str | None
    kind: str
    rank: int
    expires_at: Millis | None
    correlation_id: str | None
    head: str
    tail: str
    body_id: int
    created_at: Millis
    body_digest: bytes


def retained(tx: StoreTransaction, channel: str) -> list[RetainedPost]:
    """Return the retained posts of a channel, oldest first."""
    return [RetainedPost(*row) for row in tx.rows(RETAINED, (channel, tx.now))]


def held_by(channel: str) -> str:
    """Return the value of ``held_by`` for messages that a channel holds."""
    return f"channel:{channel}"


def under_way(tx: StoreTransaction, channel: str) -> int:
    """Return how many of our messages to a channel have not ended and are not held."""
    return int(tx.rows(UNDER_WAY, (channel,))[0][0])


def release(tx: StoreTransaction, channel: str, limit: int) -> int:
    """Release the oldest held messages, *limit* of them (-1: all); return how many."""
    count = outbox.free_of_channel(tx, channel, limit)
    if not tx.rows(WAITING + " LIMIT 1", (channel,)):
        tx.run(LET_GO, (channel,))
    return count


class Asked(NamedTuple):
    """A message that began a conversation: its sender (None: us) and when it expires."""

    sender: str | None
    expires_at: Millis | None


def asked(tx_rows: Any, correlation_id: str, channel: str, kind: str) -> Asked | None:
    """Return the message of that kind that began a conversation, or None."""
    found = tx_rows(ASKED, (correlation_id, channel, kind))
    return Asked(*found[0]) if found else None


NEWEST_TO_GO: Final = """
SELECT seq FROM _onceward_{box} WHERE channel = ? ORDER BY seq DESC LIMIT 1 OFFSET ?
"""
HISTORY: Final = {"outbox": outbox.ENDED, "inbox": inbox.ENDED}


def prune_history(tx: StoreTransaction, channel: str, *, count: int, limit: int) -> int:
    """
    Delete a slice of a channel's ended messages, except the newest *count* of each box.

    Return how many; 0 if none is left to delete.
    """
    gone = 0
    for box, rows in HISTORY.items():
        found = tx.rows(NEWEST_TO_GO.format(box=box), (channel, count))
        ended = rows.remove_of_channel(tx, channel, upto=found[0][0], limit=limit) if found else []
        gone += len(ended)
        if ended and box == "outbox":
            identity.note_pruned(tx, max(ended) + 1)
    return gone


ACKNOWLEDGMENT: Final = "acknowledgment"
STAGES: Final = {"received": 1, "in_progress": 2, "failed": 3, "completed": 4}
"""Order of acknowledgments; ``failed`` precedes ``completed``, as a later attempt may succeed."""
DETAIL_MAX: Final = 2000
OURS: Final = """
SELECT 1 FROM _onceward_outbox WHERE id = ?1 AND recipient = ?2
UNION ALL
SELECT 1 FROM _onceward_acknowledgments WHERE message_id = ?1 AND participant = ?2
"""
OLD_ACKNOWLEDGMENTS: Final = """
DELETE FROM _onceward_acknowledgments
 WHERE (message_id, participant) IN (
     SELECT message_id, participant
       FROM _onceward_acknowledgments AS a
      WHERE at < :before
        AND NOT EXISTS (SELECT 1 FROM _onceward_outbox AS o WHERE o.id = a.message_id)
      LIMIT :limit)
"""
ACKNOWLEDGED: Final = """
INSERT INTO _onceward_acknowledgments (message_id, participant, stage, detail, first_at, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT (message_id, participant) DO UPDATE
   SET stage = excluded.stage, detail = excluded.detail, at = excluded.at
 WHERE excluded.stage > _onceward_acknowledgments.stage
"""
ACKNOWLEDGMENTS_OF: Final = f"""
SELECT {columns(Acknowledgment)} FROM onceward_acknowledgments
 WHERE message_id = ?1 OR correlation_id = ?1
 ORDER BY participant
"""


def stage(status: str) -> int:
    """Return the number of a status; raise ValidationFailed for an unknown one."""
    if status not in STAGES:
        refuse("status", f"is not one of {', '.join(STAGES)}", len(str(status)))
    return STAGES[status]


def acknowledged(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """
    Store a frame that is an acknowledgment; return False for an ordinary message.

    Acknowledgments only ever move forward.
    """
    said = frame.data
    if frame.causationid is None or not isinstance(said, dict) or said.get("status") not in STAGES:
        return False
    if not tx.rows(OURS, (frame.causationid, sender)):
        return False
    detail = said.get("detail")
    named = None if detail is None else str(detail)[:DETAIL_MAX]
    tx.run(ACKNOWLEDGED, (frame.causationid, sender, STAGES[str(said["status"])], named, tx.now))
    return True


def prune_acknowledgments(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Prune a slice of old acknowledgments whose messages no longer exist; return how many."""
    return tx.run(OLD_ACKNOWLEDGMENTS, {"before": before, "limit": limit})


def acknowledgments_of(db: Database, message_id: str) -> list[Acknowledgment]:
    """Return the acknowledgments of a message, by its id or the id that its copies share."""
    return [Acknowledgment(*row) for row in db.ask(ACKNOWLEDGMENTS_OF, (message_id,))]
