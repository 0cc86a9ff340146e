"""Ask one file for waiting messages: to send, to handle, for a reply, or to read next."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onceward.file.file_checks import LEFT_GLOB
from onceward.file.in_flight import has_died
from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.message.vocabulary import PARKED
from onceward.ops.views.asking import Source, lanes_held, matches, values
from onceward.ops.views.overview import MANY, Overview
from onceward.ops.views.surroundings import causes

SOME: Final = 100
"""Lanes of a kind among which the message that waits longest is sought."""
UNTAKEN_AFTER: Final = 5000
"""Milliseconds that a ready message may wait before it counts as one that no worker takes."""


@dataclass(frozen=True, slots=True)
class Due:
    """Pushable messages for one recipient, and since when the oldest waits."""

    recipient: str
    messages: int
    oldest_at: Millis


@dataclass(frozen=True, slots=True)
class Taking:
    """Whether workers take the messages of an inbox."""

    path: Path
    """The file; the locks beside it tell which owners have died."""
    owners: tuple[str, ...]
    """Owners of leases that have time left."""
    ready_at: Millis | None
    """When the oldest message that waits or is leased became ready."""
    handled_at: Millis

    def untaken(self, now: Millis) -> Millis | None:
        """
        Return when the oldest untaken message became ready; None if workers take messages.

        A lease whose process has ended shows at once that they do not.
        """
        if self.ready_at is None or not all(has_died(self.path, each) for each in self.owners):
            return None
        waits = now - max(self.ready_at, self.handled_at)
        return self.ready_at if self.owners or waits >= UNTAKEN_AFTER else None


@dataclass(frozen=True, slots=True)
class Leaving:
    """Whether a process delivers the messages of an outbox."""

    path: Path
    since_at: Millis | None
    """Since when the oldest message waits that a process could deliver."""
    owner: str | None
    """The owner of its peer's lease."""
    fetched: bool
    """Whether its peer fetches its messages itself: another reason names that."""

    def stays(self, now: Millis) -> Millis | None:
        """Return since when the oldest message waits for a process; None if one delivers."""
        if self.since_at is None or self.fetched:
            return None
        if self.owner is not None:
            return self.since_at if has_died(self.path, self.owner) else None
        return self.since_at if now - self.since_at >= UNTAKEN_AFTER else None


@dataclass(frozen=True, slots=True)
class Unhandled:
    """Lanes whose messages could be handled now, and the lanes that are leased."""

    lanes: int
    oldest_at: Millis | None
    leased: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a handler or a run of a session has asked, and whose answer it waits for."""

    head_id: str
    awaits: str
    request_id: str
    asked_at: Millis
    due_at: Millis | None
    lanes: int
    """How many lanes wait for a reply, those of other questions too."""


@dataclass(frozen=True, slots=True)
class Next:
    """The next message to read."""

    frame: str
    attempt: int
    received_at: Millis


@dataclass(frozen=True, slots=True)
class Arrived:
    """A new message, and the first one of its conversation."""

    seq: int
    id: str
    correlation_id: str | None


@dataclass(frozen=True, slots=True)
class Glimpse:
    """An unhandled message of the inbox, with the beginning of its body."""

    seq: int
    id: str
    sender: str
    session: str
    type: str
    topic: str | None
    state: str
    attempts: int
    received_at: Millis
    text: str | None
    length: int | None


@dataclass(frozen=True, slots=True)
class FailedSent:
    """A sent message that failed at its recipient or on the way."""

    id: str
    recipient: str
    type: str
    reason: str | None
    ended_at: Millis


@dataclass(frozen=True, slots=True)
class Exchanged:
    """How many messages were sent to a peer, and received from it."""

    peer: str
    sent: int
    received: int


DUE: Final = f"""
SELECT {columns(Due, messages="count(*)", oldest_at="min(created_at)")} FROM onceward_outbox
 WHERE state IN ('pending', 'sending') AND coalesce(due_at, 0) <= :now AND held_by IS NULL
 GROUP BY recipient ORDER BY recipient
"""
# Lanes with an expired lease count; sessions with runs have onceward_session_queues.
PAUSED_TYPE: Final = """
EXISTS (SELECT 1
          FROM onceward_handler_limits AS p
         WHERE p.paused_at IS NOT NULL
           AND ('.' || b.type || '.' GLOB replace('.' || p.name || '.', '.#.', '.*')
                OR '.' || b.topic || '.' GLOB replace('.' || p.name || '.', '.#.', '.*')))
"""
UNHANDLED: Final = f"""
SELECT count(*) AS lanes, min(b.received_at) AS oldest_at,
       (SELECT count(*) FROM onceward_lanes
         WHERE state = 'leased' AND due_at > :now AND due_at < {PARKED}) AS leased
  FROM onceward_lanes AS l JOIN onceward_inbox AS b ON b.seq = l.head_seq AND l.sender IS NOT NULL
 WHERE (l.state = 'ready' OR l.due_at <= :now)
   AND l.session NOT IN (SELECT session FROM onceward_session_queues)
   AND NOT {PAUSED_TYPE}
"""
LEASED_BY: Final = f"""
SELECT owner FROM onceward_lanes
 WHERE due_at > :now AND due_at < {PARKED} AND owner IS NOT NULL LIMIT {SOME}
"""
# Of lanes that are ready, of those whose time has come, and of those that are leased.
READY_SINCE: Final = f"""
SELECT min(max(b.received_at, CASE WHEN w.owner IS NULL THEN coalesce(w.due_at, 0) ELSE 0 END))
  FROM (SELECT * FROM (SELECT sender, head_seq, due_at, owner FROM onceward_lanes AS w
                        WHERE w.head_seq IS NOT NULL AND w.due_at IS NULL LIMIT {SOME})
         UNION ALL
        SELECT * FROM (SELECT sender, head_seq, due_at, owner FROM onceward_lanes
                        WHERE due_at >= 0 AND due_at < {PARKED}
                          AND (due_at <= :now OR owner IS NOT NULL)
                        ORDER BY due_at LIMIT {SOME})) AS w
  JOIN onceward_inbox AS b ON b.seq = w.head_seq AND w.sender IS NOT NULL AND NOT {PAUSED_TYPE}
"""
HANDLED_AT: Final = """
SELECT processed_at FROM onceward_processed_messages WHERE seq > 0 ORDER BY seq DESC LIMIT 1
"""
PROCESSES: Final = f"""
SELECT (SELECT json_group_array(owner) FROM ({LEASED_BY.strip()})), ({READY_SINCE.strip()}),
       ({HANDLED_AT.strip()}), p.owner, p.due_at, p.failures = 0 AND p.last_error GLOB :left,
       p.url IS 'pool:'
  FROM (SELECT 1) LEFT JOIN onceward_peers AS p ON p.name = :name
"""
# A lane that waits for a reply has a due time: its timeout, or never.
QUESTIONS: Final = f"""
SELECT {columns(Question, lanes="count(*) OVER ()")}
  FROM {lanes_held(MANY)}
 WHERE awaits IS NOT NULL AND {matches(session="session")} ORDER BY asked_at LIMIT :limit
"""
NEXT: Final = f"""
SELECT {columns(Next, "b.", attempt="b.attempts + 1")}
  FROM onceward_inbox AS b
  JOIN onceward_lanes AS l ON l.sender = b.sender AND l.lane = b.lane AND l.priority = b.priority
 WHERE b.state = 'pending' AND l.state <> 'empty' AND coalesce(l.due_at, 0) <= :now
   AND coalesce(b.expires_at, :now + 1) > :now
   AND {matches(type="b.type", session="b.session")}
 ORDER BY CASE b.priority WHEN 'critical' THEN 0 WHEN 'urgent' THEN 1 WHEN 'normal' THEN 2
                          WHEN 'low' THEN 3 ELSE 4 END, b.seq
 LIMIT 1
"""
NEWEST: Final = "SELECT seq FROM onceward_inbox ORDER BY seq DESC LIMIT 1"
ARRIVED: Final = f"""
SELECT {columns(Arrived)} FROM onceward_inbox WHERE seq > :after ORDER BY seq LIMIT 500
"""
WAITING: Final = f"""
SELECT {columns(Glimpse, text="substr(body, 1, :most)", length="length(body)")}
  FROM onceward_inbox
 WHERE seq >= :from_seq AND state IN ('pending', 'processing') AND mailbox IS NULL
   AND {matches(session="session")}
 ORDER BY seq LIMIT :limit
"""
# Of the last thousand sent messages: no index leads to those that failed.
FAILED: Final = f"""
SELECT {columns(FailedSent)}
  FROM (SELECT * FROM onceward_outbox ORDER BY seq DESC LIMIT 1000)
 WHERE state = 'failed' AND ended_at > :since
 ORDER BY seq DESC LIMIT 10
"""
EXCHANGED: Final = """
SELECT peer, sum(sent) AS sent, sum(received) AS received
  FROM (SELECT recipient AS peer, 1 AS sent, 0 AS received
          FROM onceward_outbox WHERE seq > :sent
         UNION ALL
        SELECT sender, 0, 1 FROM onceward_inbox WHERE seq > :received)
 GROUP BY peer ORDER BY peer
"""


def due(source: Source, now: Millis) -> tuple[Due, ...]:
    """Return the pushable messages, by recipient."""
    return values(source, Due, DUE, now=now)


def unhandled(source: Source, now: Millis) -> Unhandled:
    """Return messages that could be handled now but wait."""
    [found] = values(source, Unhandled, UNHANDLED, now=now)
    return found


def untaken(source: Source, now: Millis) -> Millis | None:
    """
    Return when the oldest untaken message became ready; None if workers take messages.

    Workers take messages if a lane is leased to a live process, or a message was handled
    recently. The lease of an ended process does not count.
    """
    return taking(source, now).untaken(now)


def taking(source: Source, now: Millis) -> Taking:
    """Return what tells whether workers take messages."""
    return _both(source, "", None, now)[0]


def leaving(source: Source, found: Overview, now: Millis) -> Leaving:
    """Return what tells whether a process delivers the messages of an outbox."""
    return processes(source, found, now)[1]


def processes(source: Source, found: Overview, now: Millis) -> tuple[Taking, Leaving]:
    """Return what tells whether processes take and deliver messages, in one statement."""
    name, since_at = min(found.outbox, key=lambda each: each[1], default=("", None))
    return _both(source, name, since_at, now)


def _both(
    source: Source, peer: str, since_at: Millis | None, now: Millis
) -> tuple[Taking, Leaving]:
    """Return it, where the oldest message of the outbox waits for *peer* since a moment."""
    named = {"now": now, "name": peer, "left": LEFT_GLOB}
    [(owners, ready_at, handled_at, owner, due_at, fetched, pool)] = source.rows(PROCESSES, named)
    taken = Taking(source.path, tuple(json.loads(owners)), ready_at, handled_at or 0)
    # nothing is pushed to a pool, whose messages wait for a member
    pushable_at = None if since_at is None or pool else max(since_at, due_at or 0)  # the next try
    return taken, Leaving(source.path, pushable_at, owner, fetched=bool(fetched))


def idle(found: Overview, taken: Taking, leaving: Leaving, now: Millis) -> tuple[str, ...]:
    """Return words for what no process can do, and for messages that none handles or delivers."""
    outside = tuple(each.reason for each in causes(taken.path))
    if found.file.paused_at is not None:
        return outside
    untaken = found.incoming and taken.untaken(now) is not None
    undelivered = leaving.stays(now) is not None
    return (*outside, *("untaken",) * bool(untaken), *("undelivered",) * undelivered)


def questions(source: Source, session: str | None, limit: int) -> tuple[Question, ...]:
    """Return the unanswered questions of a session, or of all (None), the oldest first."""
    return values(source, Question, QUESTIONS, session=session, limit=limit)


def next_message(
    source: Source, now: Millis, *, type: str | None, session: str | None
) -> Next | None:
    """Return the message that a reader would lease next; None means no condition."""
    return next(iter(values(source, Next, NEXT, now=now, type=type, session=session)), None)


def newest(source: Source) -> int:
    """Return the number of the last message of the inbox; 0 if it is empty."""
    return next((int(seq) for (seq,) in source.rows(NEWEST)), 0)


def arrived(source: Source, after: int) -> tuple[Arrived, ...]:
    """Return at most 500 messages after one, oldest first."""
    return values(source, Arrived, ARRIVED, after=after)


def waiting(
    source: Source, *, from_seq: int, session: str | None, most: int, limit: int
) -> tuple[Glimpse, ...]:
    """Return unhandled messages, oldest first, with *most* characters of each body."""
    named = {"from_seq": from_seq, "session": session, "most": most, "limit": limit}
    return values(source, Glimpse, WAITING, **named)


def failed_sends(source: Source, *, since: Millis) -> tuple[FailedSent, ...]:
    """Return at most ten sent messages that failed after a time, newest first."""
    return values(source, FailedSent, FAILED, since=since)


def exchanged(source: Source, sent: int, received: int) -> tuple[Exchanged, ...]:
    """Return the message counts by peer after these numbers of outbox and inbox."""
    return values(source, Exchanged, EXCHANGED, sent=sent, received=received)
