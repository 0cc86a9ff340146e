"""Read the public views as typed values; nothing here changes or consumes anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, cast

from onceward.core.handle import lanes
from onceward.file.columns import column_names, columns
from onceward.file.database import Database
from onceward.message.clock import Millis
from onceward.message.parcel import InboundRule
from onceward.message.record import MessageRecord
from onceward.message.topics import check_pattern, matches
from onceward.message.vocabulary import (
    Aborted,
    BreakerState,
    DeadLetterOrigin,
    QueueMode,
    QueueOverflow,
    QueueState,
    Reason,
    RunState,
    SentState,
)

STATS: Final = "SELECT * FROM onceward_stats"
STATS_COLUMNS: Final = "SELECT name FROM pragma_table_info('onceward_stats')"
UNSENT: Final = """
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_outbox'), 0)
       - (SELECT value FROM _onceward_counters WHERE name = 'ended_pending')
"""
RESOLVE: Final = """
SELECT coalesce((SELECT state FROM onceward_outbox WHERE id = :id),
                (SELECT 'dead' FROM _onceward_dead_letters WHERE origin = 'outbox' AND id = :id),
                'absent')
"""
DEAD: Final = """
SELECT seq, topic FROM onceward_dead_letters
 WHERE (:id IS NULL OR id = :id)
   AND (:reason IS NULL OR reason = :reason)
   AND (:origin IS NULL OR origin = :origin)
   AND (:peer IS NULL OR sender = :peer OR recipient = :peer)
   AND (:session IS NULL OR session = :session)
   AND (:before IS NULL OR dead_at < :before) AND (:type IS NULL OR type = :type)
 ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a longer answer."""

    messages: list[MessageRecord]
    total_count: int | None
    """How many there are on all pages; None where they were not to be counted."""
    has_more: bool
    next: str | None = None
    """Where the next page begins, for ``after``; None on the last."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The state of a peer."""

    name: str
    url: str | None
    epoch: str
    number: int
    in_flight: int
    breaker: BreakerState
    failures: int
    due_at: Millis | None
    last_error: str | None
    seen_at: Millis | None
    stream_number: int | None
    max_bytes: int | None
    """Largest parcel that the way to the peer takes, where one was too large."""
    inbound_rule: InboundRule | None
    """Names that its messages may bear; None for all, or the rule of networks if it uses one."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DeadLetter(MessageRecord):
    """A message that ended badly, and what is known of its end."""

    reason: Reason
    """Why it died."""
    dead_at: Millis
    last_error: str | None
    late_outcome: str | None
    """Its outcome at the recipient, told after its death here."""
    replays: int
    """How often it was replayed already, and died again."""
    seq: int
    """Order of dying; two senders may have chosen one id."""

    @property
    def origin(self) -> DeadLetterOrigin:
        """The queue in which it died: ``outbox``, ``inbox`` or ``queue``."""
        return cast("DeadLetterOrigin", self.box)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSelection:
    """Conditions on dead letters, all of which must hold; None means no condition."""

    id: str | None = None
    reason: str | None = None
    peer: str | None = None
    topic: str | None = None
    session: str | None = None
    origin: str | None = None
    type: str | None = None
    before: Millis | None = None


PEERS: Final = f"SELECT {columns(PeerInfo)} FROM onceward_peers ORDER BY name"
DEAD_COLUMNS: Final = column_names(DeadLetter)
DEAD_OF: Final = columns(
    DeadLetter, "d.", state="'dead'", at="d.created_at", text="d.frame", box="d.origin"
)
BY_SEQ: Final = f"""
SELECT {DEAD_OF}
  FROM json_each(?) AS j JOIN onceward_dead_letters AS d ON d.seq = j.value
 ORDER BY d.seq
"""


def stats(db: Database) -> dict[str, int]:
    """Return the totals and present counts of one file."""
    names = [name for (name,) in db.ask(STATS_COLUMNS)]
    [row] = db.ask(STATS)
    return dict(zip(names, row, strict=True))


def unsent(db: Database) -> int:
    """Return how many messages wait to leave."""
    [(count,)] = db.read(UNSENT)
    return int(count)


def resolve(db: Database, message_id: str) -> SentState:
    """
    Return the state of a message that this agent sent.

    It is pending, sending, sent, acked, failed, cancelled, dropped, dead, or absent.
    """
    [(state,)] = db.read(RESOLVE, {"id": message_id})
    return cast("SentState", state)


def peers(db: Database) -> list[PeerInfo]:
    """Return all peers by name."""
    return [PeerInfo(*[*known, _rule(text)]) for *known, text in db.ask(PEERS)]


def _rule(text: str | None) -> InboundRule | None:
    return None if text is None else InboundRule.parse(text)


def dead_letters(db: Database, which: DeadLetterSelection, *, limit: int = 100) -> list[DeadLetter]:
    """Return dead letters, oldest first; a topic may be a pattern."""
    if which.topic is not None:
        check_pattern(which.topic)
    found = db.ask(
        DEAD,
        {
            name: getattr(which, name)
            for name in ("id", "reason", "origin", "peer", "session", "type", "before")
        },
    )
    seqs = [
        seq
        for seq, topic in found
        if which.topic is None or (topic is not None and matches(which.topic, topic))
    ]
    chosen = json.dumps(seqs[:limit] if limit >= 0 else seqs)
    return [
        DeadLetter(**dict(zip(DEAD_COLUMNS, row, strict=True))) for row in db.ask(BY_SEQ, (chosen,))
    ]


def next_wakeup(db: Database, left: float | None) -> float | None:
    """Return how long a reader may wait before some lane is due again, at most *left* seconds."""
    due_at = lanes.next_due(db.read)
    if due_at is None:
        return left
    wait = max(0.001, (int(due_at) - db.now()) / 1000)
    return wait if left is None else min(wait, left)


# -- runs and session queues --------------------------------------------------------------

WAITING: Final = f"""
SELECT {columns(MessageRecord, "b.", at="b.received_at", text="b.frame", box="'in'")}
  FROM onceward_session_queue_messages AS q
  JOIN onceward_inbox AS b ON b.sender = q.sender AND b.id = q.id
 WHERE q.session = ?
 ORDER BY q.position
"""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, open or past."""

    id: str
    session: str
    mode: QueueMode
    state: RunState
    event_ids: tuple[str, ...]
    """The ids of its messages, in order."""
    consumed: bool
    """Whether its messages ended with it."""
    partial: Any
    result: Any
    cause: str | None
    """Why it was aborted or failed."""
    lease_at: Millis | None
    started_at: Millis
    checkpoint_at: Millis | None
    ended_at: Millis | None
    left_at: Millis | None
    """When its call, which had not returned after the grace, stopped to count."""
    returned_at: Millis | None
    """When that call returned after all."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One session's queue: how it is set, all levels merged, and what is in it."""

    session: str
    state: QueueState
    mode: QueueMode | None
    debounce: float | None
    """Seconds."""
    cap: int | None
    overflow: QueueOverflow | None
    aborted: Aborted | None
    inject: bool
    waiting: int
    bound: int
    run: str | None
    dropped: int
    """Dropped messages that no run has a summary of yet."""
    due_at: Millis | None
    arrived_at: Millis | None
    paused_at: Millis | None


RUNS: Final = f"""
SELECT {columns(RunInfo)} FROM onceward_runs
 WHERE (:session IS NULL OR session = :session) AND (:state IS NULL OR state = :state)
 ORDER BY seq DESC LIMIT :limit
"""
RUN: Final = f"SELECT {columns(RunInfo)} FROM onceward_runs WHERE id = ?"
QUEUES: Final = f"""
SELECT {columns(QueueInfo, debounce="debounce_for")} FROM onceward_session_queues ORDER BY session
"""


def runs(db: Database, *, session: str | None, state: str | None, limit: int) -> list[RunInfo]:
    """Return runs, newest first."""
    return [_run(row) for row in db.ask(RUNS, {"session": session, "state": state, "limit": limit})]


def run(db: Database, run_id: str) -> RunInfo | None:
    """Return one run."""
    rows = db.ask(RUN, (run_id,))
    return _run(rows[0]) if rows else None


def _run(row: tuple[Any, ...]) -> RunInfo:
    run_id, session, mode, state, event_ids, consumed, partial, result, *rest = row
    return RunInfo(
        run_id,
        session,
        mode,
        state,
        tuple(json.loads(event_ids)),
        bool(consumed),
        _plain(partial),
        _plain(result),
        *rest,
    )


def _plain(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def queues(db: Database) -> list[QueueInfo]:
    """Return all queues by session."""
    return [_queue(row) for row in db.ask(QUEUES)]


def _queue(row: tuple[Any, ...]) -> QueueInfo:
    session, state, mode, debounce_for, cap, overflow, aborted, inject, *rest = row
    return QueueInfo(
        session,
        state,
        mode,
        None if debounce_for is None else debounce_for / 1000,
        cap,
        overflow,
        aborted,
        bool(inject),
        *rest,
    )


def waiting(db: Database, session: str) -> list[MessageRecord]:
    """Return the messages that wait in a session's queue, in order."""
    return [MessageRecord(*row) for row in db.ask(WAITING, (session,))]
