"""Define a fleet's tables; their columns are those of the public views of this version's schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from onceward.errors import OncewardError
from onceward.fleet import evidence
from onceward.fleet.views import declared

Kind = Literal["string", "bigint", "double", "timestamp", "binary", "variant"]
"""A column's type by Spark's name."""

PREFIX: Final = "onceward_"
WRITTEN: Final = "onceward_send"
"""The view that takes messages and never has rows."""
STATS: Final = "onceward_stats"
"""The view whose computed columns are all numbers."""
NUMBERS: Final = frozenset(
    {"attempt", "attempts", "bound", "bytes", "cap", "chunks", "debounce_for", "dropped"}
    | {"failures", "in_doubt", "in_flight", "inject", "kept", "last", "leased", "members"}
    | {"messages", "position", "takes", "waiting"}
)
"""Computed columns of the other views that are numbers; the rest of the computed ones is text."""
DECLARED: Final[Mapping[str, Kind]] = {"INTEGER": "bigint", "REAL": "double"}
"""Kinds of columns by SQLite's type; all others are text."""
OWN: Final[Mapping[str, Kind]] = {"_db": "string", "_agent": "string", "_seq": "bigint"}
"""First columns of every table: the file, its agent, and the row's number in it."""
ASKED: Final[Mapping[str, Kind]] = {"_epoch": "bigint", "body": "string", "body_bytes": "binary"}
"""
Columns that are read only if ``columns`` names them: how often a stream found the file restored
or replaced; and the body: of a frame as JSON text, or as bytes where it was bytes; of another
table as its view has it.
"""
ON_REQUEST: Final = frozenset({*ASKED, "frame"})
"""Columns that are not read unasked: Spark does not say which ones a query needs."""
EVERY: Final = "*"
"""Means all columns that are read by default."""
GIVEN: Final = frozenset({*OWN, "_epoch"})
"""Columns that no view has."""
VALID_FRAME: Final = """CASE WHEN json_valid("frame") THEN "frame" END"""
BODY: Final = """CASE WHEN json_valid("frame") THEN "frame" -> '$.data' END"""
BODY_BYTES: Final = """CASE WHEN json_valid("frame") THEN "frame" ->> '$.data_base64' END"""
IDENTITY: Final[Mapping[str, Kind]] = {
    "agent": "string",
    "file_id": "string",
    "durability": "string",
    "paused_at": "timestamp",
    "opened_at": "timestamp",
    "created_at": "timestamp",
    "schema_version": "bigint",
}
AGENTS: Final = (
    "(SELECT i.*, v.*, (SELECT max(version) FROM _onceward_migrations) AS schema_version"
    " FROM _onceward_file_info AS i, onceward_stats AS v)"
)
EVIDENCE: Final[Mapping[str, Kind]] = {
    name: "string" if name in evidence.TEXTS else "bigint" for name in evidence.COLUMNS
}
"""All that a file says of messages as numbers, at one moment, and a row for each file."""
QUARANTINE: Final[Mapping[str, Kind]] = {
    "path": "string",
    "reason": "string",
    "detail": "string",
    "at": "timestamp",
}


class InvalidOption(OncewardError):
    """An option of the source is invalid: correct the one in the message."""


@dataclass(frozen=True, slots=True)
class Part:
    """SQL of each column that is read of one view."""

    name: str
    view: str
    columns: Mapping[str, str]
    keyed: bool
    """Whether its rows are numbered by ``seq``, so that they can be read piece by piece."""
    where: str = ""
    """Which of the view's rows it is."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a fleet: its columns' types, and the parts that it is read from."""

    name: str
    columns: Mapping[str, Kind]
    parts: tuple[Part, ...]
    whole: bool = False
    """Whether its parts of one file must be of one moment."""

    def named(self, chosen: Iterable[str] = ()) -> dict[str, Kind]:
        """
        Return the *chosen* columns, ``*`` for all that are read unasked, with their types.

        Raises:
            InvalidOption: the table has no such column.

        """
        unasked = [name for name in self.columns if name not in ON_REQUEST]
        names = [one for name in chosen for one in (unasked if name == EVERY else [name])]
        for name in names:
            if name not in self.columns:
                msg = f"table {self.name} has no column {name!r}: it has {', '.join(self.columns)}"
                raise InvalidOption(msg)
        return {name: self.columns[name] for name in names or unasked}

    def ddl(self, chosen: Iterable[str] = ()) -> str:
        """Return the columns as Spark spells a schema; only *chosen* ones, where some are."""
        return ", ".join(f"`{name}` {kind.upper()}" for name, kind in self.named(chosen).items())

    def framed(self, how: str) -> Table:
        """
        Return the table with frames as ``text``, as valid ``json`` or NULL, or as ``variant``.

        Raises:
            InvalidOption: the table has no frames.

        """
        if how == "text":
            return self
        if "frame" not in self.columns:
            raise InvalidOption(f"table {self.name} has no frames to be read as {how}")
        kind: Kind = "variant" if how == "variant" else "string"
        parts = (
            replace(part, columns={**part.columns, "frame": VALID_FRAME}) for part in self.parts
        )
        return replace(self, columns={**self.columns, "frame": kind}, parts=tuple(parts))


def table(name: str) -> Table:
    """
    Return the table of that name.

    Raises:
        InvalidOption: there is none; the message lists the tables.

    """
    try:
        return tables()[name]
    except KeyError:
        msg = f"there is no table {name!r}: the tables are {', '.join(tables())}"
        raise InvalidOption(msg) from None


@lru_cache(maxsize=1)
def views() -> Mapping[str, str]:
    """Return every public view that can be read, by its table: those with messages first."""
    known = {*evidence.VIEWS.values(), WRITTEN}
    others = (view for view in declared() if view not in known)
    return evidence.VIEWS | {view.removeprefix(PREFIX): view for view in others}


@lru_cache(maxsize=1)
def tables() -> Mapping[str, Table]:
    """Return all tables by name."""
    found = {name: _of_view(name, view) for name, view in views().items()}
    found["agents"] = _agents(declared()[STATS])
    found["evidence"] = _evidence()
    found["quarantine"] = Table("quarantine", QUARANTINE, ())
    return found


def _kind(view: str, name: str, stored: str) -> Kind:
    if name.endswith("_at") or name == "at":
        return "timestamp"
    if not stored and (view == STATS or name in NUMBERS):
        return "bigint"
    return DECLARED.get(stored, "string")


def _of_view(name: str, view: str) -> Table:
    given = dict(declared()[view])
    if "frame" in given:  # its body is for people: a value, text or base64, and does not say which
        del given["body"]
    kinds = {column: _kind(view, column, kind) for column, kind in given.items()}
    sql = {column: _sql(column, kinds[column], computed=not kind) for column, kind in given.items()}
    kinds["_epoch"] = ASKED["_epoch"]
    if "frame" in given:
        kinds |= ASKED
        sql |= {"body": BODY, "body_bytes": BODY_BYTES}
    return Table(name, {**OWN, **kinds}, (Part(name, view, sql, keyed="seq" in given),))


def _sql(column: str, kind: Kind, *, computed: bool = False) -> str:
    if kind == "timestamp":
        return f'"{column}" * 1000'  # Spark's are microseconds
    if computed:
        return f'CAST("{column}" AS {"INTEGER" if kind == "bigint" else "TEXT"})'
    return f'"{column}"'


def _agents(stats: Iterable[str]) -> Table:
    kinds: dict[str, Kind] = {**IDENTITY, **dict.fromkeys(stats, "bigint")}
    sql = {column: _sql(column, kind, computed=True) for column, kind in kinds.items()}
    return Table("agents", {**OWN, **kinds}, (Part("agents", AGENTS, sql, keyed=False),))


def _evidence() -> Table:
    parts = (
        Part(
            box,
            view,
            {name: evidence.expression(box, name) for name in EVIDENCE},
            keyed=True,
            where=evidence.where(box),
        )
        for box, view in evidence.VIEWS.items()
    )
    return Table("evidence", {**OWN, **EVIDENCE}, tuple(parts), whole=True)
