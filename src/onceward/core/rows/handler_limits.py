"""
Write the limits of handlers that are set while they run, and the types that are paused.

A row names a handler as it was registered (type, topic or pattern), or a paused type or topic.
While there is a row, workers claim through gates, which read the rows in the transaction of each
claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.times import Rate
from onceward.message.topics import matches


class SetLimit(NamedTuple):
    """The limits that are set for one handler, or the pause of a type."""

    name: str
    per_second: float | None
    burst: float | None
    concurrency: int | None
    paused: int

    @property
    def rate(self) -> Rate | None:
        """The rate that is set."""
        if self.per_second is None or self.burst is None:
            return None
        return Rate(int(self.burst), self.per_second)


ALL: Final = """
SELECT name, per_second, burst, concurrency, paused_at IS NOT NULL FROM _onceward_handler_limits
"""
PAUSED: Final = "SELECT name FROM _onceward_handler_limits WHERE paused_at IS NOT NULL"
# What is not given stays.
SET: Final = """
INSERT INTO _onceward_handler_limits (name, per_second, burst, concurrency, changed_at)
VALUES (:name, :per_second, :burst, :concurrency, :now)
ON CONFLICT (name) DO UPDATE
   SET per_second = coalesce(excluded.per_second, per_second),
       burst = coalesce(excluded.burst, burst),
       concurrency = coalesce(excluded.concurrency, concurrency),
       changed_at = excluded.changed_at, applied_at = NULL
"""
PAUSE: Final = """
INSERT INTO _onceward_handler_limits (name, paused_at, changed_at) VALUES (:name, :now, :now)
ON CONFLICT (name) DO UPDATE
   SET paused_at = excluded.paused_at, changed_at = excluded.changed_at, applied_at = NULL
 WHERE paused_at IS NULL
"""
RESUME: Final = """
UPDATE _onceward_handler_limits SET paused_at = NULL, changed_at = :now, applied_at = NULL
 WHERE name = :name AND paused_at IS NOT NULL AND (per_second > 0 OR concurrency > 0)
"""
FORGET_PAUSE: Final = """
DELETE FROM _onceward_handler_limits WHERE name = :name AND paused_at IS NOT NULL
"""
REMOVE: Final = """
UPDATE _onceward_handler_limits
   SET per_second = NULL, burst = NULL, concurrency = NULL, changed_at = :now, applied_at = NULL
 WHERE name = :name AND paused_at IS NOT NULL AND (per_second > 0 OR concurrency > 0)
"""
FORGET_LIMIT: Final = """
DELETE FROM _onceward_handler_limits WHERE name = :name AND paused_at IS NULL
"""
APPLIED: Final = """
UPDATE _onceward_handler_limits
   SET applied_at = :now, declared_per_second = :per_second, declared_burst = :burst,
       declared_concurrency = :concurrency
 WHERE name = :name
   AND (applied_at IS NULL OR declared_per_second IS NOT :per_second
        OR declared_burst IS NOT :burst OR declared_concurrency IS NOT :concurrency)
"""


def all_of(read: Rows) -> list[SetLimit]:
    """Return what is set for handlers; no row if nothing is."""
    return [SetLimit(*row) for row in read(ALL, ())]


def paused(read: Rows) -> frozenset[str]:
    """Return the types, topics and patterns that are paused."""
    return frozenset(name for (name,) in read(PAUSED, ()))


def is_paused(names: Iterable[str], type: str, topic: str | None) -> bool:
    """Return whether one of the paused *names* matches a message's type or topic."""
    have = (type,) if topic is None else (type, topic)
    return any(matches(name, each) for name in names for each in have)


def save(tx: StoreTransaction, name: str, rate: Rate | None, concurrency: int | None) -> None:
    """Set limits of a handler; those that are not given stay."""
    tx.run(SET, _named(tx, name, rate, concurrency))


def remove(tx: StoreTransaction, name: str) -> bool:
    """Remove the set limits of a handler; return whether it had one."""
    named = {"name": name, "now": tx.now}
    return tx.run(REMOVE, named) + tx.run(FORGET_LIMIT, {"name": name}) > 0


def pause(tx: StoreTransaction, name: str) -> None:
    """Pause a type, topic or pattern; a pause that began earlier stays."""
    tx.run(PAUSE, {"name": name, "now": tx.now})


def resume(tx: StoreTransaction, name: str) -> bool:
    """End the pause of a type; return whether there was one."""
    named = {"name": name, "now": tx.now}
    return tx.run(RESUME, named) + tx.run(FORGET_PAUSE, {"name": name}) > 0


def note_applied(
    tx: StoreTransaction, name: str, rate: Rate | None, concurrency: int | None
) -> None:
    """Note that a worker applies a row, and what its code declares."""
    tx.run(APPLIED, _named(tx, name, rate, concurrency))


def _named(
    tx: StoreTransaction, name: str, rate: Rate | None, concurrency: int | None
) -> dict[str, Any]:
    return {
        "name": name,
        "per_second": None if rate is None else rate.per_second,
        "burst": None if rate is None else rate.burst,
        "concurrency": concurrency,
        "now": tx.now,
    }
