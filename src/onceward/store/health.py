"""Report the health of a file, and pause or resume it for all processes."""

from __future__ import annotations

from typing import Final

from onceward.db.database import Database
from onceward.db.transaction import StoreTransaction
from onceward.model.clock import Millis
from onceward.model.parcel import Durability
from onceward.model.values import dataclass
from onceward.store import queries, runs

PAUSE: Final = "UPDATE _onceward_file_info SET paused_at = coalesce(paused_at, ?)"
RESUME: Final = "UPDATE _onceward_file_info SET paused_at = NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Size, backlog and state of a file at one moment."""

    agent: str
    path: str
    durability: Durability
    sqlite: str
    schema: int
    wal_bytes: int
    wal_pinned: bool
    """Whether a reader keeps the WAL from being emptied."""
    paused: bool
    pending: int
    """Messages that their peers have not stored yet."""
    dead_letters: int
    breakers_open: int
    behind_barrier: bool
    """False while a full disk keeps the file closed: a power cut may take what is read then."""
    clock_ahead: Millis
    """Milliseconds that the file's time is ahead of the wall clock, which was set back."""
    calls_left: int
    """Calls of aborted runs that have not returned after the grace, in processes that live."""


SCHEMA: Final = "SELECT max(version) FROM _onceward_migrations"
OPEN_BREAKERS: Final = "SELECT count(*) FROM _onceward_peers WHERE breaker <> 'closed'"
PAUSED: Final = "SELECT paused_at IS NOT NULL FROM _onceward_file_info"
SQLITE: Final = "SELECT sqlite_version()"


def read_health(db: Database) -> Health:
    """Return a file's health; try a checkpoint to see whether a reader pins the WAL."""
    numbers = queries.stats(db)
    pages, moved = db.checkpoint(truncate=False) if db.behind_barrier else (-1, -1)
    [(schema,)], [(breakers,)], [(paused,)], [(sqlite,)] = (
        db.ask(sql) for sql in (SCHEMA, OPEN_BREAKERS, PAUSED, SQLITE)
    )
    return Health(
        agent=db.agent,
        path=str(db.path),
        durability=db.durability,
        sqlite=sqlite,
        schema=schema,
        wal_bytes=db.wal_bytes(),
        wal_pinned=pages > moved >= 0,
        paused=bool(paused),
        pending=numbers["pending"],
        dead_letters=numbers["dead_letters"],
        breakers_open=breakers,
        behind_barrier=db.behind_barrier,
        clock_ahead=max(0, db.now() - db.clock.now()),
        calls_left=runs.calls_left(db),
    )


def pause(tx: StoreTransaction) -> None:
    """Pause the file for all processes; it stays paused across restarts."""
    tx.run(PAUSE, (tx.now,))


def resume(tx: StoreTransaction) -> None:
    """Resume the file for all processes."""
    tx.run(RESUME)


def paused(tx: StoreTransaction) -> bool:
    """Return whether the file is paused."""
    return bool(tx.rows(PAUSED)[0][0])
