"""Ask one file for everything that the page of a home says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.message.clock import Millis
from onceward.ops.inspector.queries.rates import Rates, rates
from onceward.ops.inspector.reading import NEVER, Reader

MANY: Final = 10_000
"""Counts go so far; above it stands ``10,000+``."""
SPAN: Final = 180_000
SPANS: Final = 20

FILE: Final = "SELECT agent, paused_at FROM onceward_file"
STATS: Final = """
SELECT pending + sending, inbox_pending + inbox_processing, enqueued, received, processed,
       dead_total
  FROM onceward_stats
"""
OLDEST: Final = """
SELECT min(CASE box WHEN 'outbox' THEN oldest_at END), min(CASE box WHEN 'inbox' THEN oldest_at END)
  FROM onceward_backlog
"""
# Columns behind the frame are read once for each group: they cost the size of the frame.
DEAD: Final = f"""
SELECT g.reason, g.type, g.letters,
       (SELECT d.dead_at FROM onceward_dead_letters AS d WHERE d.seq = g.newest)
  FROM (SELECT reason, type, count(*) AS letters, max(seq) AS newest
          FROM (SELECT seq, reason, type FROM onceward_dead_letters
                 WHERE seq <= ? ORDER BY seq DESC LIMIT {MANY + 1})
         GROUP BY reason, type) AS g
 ORDER BY g.letters DESC, g.reason, g.type
"""
BREAKERS: Final = f"""
SELECT count(*)
  FROM (SELECT breaker FROM onceward_peers WHERE name > '' ORDER BY name LIMIT {MANY})
 WHERE breaker <> 'closed'
"""
# Lanes that are leased or wait for a moment have one; a lane that is ready has failed no more.
FAILING: Final = f"""
SELECT count(*)
  FROM (SELECT attempts FROM onceward_lanes WHERE due_at >= 0 ORDER BY due_at LIMIT {MANY})
 WHERE attempts > 1
"""
# What a schedule could not send is no message yet, so nothing else tells of it.
UNSENT: Final = f"""
SELECT count(*)
  FROM (SELECT last_error, paused_at
          FROM onceward_schedules WHERE name > '' ORDER BY name LIMIT {MANY})
 WHERE last_error IS NOT NULL AND paused_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one file that died of one reason and have one type."""

    reason: str
    type: str
    count: int
    newest_at: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One file at one moment."""

    agent: str
    paused_at: Millis | None
    outgoing: int
    """Messages that the recipients have not stored."""
    incoming: int
    """Messages that are stored here and not handled."""
    enqueued: int
    received: int
    processed: int
    dead_total: int
    oldest_out_at: Millis | None
    oldest_in_at: Millis | None
    dead: tuple[DeadGroup, ...]
    open_breakers: int
    """Peers that are left alone for a while."""
    failing_lanes: int
    """Lanes whose first message was tried more than once."""
    unsent: int
    """Schedules whose last message could not be sent."""
    rates: Rates

    @property
    def dead_letters(self) -> int:
        """How many dead letters there are, at most one more than MANY."""
        return sum(group.count for group in self.dead)

    @property
    def oldest_at(self) -> Millis | None:
        """When the oldest message that waits, in either box, was sent or received."""
        return min(filter(None, (self.oldest_out_at, self.oldest_in_at)), default=None)


def overview(reader: Reader, now: Millis) -> Overview:
    """Return what a file says of itself, in time that does not grow with its messages."""
    [(agent, paused_at)] = reader.rows(FILE)
    [(outgoing, incoming, enqueued, received, processed, dead_total)] = reader.rows(STATS)
    [(oldest_out_at, oldest_in_at)] = reader.rows(OLDEST)
    return Overview(
        agent=agent,
        paused_at=paused_at,
        outgoing=outgoing,
        incoming=incoming,
        enqueued=enqueued,
        received=received,
        processed=processed,
        dead_total=dead_total,
        oldest_out_at=oldest_out_at,
        oldest_in_at=oldest_in_at,
        dead=tuple(DeadGroup(*row) for row in reader.rows(DEAD, (NEVER,))),
        open_breakers=reader.rows(BREAKERS)[0][0],
        failing_lanes=reader.rows(FAILING)[0][0],
        unsent=reader.rows(UNSENT)[0][0],
        rates=rates(reader, now, span=SPAN, count=SPANS),
    )
