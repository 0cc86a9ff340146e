"""Store the items of conversations in an agent's file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from onceward.file.transaction import Rows, StoreTransaction
from onceward.integrations.tables import IntegrationTables

TABLES: Final = IntegrationTables(
    "openai_agents",
    1,
    """
CREATE TABLE _onceward_agent_items (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT    NOT NULL,
    item       TEXT    NOT NULL,
    stored_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX _onceward_agent_items_by_session ON _onceward_agent_items (session_id, seq);
CREATE VIEW onceward_agent_items AS
SELECT seq, session_id, item ->> 'role' AS role, item ->> 'type' AS type, item AS body, stored_at
  FROM _onceward_agent_items;
""",
)
NEWEST: Final = """
SELECT seq, item FROM _onceward_agent_items
 WHERE session_id = ? ORDER BY seq DESC LIMIT ?
"""
ADD: Final = "INSERT INTO _onceward_agent_items (session_id, item, stored_at) VALUES (?, ?, ?)"
POP: Final = """
DELETE FROM _onceward_agent_items
 WHERE seq = (SELECT max(seq) FROM _onceward_agent_items WHERE session_id = ?)
RETURNING item
"""
DELETE: Final = "DELETE FROM _onceward_agent_items WHERE seq = ?"
CLEAR: Final = "DELETE FROM _onceward_agent_items WHERE session_id = ?"


class StoredItem(NamedTuple):
    """An item of a conversation; one that is not in the file yet has no number."""

    seq: int | None
    text: str


def newest(read: Rows, session: str, limit: int) -> list[StoredItem]:
    """Return the newest items of a conversation in their order; all with a negative limit."""
    return [StoredItem(*row) for row in reversed(read(NEWEST, (session, limit)))]


def add(tx: StoreTransaction, session: str, items: Iterable[str]) -> None:
    """Add items; the tables are made if need be."""
    TABLES.make(tx)
    tx.many(ADD, [(session, each, tx.now) for each in items])


def pop(tx: StoreTransaction, session: str) -> str | None:
    """Take the newest item; None if there is none."""
    rows = tx.rows(POP, (session,))
    return rows[0][0] if rows else None


def delete(tx: StoreTransaction, items: Sequence[StoredItem]) -> None:
    """Delete items."""
    tx.many(DELETE, [(each.seq,) for each in items])


def clear(tx: StoreTransaction, session: str) -> None:
    """Delete all items of a conversation."""
    tx.run(CLEAR, (session,))
