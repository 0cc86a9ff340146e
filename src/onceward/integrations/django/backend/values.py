"""Convert values between Django and SQLite, as its backend of sqlite3 has them converted."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from django.utils.dateparse import parse_date, parse_datetime, parse_time

from onceward.integrations.dbapi.statements import Bindings, Columns

Convert = Callable[[Any], Any]
PLACE: Final = re.compile(r"(?<!%)%s")
FIRST_WORD: Final = re.compile(r"[^ (]*")


def _as_text(parse: Callable[[str], Any]) -> Convert:
    def convert(value: Any) -> Any:
        return parse(value.decode() if isinstance(value, bytes) else str(value))

    return convert


BY_TYPE: Final[Mapping[str, Convert]] = {
    "bool": _as_text("1".__eq__),
    "date": _as_text(parse_date),
    "datetime": _as_text(parse_datetime),
    "time": _as_text(parse_time),
    "timestamp": _as_text(parse_datetime),
}
"""By the first word of a column's declared type."""


def adapt(value: Any) -> Any:
    """Return a value that SQLite can store."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


def adapt_all(bindings: Bindings) -> Bindings:
    """Return bindings that SQLite can store."""
    if bindings is None:
        return None
    if isinstance(bindings, Mapping):
        return {name: adapt(value) for name, value in bindings.items()}
    return [adapt(value) for value in bindings]


def qmark(sql: str, bindings: Sequence[Any] | Mapping[str, Any]) -> str:
    """Return a statement with SQLite's placeholders instead of ``%s`` and ``%(name)s``."""
    if isinstance(bindings, Mapping):
        return sql % {name: f":{name}" for name in bindings}
    return PLACE.sub("?", sql).replace("%%", "%")


def converted(rows: list[tuple[Any, ...]], columns: Columns | None) -> Iterable[tuple[Any, ...]]:
    """Return rows with the values that the declared types of their columns mean."""
    kinds = [BY_TYPE.get(_first_word(column[1])) for column in columns or ()]
    if not any(kinds):
        return rows
    return [
        tuple(
            value if convert is None or value is None else convert(value)
            for value, convert in zip(row, kinds, strict=True)
        )
        for row in rows
    ]


def _first_word(declared: str | None) -> str:
    found = FIRST_WORD.match(declared or "")
    return found[0].lower() if found else ""
