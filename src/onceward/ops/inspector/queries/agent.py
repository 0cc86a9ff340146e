"""Ask one file for what the page of an agent shows: lanes, peers, runs, queues and limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from onceward.message.clock import Millis
from onceward.ops.inspector.queries.overview import Overview, overview
from onceward.ops.inspector.queries.rates import Rates, rates
from onceward.ops.inspector.reading import NEVER, Reader

SPAN: Final = 60_000
SPANS: Final = 60
ROWS: Final = 50
"""Rows of each list; a longer list says that there are more."""

FILE: Final = """
SELECT durability, max_pending, max_inbox, max_body, max_file_bytes, opened_at, created_at
  FROM onceward_file
"""
STATES: Final = """
SELECT pending, sending, sent, acked, failed, cancelled, outbox_dropped, total_retries,
       inbox_pending, inbox_processing, processed, dropped, expired, duplicates, refused, forks,
       received
  FROM onceward_stats
"""
LANES: Final = f"""
SELECT w.sender, w.lane, w.session, w.priority, w.state, w.head_id, w.attempts, w.due_at, w.leased,
       w.owner,
       (SELECT b.reason FROM onceward_inbox AS b WHERE b.sender = w.sender AND b.id = w.head_id)
  FROM (SELECT *
          FROM (SELECT * FROM onceward_lanes WHERE due_at >= 0 ORDER BY due_at LIMIT 10000)
         ORDER BY attempts DESC, due_at LIMIT {ROWS + 1}) AS w
"""
# Nothing holds these back but workers that are busy, absent or paused.
READY: Final = f"""
SELECT w.sender, w.lane, w.session, w.priority, w.state, w.head_id, w.attempts, w.due_at, w.leased,
       w.owner, NULL
  FROM onceward_lanes AS w WHERE w.head_seq IS NOT NULL AND w.due_at IS NULL LIMIT {ROWS + 1}
"""
PEERS: Final = f"""
SELECT name, url, breaker, failures, in_flight, number, due_at, seen_at, last_error, owner
  FROM onceward_peers
 WHERE name > ?
 ORDER BY name LIMIT {ROWS + 1}
"""
BACKLOG: Final = "SELECT peer, oldest_at FROM onceward_backlog WHERE box = 'outbox'"
RUNS: Final = f"""
SELECT seq, id, session, mode, state, messages, cause, owner, lease_at, started_at, ended_at
  FROM onceward_runs
 WHERE seq < ?
 ORDER BY seq DESC LIMIT {ROWS + 1}
"""
QUEUES: Final = f"""
SELECT session, state, mode, waiting, bound, dropped, run, due_at, paused_at
  FROM onceward_session_queues
 WHERE session > ?
 ORDER BY session LIMIT {ROWS + 1}
"""
SCHEDULES: Final = f"""
SELECT name, every, cron, timezone, missed, recipient, session, next_at, paused_at, sent, last_at,
       last_id, last_error
  FROM onceward_schedules
 WHERE name > ?
 ORDER BY name LIMIT {ROWS + 1}
"""
READERS: Final = f"""
SELECT mailbox, mode, name, max(critical, urgent, normal, low, background), read_at, expires_at
  FROM onceward_mailbox_readers
 WHERE mailbox > ?
 ORDER BY mailbox, mode, name LIMIT {ROWS + 1}
"""
LIMITS: Final = f"""
SELECT scope, name, used_by, messages, max_messages, bytes, max_bytes, overflow
  FROM (SELECT * FROM onceward_limits LIMIT 10000)
 ORDER BY max(coalesce(1.0 * messages / max_messages, 0), coalesce(1.0 * bytes / max_bytes, 0)) DESC
 LIMIT {ROWS + 1}
"""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Bounds and age of a file."""

    durability: str
    max_pending: int
    max_inbox: int
    max_body: int
    max_file_bytes: int | None
    opened_at: Millis
    created_at: Millis


@dataclass(frozen=True, slots=True)
class States:
    """How many messages are in each state, or ended in it since the file was made."""

    pending: int
    sending: int
    sent: int
    acked: int
    failed: int
    cancelled: int
    outbox_dropped: int
    total_retries: int
    inbox_pending: int
    inbox_processing: int
    processed: int
    dropped: int
    expired: int
    duplicates: int
    refused: int
    forks: int
    received: int


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane that has messages: it is leased, waits for a moment, or is ready."""

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
    """Why its first message was not handled when it was tried."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer, its breaker and its lease."""

    name: str
    url: str | None
    breaker: str
    failures: int
    in_flight: int
    number: int
    due_at: Millis | None
    seen_at: Millis | None
    last_error: str | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, open or past."""

    seq: int
    id: str
    session: str
    mode: str
    state: str
    messages: int
    cause: str | None
    owner: str | None
    lease_at: Millis | None
    started_at: Millis
    ended_at: Millis | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The queue of a session with runs."""

    session: str
    state: str
    mode: str | None
    waiting: int
    bound: int
    dropped: int
    run: str | None
    due_at: Millis | None
    paused_at: Millis | None


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A message that is sent again and again, at dates."""

    name: str
    every: Millis | None
    cron: str | None
    timezone: str | None
    missed: str
    recipient: str
    session: str
    next_at: Millis
    paused_at: Millis | None
    sent: int
    last_at: Millis | None
    last_id: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A named reader of a mailbox, or a group of readers."""

    mailbox: str
    mode: str
    name: str
    position: int
    """Number in the inbox of the last message that it passed."""
    read_at: Millis
    expires_at: Millis | None


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit, and how full it is."""

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
        """How full it is, 1.0 is full."""
        parts = ((self.messages, self.max_messages), (self.bytes, self.max_bytes))
        return max((used / most for used, most in parts if most), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """Everything that the page of an agent shows."""

    overview: Overview
    file: FileFacts
    states: States
    lanes: tuple[LaneRow, ...]
    peers: tuple[PeerRow, ...]
    oldest_by_peer: dict[str, Millis]
    runs: tuple[RunRow, ...]
    queues: tuple[QueueRow, ...]
    schedules: tuple[ScheduleRow, ...]
    readers: tuple[ReaderRow, ...]
    limits: tuple[LimitRow, ...]

    @property
    def owners(self) -> dict[str, int]:
        """How many leases each worker and dispatcher holds, by its name."""
        lanes = [each.owner for each in self.lanes if each.state == "leased"]
        runs = [each.owner for each in self.runs if each.state == "open"]
        owners = [*lanes, *runs, *(each.owner for each in self.peers)]
        return dict(Counter(owner for owner in owners if owner))


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """Where the lists of a page go on: after a name, and before a run."""

    peer: str = ""
    queue: str = ""
    schedule: str = ""
    run: int = NEVER


def agent_facts(reader: Reader, now: Millis, after: After) -> AgentFacts:
    """Return what the page of an agent shows."""
    return AgentFacts(
        overview=overview(reader, now),
        file=FileFacts(*reader.rows(FILE)[0]),
        states=States(*reader.rows(STATES)[0]),
        lanes=tuple(LaneRow(*row) for row in [*reader.rows(LANES), *reader.rows(READY)]),
        peers=tuple(PeerRow(*row) for row in reader.rows(PEERS, (after.peer,))),
        oldest_by_peer=dict(reader.rows(BACKLOG)),
        runs=tuple(RunRow(*row) for row in reader.rows(RUNS, (after.run,))),
        queues=tuple(QueueRow(*row) for row in reader.rows(QUEUES, (after.queue,))),
        schedules=tuple(ScheduleRow(*row) for row in reader.rows(SCHEDULES, (after.schedule,))),
        readers=tuple(ReaderRow(*row) for row in reader.rows(READERS, ("",))),
        limits=tuple(LimitRow(*row) for row in reader.rows(LIMITS)),
    )


def minutes(reader: Reader, now: Millis) -> Rates:
    """Return how many messages were sent, received and handled in each minute of an hour."""
    return rates(reader, now, span=SPAN, count=SPANS)
