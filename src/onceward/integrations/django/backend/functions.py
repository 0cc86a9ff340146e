"""Give SQLite the functions of Django, and those that a program adds to a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import apsw
from django.db.backends.sqlite3._functions import register

from onceward.file import forks
from onceward.integrations.dbapi.statements import add_functions

Key = tuple[str, int]
"""Name and number of arguments; -2 for a collation."""
Entry = tuple[object, Callable[[apsw.Connection], object]]
"""A function of the program, and the call that adds it to a connection."""
COLLATION: Final = -2


class Functions:
    """
    Takes functions by the names of ``sqlite3.Connection``, and gives them to real connections.

    Connections are shared by all threads, and opened when they are needed: so a function is kept
    here, and each connection gets it before its next statement.
    """

    def __init__(self) -> None:
        self._add = dict[Key, Entry]()
        self._lock = forks.new_lock()
        self._given = WeakKeyDictionary[apsw.Connection, dict[Key, Entry]]()

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        """Add a scalar function; None removes it."""

        def add(con: apsw.Connection) -> None:
            con.create_scalar_function(
                name, func, narg, deterministic=deterministic, flags=apsw.SQLITE_INNOCUOUS
            )

        self._keep((name.lower(), narg), func, add)

    def create_aggregate(self, name: str, n_arg: int, aggregate_class: type[Any]) -> None:
        """Add an aggregate function: a class with ``step`` and ``finalize``."""

        def begin() -> tuple[Any, Callable[..., None], Callable[[Any], Any]]:
            made = aggregate_class()
            return made, lambda each, *values: each.step(*values), lambda each: each.finalize()

        def add(con: apsw.Connection) -> None:
            con.create_aggregate_function(name, begin, n_arg, flags=apsw.SQLITE_INNOCUOUS)

        self._keep((name.lower(), n_arg), aggregate_class, add)

    def create_collation(self, name: str, compare: Callable[[str, str], int] | None) -> None:
        """Add an order of texts; None removes it."""
        self._keep(
            (name.lower(), COLLATION), compare, lambda con: con.create_collation(name, compare)
        )

    def execute(self, sql: str) -> apsw.Cursor:
        """Ask SQLite what it was compiled with."""
        return apsw.Connection(":memory:").execute(sql)

    def _keep(self, key: Key, given: object, add: Callable[[apsw.Connection], object]) -> None:
        with self._lock:
            if key not in self._add or self._add[key][0] != given:
                self._add = {**self._add, key: (given, add)}

    def give(self, con: apsw.Connection) -> None:
        """Give a connection the functions that it lacks."""
        known, now = self._given.get(con), self._add
        if known is now:
            return
        add_functions(con)  # before those of the same name
        for key, entry in now.items():
            if known is None or known.get(key) is not entry:
                entry[1](con)
        self._given[con] = now


FUNCTIONS: Final = Functions()
"""Those of this process."""
register(FUNCTIONS)
