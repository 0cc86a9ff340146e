"""Write parts of statements, and run statements of one kind, for the modules that share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from onceward.file.transaction import StoreTransaction
    from onceward.message.clock import Millis

# Rows of a call are deleted with the row of its message, in the inbox or the dead letters.
ORPHANED: Final = """
DELETE FROM {table}
 WHERE seq IN (SELECT s.seq
                 FROM {table} AS s
                WHERE s.{at} < :before
                  AND NOT EXISTS (SELECT 1
                                    FROM _onceward_inbox AS b
                                   WHERE b.sender = s.sender AND b.id = s.message_id)
                  AND NOT EXISTS (SELECT 1
                                    FROM _onceward_dead_letters AS d
                                   WHERE d.origin = 'inbox' AND d.peer = s.sender
                                     AND d.id = s.message_id)
                ORDER BY s.{at} LIMIT :limit)
"""


def columns(kind: type, of: str = "", **given: str) -> str:
    """Return the columns of a type's fields for SELECT, each as *given*, else by its name."""
    names = column_names(kind)
    return ", ".join(f"{given[n]} AS {n}" if n in given else f"{of}{n}" for n in names)


def column_names(kind: type) -> list[str]:
    """Return the names of a type's fields that are read from columns, in order."""
    return [each.name for each in fields(kind) if each.metadata.get("column", True)]


def senders(table: str) -> str:
    """
    Return a WITH that names each sender of a table or a view.

    An id is unique for each sender: the index on both is asked once for each sender there is.
    """
    return f"""
WITH RECURSIVE senders (name) AS (
    SELECT (SELECT sender FROM {table} WHERE sender > '' ORDER BY sender LIMIT 1)
     UNION ALL
    SELECT (SELECT sender FROM {table} WHERE sender > s.name ORDER BY sender LIMIT 1)
      FROM senders AS s WHERE s.name IS NOT NULL
)
"""  # noqa: S608 - the name of a table or view


def orphaned(table: str, at: str) -> str:
    """Return the statement that deletes a slice of old rows whose message no longer exists."""
    return ORPHANED.format(table=table, at=at)


class EndedRows(NamedTuple):
    """The ended rows of one table, by the statements of the module that owns it."""

    next: str
    one: str
    archived: str
    of_channel: str

    def slice_of(
        self, tx: StoreTransaction, *, after: int, before: Millis, limit: int
    ) -> list[tuple[int, int, int]]:
        """Return (sequence, whether it is old, whether it may be pruned) of a slice."""
        return tx.rows(self.next, {"after": after, "before": before, "limit": limit})

    def remove(self, tx: StoreTransaction, seqs: Sequence[tuple[int]]) -> None:
        """Delete rows."""
        tx.many(self.one, seqs)

    def remove_archived(self, tx: StoreTransaction, row: Mapping[str, Any]) -> list[Millis]:
        """Delete an ended row that is unchanged since it was archived; return when it ended."""
        return [at for (at,) in tx.rows(self.archived, row)]

    def remove_of_channel(
        self, tx: StoreTransaction, channel: str, *, upto: int, limit: int
    ) -> list[Millis]:
        """Delete a slice of a channel's ended messages; return when they ended."""
        named = {"channel": channel, "upto": upto, "limit": limit}
        return [at for (at,) in tx.rows(self.of_channel, named)]
