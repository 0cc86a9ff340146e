"""Rows of a query: tuples whose columns can be named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, SupportsIndex

Rows = Callable[[str, Any], list[tuple[Any, ...]]]
"""Runs a reading statement, in a transaction or outside of one."""


class Row(tuple[Any, ...]):
    """
    A row of a query: a tuple, and ``row["cents"]`` is its column of that name.

    ``dict(row)`` has all columns; of two with one name the first counts.
    """

    __slots__ = ()
    _places: ClassVar[dict[str, int]] = {}

    def __getitem__(self, key: SupportsIndex | slice | str) -> Any:
        """Return a column by its name or place, or several by a slice."""
        return super().__getitem__(self._places[key] if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._places)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as names and values, since the class is made for the query."""
        return _restored, (tuple(self._places), tuple(self))


@cache
def row_class(names: Sequence[str]) -> type[Row]:
    """Return the class of rows with these columns."""
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places.setdefault(name, place)
    return type("Row", (Row,), {"__slots__": (), "_places": places, "__module__": __name__})


def _restored(names: Sequence[str], values: tuple[Any, ...]) -> Row:
    return row_class(names)(values)
