"""How a file is, and the switch that freezes it for all processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.db.database import Database
from onceward.db.transaction import Tx
from onceward.store import queries

FREEZE: Final = "UPDATE identity SET frozen_at = coalesce(frozen_at, ?)"
THAW: Final = "UPDATE identity SET frozen_at = NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a file is."""

    agent: str
    path: str
    durability: str
    sqlite: str
    schema: int
    wal_bytes: int
    wal_pinned: bool
    """Whether a reader keeps the WAL from being emptied."""
    frozen: bool
    pending: int
    dead_letters: int
    breakers_open: int


SCHEMA: Final = "SELECT max(version) FROM schema_migrations"
OPEN_BREAKERS: Final = "SELECT count(*) FROM peers WHERE breaker <> 'closed'"
FROZEN: Final = "SELECT frozen_at IS NOT NULL FROM identity"
SQLITE: Final = "SELECT sqlite_version()"


def look(db: Database) -> Health:
    """Return how a file is; tries a checkpoint to see whether a reader pins the WAL."""
    pages, moved = db.checkpoint(truncate=False)
    numbers = queries.stats(db)
    [(schema,)], [(breakers,)], [(frozen,)], [(sqlite,)] = (
        db.read(sql) for sql in (SCHEMA, OPEN_BREAKERS, FROZEN, SQLITE)
    )
    return Health(
        agent=db.agent,
        path=str(db.path),
        durability=db.durability,
        sqlite=sqlite,
        schema=schema,
        wal_bytes=db.wal_bytes(),
        wal_pinned=pages > moved >= 0,
        frozen=bool(frozen),
        pending=numbers["pending"],
        dead_letters=numbers["dead_letters"],
        breakers_open=breakers,
    )


def freeze(tx: Tx) -> None:
    """Throw the kill-switch; it stays thrown across restarts."""
    tx.run(FREEZE, (tx.now,))


def thaw(tx: Tx) -> None:
    """Take the kill-switch back."""
    tx.run(THAW)


def frozen(tx: Tx) -> bool:
    """Return whether the kill-switch is thrown."""
    return bool(tx.rows(FROZEN)[0][0])
