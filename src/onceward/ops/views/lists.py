"""Ask one file for its lanes, peers, runs, queues, schedules, readers and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.file.file_checks import LEFT_GLOB
from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.message.dates import Schedule
from onceward.message.queue_modes import QUEUE_DEBOUNCE, QueueInfo
from onceward.message.vocabulary import PARKED
from onceward.ops.views.asking import (
    NEVER,
    Source,
    by_name,
    ids_from,
    lanes_held,
    matches,
    some_ids,
    values,
)
from onceward.ops.views.overview import FAILED, FAILURES, MANY

EVERYTHING: Final = -1
"""SQLite's word for no limit."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane of the inbox: it is leased, waits for a moment, is ready, or empty."""

    sender: str | None
    lane: str
    session: str | None
    priority: str
    state: str
    head_id: str | None
    attempts: int
    due_at: Millis | None
    leased: int
    owner: str | None
    reason: str | None
    """Why the last attempt of its oldest message failed."""


DUE: Final = f"nullif(w.due_at, {PARKED})"
REASON: Final = """
       (SELECT b.reason FROM onceward_inbox AS b
         WHERE b.seq = w.head_seq AND w.sender IS NOT NULL)"""
LANE: Final = f"SELECT {columns(Lane, 'w.', due_at=DUE, reason=REASON)}\n  FROM"
LANES: Final = f"""
{LANE} onceward_lanes AS w
 WHERE {matches(state="w.state", peer="w.sender", session="w.session")}
 ORDER BY w.sender, w.lane, w.priority LIMIT :limit
"""
HELD_LANES: Final = f"""
{LANE} (SELECT * FROM {lanes_held(MANY)} ORDER BY attempts DESC, due_at LIMIT :limit) AS w
"""
FAILED_LANE: Final = f"""
{LANE} (SELECT * FROM {lanes_held(MANY)} AS w WHERE {FAILED.strip()}
         ORDER BY attempts DESC, due_at LIMIT 1) AS w
"""
NEXT_LANES: Final = f"{LANE} (SELECT * FROM {lanes_held(MANY)} LIMIT :limit) AS w"
READY_LANES: Final = f"""
SELECT {columns(Lane, "w.", reason="NULL")}
  FROM onceward_lanes AS w WHERE w.head_seq IS NOT NULL AND w.due_at IS NULL LIMIT :limit
"""


def lanes(
    source: Source, *, state: str | None, peer: str | None, session: str | None, limit: int
) -> tuple[Lane, ...]:
    """Return lanes by name; None means no condition."""
    return values(source, Lane, LANES, state=state, peer=peer, session=session, limit=limit)


def held_lanes(source: Source, limit: int) -> tuple[Lane, ...]:
    """Return leased or delayed lanes, those with the most attempts first."""
    return values(source, Lane, HELD_LANES, limit=limit)


def failed_lane(source: Source) -> Lane | None:
    """Return the lane whose oldest message failed most often; None if none failed."""
    return next(iter(values(source, Lane, FAILED_LANE)), None)


def next_lanes(source: Source, limit: int) -> tuple[Lane, ...]:
    """Return leased or delayed lanes, those that end next first."""
    return values(source, Lane, NEXT_LANES, limit=limit)


def ready_lanes(source: Source, limit: int) -> tuple[Lane, ...]:
    """Return lanes that wait only for workers: busy, absent or paused ones."""
    return values(source, Lane, READY_LANES, limit=limit)


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer, its breaker and its lease."""

    name: str
    url: str | None
    breaker: str
    failures: int
    in_flight: int
    number: int
    stream_number: int | None
    due_at: Millis | None
    seen_at: Millis | None
    last_error: str | None
    owner: str | None

    @property
    def failing(self) -> bool:
        """Whether its breaker is not closed, or it failed three times in a row."""
        return self.breaker != "closed" or self.failures >= FAILURES


PEERS: Final = by_name(Peer, "onceward_peers", "name")
LEFT_PEERS: Final = f"""
SELECT {columns(Peer)} FROM onceward_peers
 WHERE last_error GLOB :left AND failures = 0
 ORDER BY name
"""
WORST_PEERS: Final = f"""
SELECT {columns(Peer)} FROM onceward_peers
 ORDER BY breaker = 'closed', failures DESC, name LIMIT :limit
"""


def peers(source: Source, *, after: str = "", limit: int = EVERYTHING) -> tuple[Peer, ...]:
    """Return peers by name, starting after *after*."""
    return values(source, Peer, PEERS, after=after, limit=limit)


def worst_peers(source: Source, limit: int) -> tuple[Peer, ...]:
    """Return peers, failing ones first."""
    return values(source, Peer, WORST_PEERS, limit=limit)


def left_peers(source: Source) -> tuple[Peer, ...]:
    """Return peers whose own processes must fetch what waits for them."""
    return values(source, Peer, LEFT_PEERS, left=LEFT_GLOB)


@dataclass(frozen=True, slots=True)
class Run:
    """A run, open or past."""

    seq: int
    id: str
    session: str
    mode: str
    state: str
    messages: int
    consumed: int
    cause: str | None
    started_at: Millis
    checkpoint_at: Millis | None
    ended_at: Millis | None
    left_at: Millis | None
    returned_at: Millis | None
    lease_at: Millis | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class RunContent:
    """The messages of a run and its output; each is JSON text."""

    token: int | None
    event_ids: str
    partial: str | None
    result: str | None


RUNS: Final = f"""
SELECT {columns(Run)} FROM onceward_runs
 WHERE seq < :before AND {matches(state="state", session="session")}
 ORDER BY seq DESC LIMIT :limit
"""
RUN: Final = f"SELECT {columns(Run)} FROM onceward_runs WHERE id = :id"
RUN_CONTENT: Final = f"SELECT {columns(RunContent)} FROM onceward_runs WHERE id = :id"
RUN_IDS: Final = ids_from("onceward_runs")


def runs(
    source: Source,
    *,
    state: str | None = None,
    session: str | None = None,
    before: int = NEVER,
    limit: int,
) -> tuple[Run, ...]:
    """Return runs, newest first; *before* is the number of the last known one."""
    return values(source, Run, RUNS, state=state, session=session, before=before, limit=limit)


def run(source: Source, run_id: str) -> tuple[Run, RunContent]:
    """Return a run that exists, with its content."""
    [found] = values(source, Run, RUN, id=run_id)
    [content] = values(source, RunContent, RUN_CONTENT, id=run_id)
    return found, content


def run_ids(source: Source, prefix: str) -> list[str]:
    """Return a few ids of runs that begin with *prefix*."""
    return some_ids(source, RUN_IDS, prefix)


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that waits in a session's queue."""

    position: int
    id: str
    sender: str
    type: str
    priority: str
    attempts: int
    received_at: Millis
    expires_at: Millis | None


QUEUE_OF: Final = f"""
SELECT {columns(QueueInfo, debounce=QUEUE_DEBOUNCE)} FROM onceward_session_queues
"""
QUEUES: Final = f"{QUEUE_OF} WHERE session > :after ORDER BY session LIMIT :limit"
QUEUE: Final = f"{QUEUE_OF} WHERE session = :session"
QUEUED: Final = f"""
SELECT {columns(QueuedMessage)} FROM onceward_session_queue_messages
 WHERE session = :session ORDER BY position LIMIT :limit
"""
QUEUED_IDS: Final = ids_from("onceward_session_queue_messages")


def session_queues(
    source: Source, *, after: str = "", limit: int = EVERYTHING
) -> tuple[QueueInfo, ...]:
    """Return the queues of sessions with runs by name, starting after *after*."""
    return values(source, QueueInfo, QUEUES, after=after, limit=limit)


def session_queue(source: Source, session: str) -> QueueInfo | None:
    """Return the queue of a session; None if the session has no runs."""
    return next(iter(values(source, QueueInfo, QUEUE, session=session)), None)


def queued(source: Source, session: str, limit: int) -> tuple[QueuedMessage, ...]:
    """Return the messages that wait in a session's queue, in its order."""
    return values(source, QueuedMessage, QUEUED, session=session, limit=limit)


def queued_ids(source: Source, prefix: str) -> list[str]:
    """Return a few ids of messages in queues that begin with *prefix*."""
    return some_ids(source, QUEUED_IDS, prefix)


SCHEDULES: Final = by_name(Schedule, "onceward_schedules", "name")
SCHEDULE: Final = f"SELECT {columns(Schedule)} FROM onceward_schedules WHERE name = :name"


def schedules(source: Source, *, after: str = "", limit: int = EVERYTHING) -> tuple[Schedule, ...]:
    """Return schedules by name, starting after *after*."""
    return values(source, Schedule, SCHEDULES, after=after, limit=limit)


def schedule(source: Source, name: str) -> Schedule | None:
    """Return one schedule; None if the file has none of this name."""
    return next(iter(values(source, Schedule, SCHEDULE, name=name)), None)


@dataclass(frozen=True, slots=True)
class MailboxReader:
    """A named reader of a mailbox, or a group of readers."""

    mailbox: str
    mode: str
    name: str
    position: int
    """Number in the inbox of the last message that it passed."""
    leased: int
    """Messages that its readers hold now."""
    kept: int
    """Messages that it passed but must still read."""
    read_at: Millis
    expires_at: Millis | None


POSITION: Final = "max(critical, urgent, normal, low, background)"
READERS: Final = f"""
SELECT {columns(MailboxReader, position=POSITION)} FROM onceward_mailbox_readers
 WHERE mailbox > '' ORDER BY mailbox, mode, name LIMIT :limit
"""


def mailbox_readers(source: Source, limit: int) -> tuple[MailboxReader, ...]:
    """Return readers by mailbox, mode and name."""
    return values(source, MailboxReader, READERS, limit=limit)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and its usage."""

    scope: str
    name: str
    used_by: str | None
    messages: int
    max_messages: int | None
    bytes: int
    max_bytes: int | None
    overflow: str

    @property
    def fullness(self) -> float:
        """Usage; 1.0 means full."""
        parts = ((self.messages, self.max_messages), (self.bytes, self.max_bytes))
        return max((used / most for used, most in parts if most), default=0.0)


LIMITS: Final = f"""
SELECT {columns(Limit)}
  FROM (SELECT * FROM onceward_limits LIMIT {MANY})
 ORDER BY max(coalesce(1.0 * messages / max_messages, 0), coalesce(1.0 * bytes / max_bytes, 0)) DESC
 LIMIT :limit
"""


def limits(source: Source, limit: int) -> tuple[Limit, ...]:
    """Return limits, the fullest first."""
    return values(source, Limit, LIMITS, limit=limit)


@dataclass(frozen=True, slots=True)
class Drops:
    """Number of messages that a policy dropped and that are not pruned yet."""

    scope: str
    name: str
    policy: str
    messages: int


DROPS: Final = f"""
SELECT {columns(Drops, messages="count(*)")} FROM onceward_drops
 GROUP BY scope, name, policy
 ORDER BY messages DESC LIMIT :limit
"""


DIFFERING: Final = "SELECT count(*) FROM onceward_differing_messages"


def count_differing(source: Source) -> int:
    """Return how many messages came a second time with other contents."""
    [(count,)] = source.rows(DIFFERING)
    return int(count)


def drops(source: Source, limit: int) -> tuple[Drops, ...]:
    """Return the numbers of dropped messages by policy, largest first."""
    return values(source, Drops, DROPS, limit=limit)
