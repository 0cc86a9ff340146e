"""Run one statement of a user on one of our connections, and keep all that PEP 249 asks of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

import apsw

from onceward.errors import InvalidArgument
from onceward.file import pragmas
from onceward.integrations.dbapi.errors import ProgrammingError

Bindings = Sequence[Any] | Mapping[str, Any] | None
Columns = tuple[tuple[Any, ...], ...]
NO_ROWCOUNT: Final = -1
SPACE: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
FLAGS: Final = re.IGNORECASE | re.DOTALL
CHANGES_ROWS: Final = re.compile(rf"{SPACE}(INSERT|UPDATE|DELETE|REPLACE|WITH)\b", FLAGS)
ONE: Final = "one statement at a time: execute them one by one"

_with_functions: WeakSet[apsw.Connection] = WeakSet()


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of one statement, and what else it reports."""

    rows: list[tuple[Any, ...]]
    columns: Columns | None
    """As ``Cursor.description`` of PEP 249; None for a statement that returns no rows."""
    rowcount: int
    """Rows that it changed, -1 for a statement that changes none."""
    lastrowid: int | None


class _Tracer:
    """Notes the columns of a statement before its first step, when they are known surely."""

    def __init__(self) -> None:
        self.columns: Columns | None = None
        self.reads, self._statements = True, 0

    def __call__(self, cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
        self._statements += 1
        if self._statements > 1:
            raise ProgrammingError(ONE)
        self.columns = tuple(cursor.description) or None
        self.reads = cursor.is_readonly
        return True


def run(con: apsw.Connection, sql: str, bindings: Bindings) -> Result:
    """
    Run *sql* and return all it gave; no cursor stays open behind it.

    Raises:
        apsw.Error, TypeError: what SQLite says of the statement.
        ProgrammingError: it holds two statements, or a pragma that is out of place.

    """
    _refuse_pragmas(sql)
    add_functions(con)
    tracer, cursor = _Tracer(), con.cursor()
    cursor.exec_trace = tracer
    rows = list(cursor.execute(sql, bindings or None))
    if tracer.reads or not CHANGES_ROWS.match(sql):
        return Result(rows, tracer.columns, NO_ROWCOUNT, None)
    return Result(rows, tracer.columns, con.changes(), con.last_insert_rowid())


def _refuse_pragmas(sql: str) -> None:
    try:
        if "pragma" in sql.lower():
            pragmas.refuse(sql)
    except InvalidArgument as error:
        raise ProgrammingError(str(error)) from error


def run_many(con: apsw.Connection, sql: str, each: Iterable[Bindings]) -> Result:
    """Run *sql* for each of the bindings; return how many rows were changed in all."""
    done = [run(con, sql, bindings) for bindings in each]
    return Result([], None, sum(max(one.rowcount, 0) for one in done), None)


def add_functions(con: apsw.Connection) -> None:
    """Give SQLAlchemy's ``regexp_match`` the function that it calls."""
    if con not in _with_functions:
        con.create_scalar_function("regexp", _regexp, 2, deterministic=True)
        _with_functions.add(con)


def _regexp(*arguments: Any) -> bool | None:
    pattern, text = arguments
    return None if text is None else re.search(pattern, text) is not None
