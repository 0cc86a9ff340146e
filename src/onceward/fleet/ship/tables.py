"""Define the tables of a shipped log, and how one row of a file is read, typed and digested."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import apsw

from onceward.errors import StoreCorrupt
from onceward.fleet.opening import Source, lacking
from onceward.fleet.views import columns_of, declared

Kind = Literal["text", "integer", "moment"]
"""A column's type; a moment is milliseconds since 1970, UTC."""
DAY_MS: Final = 86_400_000
LAST_DAY: Final = 2_932_896
"""The day 9999-12-31, in days since 1970."""
LEFT_OUT: Final = frozenset({"body"})
"""Columns of views that repeat what the frame says."""
ROWS: Final = "SELECT {columns} FROM {view} WHERE seq > ? AND seq <= ? ORDER BY seq"
NAMED: Final = (
    "SELECT {columns} FROM {view} WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq"
)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the log, and the view of an agent's file that its rows are read from."""

    name: str
    view: str
    counter: str
    """The private table whose sequence numbers the rows."""
    began: str
    """The column that says when a row began, which names the day of its partition."""
    ended: str = ""
    """The column that is NULL while a row may still change; empty: rows do not change."""


TABLES: Final[Mapping[str, Table]] = {
    table.name: table
    for table in (
        Table("outbox", "onceward_outbox", "_onceward_outbox", "created_at", "ended_at"),
        Table("inbox", "onceward_inbox", "_onceward_inbox", "received_at", "ended_at"),
        Table(
            "processed",
            "onceward_processed_messages",
            "_onceward_processed_messages",
            "processed_at",
        ),
        Table("dead_letters", "onceward_dead_letters", "_onceward_dead_letters", "dead_at"),
        Table("transitions", "onceward_transitions", "_onceward_transitions", "at"),
    )
}
"""Tables by name."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file at one moment; it has no values if it was removed."""

    seq: int
    day: int
    """The day on which it began, in days since 1970."""
    values: tuple[Any, ...] = ()
    digest: str = ""
    again: bool = False
    """Whether an earlier version of it was shipped."""

    @property
    def gone(self) -> bool:
        """Whether the row was removed, by other means than pruning."""
        return not self.values


class Known(NamedTuple):
    """A row that the log has: its id, and the day on which it began."""

    id: str
    day: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that a table has in one file."""

    table: Table
    columns: Mapping[str, Kind]

    @classmethod
    def of(cls, source: Source, table: Table) -> Shape:
        """Return the shape of a table in an open file; raise Unreadable if it has none."""
        found = columns_of(source.con, table.view)
        if not found:
            raise lacking(source, table.view)
        return cls(table, _kinds(found))

    def rows(self, con: apsw.Connection, after: int, to: int) -> Iterator[Row]:
        """Yield the rows whose sequence is above *after* and up to *to*, in order."""
        return self._read(con, ROWS, (after, to))

    def named(self, con: apsw.Connection, seqs: Iterable[int]) -> Iterator[Row]:
        """Yield the rows of these sequences that the file has, in order."""
        return self._read(con, NAMED, (json.dumps(sorted(seqs)),))

    def _read(self, con: apsw.Connection, sql: str, bindings: Sequence[Any]) -> Iterator[Row]:
        names = tuple(self.columns)
        listed = ", ".join(f'"{name}"' for name in names)
        seq, began, done = names.index("seq"), names.index(self.table.began), 0
        try:
            for values in con.execute(sql.format(columns=listed, view=self.table.view), bindings):
                yield Row(
                    int(values[seq]),
                    day_of(values[began]),
                    values,
                    digest_of(names, values),
                )
                done += 1
        except UnicodeDecodeError as error:
            rows = con.execute(sql.format(columns="seq", view=self.table.view), bindings).fetchall()
            raise self._no_text(con, rows[done][0]) from error

    def _no_text(self, con: apsw.Connection, seq: Any) -> StoreCorrupt:
        """Return the error of a row in which some text is not UTF-8, as only raw SQL writes it."""
        wrong = [name for name in self.columns if not self._is_text(con, name, seq)]
        return StoreCorrupt(
            f"{self.table.counter}, seq {seq}: {' and '.join(wrong)} is text that is not UTF-8:"
            " overwrite it there (UPDATE in a SQLite shell), and ship again"
        )

    def _is_text(self, con: apsw.Connection, column: str, seq: Any) -> bool:
        try:
            con.execute(
                f'SELECT "{column}" FROM {self.table.view} WHERE seq = ?', (seq,)
            ).fetchall()
        except UnicodeDecodeError:
            return False
        return True

    def value(self, row: Row, column: str) -> Any:
        """Return one value of a row; None if the file has no such column."""
        names = tuple(self.columns)
        return row.values[names.index(column)] if column in names else None

    def open(self, row: Row) -> bool:
        """Return whether the row may still change by the normal course of its message."""
        return bool(self.table.ended) and self.value(row, self.table.ended) is None


@lru_cache(maxsize=1)
def standard() -> Mapping[str, Mapping[str, Kind]]:
    """Return the columns that each table has in a file of this version."""
    return {name: _kinds(declared()[table.view]) for name, table in TABLES.items()}


def _kinds(found: Mapping[str, str]) -> dict[str, Kind]:
    return {name: _kind(name, kind) for name, kind in found.items() if name not in LEFT_OUT}


def _kind(name: str, stored: str) -> Kind:
    if name == "at" or name.endswith("_at"):
        return "moment"
    return "integer" if stored == "INTEGER" else "text"


def day_of(moment: Any) -> int:
    """Return the day of a moment, in days since 1970; a moment that is not a date is of day 0."""
    day = moment // DAY_MS if isinstance(moment, int) else 0
    return day if 0 <= day <= LAST_DAY else 0


def digest_of(names: Sequence[str], values: Sequence[Any]) -> str:
    """
    Return the digest of a row: of its columns that are not NULL, by name.

    A later column that is NULL in old rows does not change their digests.
    """
    named = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    text = json.dumps(named, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
