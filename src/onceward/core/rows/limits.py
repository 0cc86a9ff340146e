"""
Write the limits of the outbox, and count the usage of each scope.

The statements of ``usage.sql`` count while messages are added and end. They are in the file only
while it has limits, so that a message costs nothing without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from onceward.core.rows import outbox
from onceward.file.transaction import Rows, StoreTransaction

KEEP: Final = """
INSERT INTO _onceward_limits (scope, name, max_messages, max_bytes, overflow)
VALUES (:scope, :name, :messages, :bytes, :overflow)
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


def fullness(read: Rows) -> dict[str, tuple[int, int]]:
    """Return the current messages and bytes by scope and name (``session run-42``)."""
    return {f"{scope} {name}".rstrip(): (n, size) for scope, name, n, size in read(FULLNESS, ())}


def save(tx: StoreTransaction, limit: Mapping[str, Any]) -> None:
    """Set a limit; existing messages above it stay."""
    tx.run(KEEP, limit)
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
