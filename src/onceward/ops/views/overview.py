"""Ask one file for its numbers, in time that does not grow with its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.message.vocabulary import PARKED
from onceward.ops.views.asking import NEVER, Source, lanes_held
from onceward.ops.views.vocabulary import TROUBLES

PEERS: Final = 1000
"""Maximum peers of a file whose backlog is read."""
MANY: Final = 10_000
"""Maximum counted queues, schedules and dead letters; above that ``10,000+`` is shown."""
FAILURES: Final = 3
"""Consecutive failed pushes after which a peer counts as failing, even with a closed breaker."""


Backlog = tuple[tuple[str, Millis], ...]
"""Each peer with pushable messages, and since when the oldest waits."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Name, bounds and age of a file."""

    agent: str
    durability: str
    max_inbox: int
    paused_at: Millis | None
    opened_at: Millis
    wal_lost_at: Millis | None
    backed_up_at: Millis | None
    superseded_by: str | None


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """Numbers of leased and backed-off lanes, from an index."""

    leased: int
    waiting: int
    """Lanes that wait for a moment: after a failure, or for a debounce."""
    failing: int
    """Leased or waiting lanes whose oldest message was attempted more than once."""
    failed: int
    """Those, and lanes that wait after the first failure of their oldest message."""
    lease_ends_at: Millis | None
    """When the first lease ends; in the past if no worker has taken it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The numbers of one file at one moment."""

    file: FileFacts
    stats: Mapping[str, int]
    """The columns of ``onceward_stats``."""
    outbox: Backlog
    inbox_oldest_at: Millis | None
    """Since when the oldest message of the inbox waits or is handled."""
    breakers_open: int
    """Peers in backoff."""
    peers_failing: int
    """Peers whose breaker is not closed, or that failed three times in a row."""
    lanes: LaneCounts
    runs_open: int
    calls_left: int
    """Calls of aborted runs that have not returned."""
    run_queue: int
    """Messages that wait for a run of their session."""
    run_oldest_at: Millis | None
    """When the oldest of the open runs began."""
    pause_oldest_at: Millis | None
    """Since when the agent, or one of its sessions, is paused; the longest of these pauses."""
    question_oldest_at: Millis | None
    """When the oldest question that a handler waits for was asked."""
    schedules_failing: int
    """Schedules whose last message could not be sent."""

    @property
    def outgoing(self) -> int:
        """Messages that their recipients have not stored."""
        return self.stats["pending"]

    @property
    def incoming(self) -> int:
        """Messages that are stored here but not handled."""
        return self.stats["inbox_pending"] + self.stats["inbox_processing"]

    @property
    def dead_letters(self) -> int:
        """Stored dead letters."""
        return self.stats["dead_letters"]

    @property
    def outbox_oldest_at(self) -> Millis | None:
        """Since when the oldest pushable message of the outbox waits."""
        return min((at for _, at in self.outbox), default=None)

    @property
    def oldest_at(self) -> Millis | None:
        """Since when the oldest message of either box waits."""
        return min(filter(None, (self.outbox_oldest_at, self.inbox_oldest_at)), default=None)

    @property
    def trouble(self) -> tuple[str, ...]:
        """Words for the reasons that hold messages back, the worst first."""
        holds = (
            self.file.paused_at is not None,
            self.breakers_open,
            self.dead_letters,
            self.schedules_failing,
            self.lanes.failing,
        )
        return tuple(word for word, held in zip(TROUBLES, holds, strict=True) if held)


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one file with the same reason and type."""

    reason: str
    type: str
    count: int
    newest_at: Millis
    error: str | None
    """The error of the newest one."""


FILE: Final = f"SELECT {columns(FileFacts)} FROM onceward_file"
STATS: Final = "SELECT * FROM onceward_stats"
STATS_COLUMNS: Final = "SELECT name FROM pragma_table_info('onceward_stats')"
BACKLOG: Final = f"SELECT box, peer, oldest_at FROM onceward_backlog LIMIT {PEERS + 1}"
PEER_COUNTS: Final = f"""
SELECT coalesce(sum(breaker <> 'closed'), 0),
       coalesce(sum(breaker <> 'closed' OR failures >= {FAILURES}), 0)
  FROM onceward_peers
"""
# A handler that failed once and now sleeps, or waits for a message, is not retried.
FAILED: Final = """
(attempts > 1 OR attempts = 1 AND state = 'waiting') AND awaits IS NULL
   AND NOT EXISTS (SELECT 1 FROM onceward_steps AS s
                    WHERE s.message_id = head_id AND s.sender = w.sender AND s.state = 'waiting')
"""
LANE_COUNTS: Final = f"""
SELECT coalesce(sum(state = 'leased'), 0), coalesce(sum(state = 'waiting'), 0),
       coalesce(sum(attempts > 1), 0), coalesce(sum({FAILED.strip()}), 0),
       min(CASE state WHEN 'leased' THEN due_at END)
  FROM onceward_lanes AS w WHERE due_at < {PARKED}
"""
RUN_COUNTS: Final = f"""
SELECT (SELECT count(*) FROM onceward_runs WHERE state = 'open'),
       (SELECT min(started_at) FROM onceward_runs WHERE state = 'open'),
       (SELECT count(*) FROM onceward_runs WHERE left_at IS NOT NULL AND returned_at IS NULL),
       coalesce(sum(s.waiting), 0), min(s.paused_at)
  FROM (SELECT waiting, paused_at FROM onceward_session_queues
         WHERE session > '' AND state <> 'empty' ORDER BY session LIMIT {MANY}) AS s
"""
# A lane that waits for a reply has a due time: its timeout, or never.
QUESTION: Final = f"SELECT min(s.asked_at) FROM {lanes_held(MANY)} AS s"
SCHEDULES_FAILING: Final = f"""
SELECT count(*)
  FROM (SELECT last_error, paused_at
          FROM onceward_schedules WHERE name > '' ORDER BY name LIMIT {MANY})
 WHERE last_error IS NOT NULL AND paused_at IS NULL
"""
QUESTION_AND_SCHEDULES: Final = f"SELECT ({QUESTION}), ({SCHEDULES_FAILING})"
# Columns after the frame are read once per group: they cost the size of the frame.
DEAD: Final = f"""
SELECT g.reason, g.type, g.letters,
       (SELECT d.dead_at FROM onceward_dead_letters AS d WHERE d.seq = g.newest),
       (SELECT d.last_error FROM onceward_dead_letters AS d WHERE d.seq = g.newest)
  FROM (SELECT reason, type, count(*) AS letters, max(seq) AS newest
          FROM (SELECT seq, reason, type FROM onceward_dead_letters
                 WHERE seq <= ? ORDER BY seq DESC LIMIT {MANY + 1})
         GROUP BY reason, type) AS g
 ORDER BY g.letters DESC, g.reason, g.type
"""


def file_facts(source: Source) -> FileFacts:
    """Return name, bounds and age of a file."""
    return FileFacts(*source.rows(FILE)[0])


def stats(source: Source) -> Mapping[str, int]:
    """Return current numbers, and totals since the file was created."""
    names = [str(name) for (name,) in source.rows(STATS_COLUMNS)]
    [numbers] = source.rows(STATS)
    return MappingProxyType(dict(zip(names, numbers, strict=True)))


def lane_counts(source: Source) -> LaneCounts:
    """Return how many lanes are leased, waiting and failing."""
    return LaneCounts(*source.rows(LANE_COUNTS)[0])


def overview(source: Source) -> Overview:
    """Return the numbers of a file."""
    [(breakers_open, peers_failing)] = source.rows(PEER_COUNTS)
    [(runs_open, run_oldest_at, calls_left, run_queue, paused_at)] = source.rows(RUN_COUNTS)
    [(question_oldest_at, schedules_failing)] = source.rows(QUESTION_AND_SCHEDULES)
    outbox, inbox_oldest_at = _backlog(source.rows(BACKLOG))
    facts = file_facts(source)
    pauses = [at for at in (facts.paused_at, paused_at) if at is not None]
    return Overview(
        file=facts,
        stats=stats(source),
        outbox=outbox,
        inbox_oldest_at=inbox_oldest_at,
        breakers_open=breakers_open,
        peers_failing=peers_failing,
        lanes=lane_counts(source),
        runs_open=runs_open,
        calls_left=calls_left,
        run_queue=run_queue,
        run_oldest_at=run_oldest_at,
        pause_oldest_at=min(pauses, default=None),
        question_oldest_at=question_oldest_at,
        schedules_failing=schedules_failing,
    )


def _backlog(rows: list[tuple[Any, ...]]) -> tuple[Backlog, Millis | None]:
    """Return the backlog by peer, and the row of the inbox."""
    outbox = tuple((peer, at) for box, peer, at in rows if box == "outbox" and at is not None)
    return outbox, next(at for box, _, at in rows if box == "inbox")


def dead_groups(source: Source) -> tuple[DeadGroup, ...]:
    """Return the newest MANY dead letters by reason and type, the most frequent first."""
    return tuple(DeadGroup(*row) for row in source.rows(DEAD, (NEVER,)))
