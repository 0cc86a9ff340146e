"""Report the health of a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from onceward.file import identity
from onceward.file.database import Database
from onceward.message.clock import Millis
from onceward.message.log import LOST
from onceward.message.parcel import Durability

Verdict = Literal["ok", "degraded", "failing"]
WAITS: Final = 300_000
"""Milliseconds after which the oldest due message has waited too long."""
AHEAD: Final = 60_000
"""Allowed milliseconds of the file's time ahead of the wall clock."""
LARGE_WAL: Final = 256 << 20
"""Size in bytes of a pinned WAL that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Size, backlog and state of a file at one moment."""

    verdict: Verdict
    """
    Verdict on the agent.

    ``failing``: paused, a full disk keeps the file closed, or an error has shown that its tables
    are damaged. ``degraded``: it works, but ``reasons`` need an operator. ``ok``: neither. Dead
    letters do not change the verdict.
    """
    reasons: tuple[str, ...]
    """Why the verdict is not ``ok``."""
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
    """False while a full disk keeps the file closed: a power cut may lose data read then."""
    clock_ahead: Millis
    """Milliseconds that the file's time is ahead of the wall clock, which was set back."""
    calls_left: int
    """Calls of aborted runs in live processes that did not return within the grace."""


SAVED_WAL: Final = "the -wal was deleted under this process, which has saved all of it"
LOST_WAL: Final = "the -wal was deleted, and its commits may be lost: a new one existed already"
STATS: Final = "SELECT * FROM onceward_stats"
STATS_COLUMNS: Final = "SELECT name FROM pragma_table_info('onceward_stats')"
OLDEST: Final = """
SELECT min(CASE box WHEN 'inbox' THEN oldest_at END), min(CASE box WHEN 'outbox' THEN oldest_at END)
  FROM onceward_backlog
"""
SCHEMA: Final = "SELECT max(version) FROM _onceward_migrations"
OPEN_BREAKERS: Final = "SELECT count(*) FROM _onceward_peers WHERE breaker <> 'closed'"
SQLITE: Final = "SELECT sqlite_version()"


def stats(db: Database) -> dict[str, int]:
    """Return the totals and present counts of one file."""
    names = [name for (name,) in db.ask(STATS_COLUMNS)]
    [row] = db.ask(STATS)
    return dict(zip(names, row, strict=True))


def read_health(db: Database, *, calls_left: int) -> Health:
    """Return a file's health; try a checkpoint to see whether a reader pins the WAL."""
    numbers = stats(db)
    pages, moved = db.checkpoint(truncate=False) if db.behind_barrier else (-1, -1)
    [(schema,)], [(breakers,)], [(sqlite,)] = map(db.ask, (SCHEMA, OPEN_BREAKERS, SQLITE))
    found = Health(
        verdict="ok",
        reasons=(),
        agent=db.agent,
        path=str(db.path),
        durability=db.durability,
        sqlite=sqlite,
        schema=schema,
        wal_bytes=db.wal_bytes(),
        wal_pinned=pages > moved >= 0,
        paused=identity.is_paused(db.ask),
        pending=numbers["pending"],
        dead_letters=numbers["dead_letters"],
        breakers_open=breakers,
        behind_barrier=db.behind_barrier,
        clock_ahead=max(0, db.now() - db.clock.now()),
        calls_left=calls_left,
    )
    return _judged(found, db)


def _judged(found: Health, db: Database) -> Health:
    damaged = db.examine() if db.damaged else None  # it may have been repaired since
    stops = {
        "the file is paused": found.paused,
        "the disk is full: the file is read-only": not found.behind_barrier,
        f"the file is damaged: {damaged}": damaged is not None,
    }
    [(handled_at, sent_at)] = db.ask(OLDEST)
    latest = db.now() - WAITS
    troubles = {
        "messages have waited for five minutes to be handled": (handled_at or latest) < latest,
        "messages have waited for five minutes to be sent": (sent_at or latest) < latest,
        f"{found.breakers_open} breakers are open": found.breakers_open > 0,
        "a reader keeps a WAL of 256 MiB": found.wal_pinned and found.wal_bytes > LARGE_WAL,
        "the file's time is a minute ahead of the wall clock": found.clock_ahead > AHEAD,
        f"{found.calls_left} calls of aborted runs have not returned": found.calls_left > 0,
        LOST.summary: LOST.since(WAITS / 1000),
        LOST_WAL: db.deleted_wal is not None and not db.deleted_wal.saved,
        SAVED_WAL: db.deleted_wal is not None and db.deleted_wal.saved,
    }
    failing = [reason for reason, holds in stops.items() if holds]
    reasons = (*failing, *(reason for reason, holds in troubles.items() if holds))
    verdict: Verdict = "failing" if failing else "degraded" if reasons else "ok"
    return replace(found, verdict=verdict, reasons=reasons)
