"""Typed reads over the views of runs and session queues; nothing here changes anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from onceward.db.database import Database
from onceward.model.clock import Millis

RUN_COLUMNS: Final = "id, session, mode, state, event_ids, consumed, partial, result, cause, lease_at, started_at, checkpoint_at, ended_at"
RUNS: Final = f"""
SELECT {RUN_COLUMNS} FROM run_view
 WHERE (:session IS NULL OR session = :session) AND (:state IS NULL OR state = :state)
 ORDER BY seq DESC LIMIT :limit
"""
RUN: Final = f"SELECT {RUN_COLUMNS} FROM run_view WHERE id = ?"
QUEUES: Final = """
SELECT session, state, mode, debounce_for, cap, overflow, aborted, inject, waiting, bound, run, dropped, due_at, arrived_at, paused_at
  FROM session_queue_view ORDER BY session
"""
WAITING: Final = """
SELECT id, sender, type, attempts, received_at FROM waiting_view WHERE session = ? ORDER BY place
"""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, open or past."""

    id: str
    session: str
    mode: str
    state: str
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


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One session's queue: how it is set, all levels merged, and what is in it."""

    session: str
    state: str
    """paused, running, empty, ready or waiting."""
    mode: str | None
    debounce: float | None
    """Seconds."""
    cap: int | None
    overflow: str | None
    aborted: str | None
    inject: bool
    waiting: int
    bound: int
    run: str | None
    dropped: int
    """Messages that were dropped and that no run has been told of."""
    due_at: Millis | None
    arrived_at: Millis | None
    paused_at: Millis | None


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that waits in a session's queue."""

    id: str
    sender: str
    type: str
    attempts: int
    received_at: Millis


def runs(db: Database, *, session: str | None, state: str | None, limit: int) -> list[RunInfo]:
    """Return runs, newest first."""
    return [
        _run(row) for row in db.read(RUNS, {"session": session, "state": state, "limit": limit})
    ]


def run(db: Database, run_id: str) -> RunInfo | None:
    """Return one run."""
    rows = db.read(RUN, (run_id,))
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
    return [_queue(row) for row in db.read(QUEUES)]


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


def waiting(db: Database, session: str) -> list[QueuedMessage]:
    """Return the messages that wait in a session's queue, in order."""
    return [QueuedMessage(*row) for row in db.read(WAITING, (session,))]
