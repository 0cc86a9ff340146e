"""
Write what the code of an agent declares for each process that has its file open.

Workers and readers leave sessions of ``session_handlers`` alone. A message of ``awaited_types`` is
offered to features as it arrives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from onceward.file.transaction import Rows, StoreTransaction

AWAITED: Final = "SELECT type FROM _onceward_awaited_types"
AWAIT: Final = "INSERT INTO _onceward_awaited_types (type) VALUES (?)"
AWAIT_NO_MORE: Final = "DELETE FROM _onceward_awaited_types WHERE type = ?"
# The newest declaration of a pattern holds.
SERVE: Final = """
INSERT INTO _onceward_session_handlers (pattern, mode, debounce_for, cap, overflow, aborted, inject,
                                        allow_override_from)
VALUES (:pattern, :mode, :debounce_for, :cap, :overflow, :aborted, :inject, :allow_override_from)
ON CONFLICT (pattern) DO UPDATE
   SET mode = excluded.mode, debounce_for = excluded.debounce_for, cap = excluded.cap,
       overflow = excluded.overflow, aborted = excluded.aborted, inject = excluded.inject,
       allow_override_from = excluded.allow_override_from
"""
SERVE_NO_MORE: Final = "DELETE FROM _onceward_session_handlers WHERE pattern = ?"


def awaited(read: Rows) -> set[str]:
    """Return the types that handlers wait for."""
    return {name for (name,) in read(AWAITED, ())}


def set_awaited(tx: StoreTransaction, types: Collection[str]) -> None:
    """Declare the types that handlers wait for, replacing earlier ones."""
    known = awaited(tx.rows)
    tx.many(AWAIT_NO_MORE, [(name,) for name in known.difference(types)])
    tx.many(AWAIT, [(name,) for name in set(types) - known])


def serve(tx: StoreTransaction, named: Mapping[str, Any]) -> None:
    """Serve the sessions of a pattern otherwise than by workers and readers."""
    tx.run(SERVE, named)


def serve_no_more(tx: StoreTransaction, pattern: str) -> None:
    """Leave the sessions of a pattern to workers and readers."""
    tx.run(SERVE_NO_MORE, (pattern,))
