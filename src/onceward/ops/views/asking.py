"""Ask through an object that runs statements: rows as values, conditions, ids and moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from onceward.file.sql_parts import columns
from onceward.message.vocabulary import PARKED

NEVER: Final = 1 << 62
"""Upper bound of sequence numbers and moments."""
HIGHEST: Final = "\U0010ffff"

T = TypeVar("T")


class Source(Protocol):
    """Runs one reading statement: questions are asked through it."""

    @property
    def path(self) -> Path:
        """The file that is read; beside it stands which owners of leases live."""
        ...

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        ...


def matches(**columns_of: str) -> str:
    """Return a condition: each parameter is NULL, or equal to its column."""
    tests = (f"(:{name} IS NULL OR {column} = :{name})" for name, column in columns_of.items())
    return "\n   AND ".join(tests)


def values(source: Source, kind: type[T], sql: str, **named: Any) -> tuple[T, ...]:
    """Return the rows of a statement as values of a type."""
    return tuple(kind(*row) for row in source.rows(sql, named or None))


def by_name(kind: type, view: str, name: str) -> str:
    """Return the statement for rows of a view by a name, after the name ``:after``."""
    return f"""
SELECT {columns(kind)} FROM {view} WHERE {name} > :after ORDER BY {name} LIMIT :limit
"""


def lanes_held(most: int) -> str:
    """Return a table of the lanes that are leased or wait for a moment, the next ones first."""
    return (
        f"(SELECT * FROM onceward_lanes WHERE due_at >= 0 AND due_at < {PARKED}"
        f" ORDER BY due_at LIMIT {most})"
    )


def moment_from(view: str, at: str) -> str:
    """Return the statement for the number and moment of the first row at or after a number."""
    return f"SELECT seq, {at} FROM {view} WHERE seq >= ? ORDER BY seq LIMIT 1"


def moment_before(view: str, at: str) -> str:
    """Return the statement for number and moment of the last row up to a number."""
    return f"SELECT seq, {at} FROM {view} WHERE seq <= ? ORDER BY seq DESC LIMIT 1"


def ids_from(view: str) -> str:
    """Return the statement for ids of a view with a common prefix, for ``some_ids``."""
    return f"SELECT id FROM {view} WHERE id >= :low AND id < :high ORDER BY id LIMIT :limit"


def some_ids(source: Source, sql: str, prefix: str, limit: int = 3) -> list[str]:
    """Return at most *limit* distinct ids that begin with *prefix*."""
    named = {"low": prefix, "high": prefix + HIGHEST, "limit": limit}
    return list(dict.fromkeys(str(row[0]) for row in source.rows(sql, named)))


def first_since(source: Source, sql: str, at: int, low: int, high: int) -> int:
    """
    Return the number of the first row at or after a moment, by bisection between two numbers.

    *sql* is of ``moment_from``: rows may have been pruned.
    """
    while low < high:
        middle = (low + high) // 2
        found = source.rows(sql, (middle,))
        if found and found[0][1] < at:
            low = found[0][0] + 1
        else:
            high = middle
    found = source.rows(sql, (low,))
    return int(found[0][0]) if found else low
