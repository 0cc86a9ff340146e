"""Store the limits that users set, and count the usage of each scope."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onceward.core.rows import outbox, rates
from onceward.errors import InvalidArgument
from onceward.file import identity
from onceward.file.database import Database
from onceward.file.sql_parts import columns
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import DropPolicy, DropScope, LimitScope, Overflow

KEEP: Final = """
INSERT INTO _onceward_limits (scope, name, max_messages, max_bytes, overflow) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope, name) DO UPDATE
   SET max_messages = excluded.max_messages, max_bytes = excluded.max_bytes,
       overflow = excluded.overflow
"""
REMOVE: Final = "DELETE FROM _onceward_limits WHERE scope = ? AND name = ?"
ANY: Final = "SELECT 1 FROM _onceward_limits LIMIT 1"
INSTALLED: Final = """
SELECT type, name
  FROM sqlite_schema
 WHERE name GLOB '_onceward_limits_*' AND type IN ('trigger', 'view', 'index')
"""
EMPTY: Final = "DELETE FROM _onceward_limit_usage"
RECOUNT: Final = """
INSERT INTO _onceward_limit_usage (scope, name, messages, bytes)
SELECT f.scope, f.name, count(*), sum(f.bytes)
  FROM _onceward_limits_of AS f JOIN _onceward_outbox AS o ON o.seq = f.seq
 WHERE o.state IN ('pending', 'sent') AND o.held_by IS NULL
   AND EXISTS (SELECT 1
                 FROM _onceward_limits AS l
                WHERE l.scope = f.scope AND l.name IN (f.name, '*'))
 GROUP BY f.scope, f.name
"""
FULLNESS: Final = """
SELECT scope, name, messages, bytes
  FROM _onceward_limit_usage
 WHERE messages > 0
 ORDER BY scope, name
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """
    Maximum unsettled messages and bytes of one scope.

    The name ``*`` limits each session, lane or channel separately.
    """

    scope: LimitScope
    name: str
    messages: int | None
    bytes: int | None
    overflow: Overflow


@dataclass(frozen=True, slots=True)
class DropRecord:
    """A message that a policy dropped."""

    id: str
    recipient: str
    session: str
    scope: DropScope
    name: str
    policy: DropPolicy
    line: str | None
    summary_id: str | None
    dropped_at: Millis


DROPS: Final = f"SELECT {columns(DropRecord)} FROM onceward_drops ORDER BY seq DESC LIMIT ?"


def fullness(db: Database) -> dict[str, tuple[int, int]]:
    """Return the current messages and bytes by scope and name (``session run-42``)."""
    return {f"{scope} {name}".rstrip(): (n, size) for scope, name, n, size in db.read(FULLNESS)}


def drops(db: Database, limit: int) -> list[DropRecord]:
    """Return the messages that policies dropped, newest first."""
    return [DropRecord(*row) for row in db.read(DROPS, (limit,))]


def save(tx: StoreTransaction, limit: Limit) -> None:
    """Set a limit; existing messages above it stay."""
    tx.run(KEEP, (limit.scope, limit.name, limit.messages, limit.bytes, limit.overflow))
    _recount(tx)


def remove(tx: StoreTransaction, scope: str, name: str) -> bool:
    """Remove a limit and release messages that only it held back; return whether it existed."""
    gone = tx.run(REMOVE, (scope, name)) > 0
    _recount(tx)
    return gone


def _recount(tx: StoreTransaction) -> None:
    """Create the triggers while there are limits, and count the usage of each scope."""
    for kind, name in tx.rows(INSTALLED):
        tx.run(f'DROP {kind} "{name}"')
    tx.run(EMPTY)
    if not tx.rows(ANY):
        outbox.free_all(tx)
        return
    tx.rows(Path(__file__).with_name("usage.sql").read_text(encoding="utf-8"))
    tx.run(RECOUNT)
    outbox.free_orphans(tx)
    while outbox.free_next(tx):
        pass


def remove_rate(tx: StoreTransaction, of: str) -> bool:
    """Remove the rate of sending, or of accepting from each sender; return whether it was set."""
    return rates.remove(tx, of)


def set_rate(tx: StoreTransaction, of: str, per_second: float, burst: float) -> None:
    """Set the rate of sending (``send``), or of accepting from each sender (``accept``)."""
    if not burst >= 1:
        raise InvalidArgument(f"a rate needs a burst of at least one message, not {burst!r}")
    rates.set_rate(tx, of, per_second, burst)


def set_file(tx: StoreTransaction, max_bytes: int) -> None:
    """Set the maximum bytes in use of the file."""
    identity.set_max_bytes(tx, max_bytes)


def remove_file(tx: StoreTransaction) -> bool:
    """Remove the size limit of the file; return whether it had one."""
    return identity.set_max_bytes(tx, None)
