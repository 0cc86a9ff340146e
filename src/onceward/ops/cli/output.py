"""Print tables for people, lines of columns for pipes, one JSON document for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Literal

from onceward.message.clock import SystemClock, iso
from onceward.message.error_text import json_line, one_line
from onceward.message.log import LOST, quietly
from onceward.ops.cli.durations import ago
from onceward.ops.views.vocabulary import level

Style = Literal["json", "table", "lines"]
Row = Mapping[str, Any]
Rows = Iterable[Any]
"""Rows are mappings, or values whose fields are the columns."""

LEVELS: Final = {"act": "red", "wait": "yellow", "ok": ""}
"""Colours by what a person has to do."""
FINDINGS: Final = {"serious": "bold red", "warning": "yellow", **LEVELS}
"""Colours of what the doctor and ``why`` say, by its level."""
safe: Final = one_line
"""Escapes all characters of a text that could move a cursor or break a line."""
MOMENT: Final = re.compile(r"(?:.*_)?at").fullmatch
"""Names of moments."""


def style(wanted: Style | None = None) -> Style:
    """Return the output form: the wanted one, a table on a terminal, or lines."""
    if wanted is not None:
        return wanted
    return "table" if sys.stdout.isatty() else "lines"


def has_screen() -> bool:
    """Return whether stdout is a terminal whose screen can be cleared and drawn again."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}


def row_of(value: Any) -> Row:
    """Return a mapping unchanged, or the fields of a value as a mapping."""
    if isinstance(value, Mapping):
        return value
    return {each.name: getattr(value, each.name) for each in fields(value)}


def show(found: Rows, columns: Sequence[str], form: Style) -> None:
    """Print rows: all their keys as JSON, else the named columns."""
    rows = [*map(row_of, found)]
    match form:
        case "json":
            document([dated(row) for row in rows])
        case "table":
            _table(rows, columns)
        case "lines":
            cells = ((cell(row.get(name), name) for name in columns) for row in rows)
            sys.stdout.writelines("\t".join(line) + "\n" for line in cells)


def show_one(record: Row, form: Style) -> None:
    """Print one item: as JSON, else a line for each key."""
    if form == "json":
        document(dated(record))
        return
    rows = [{"name": name, "value": _text(value, name, form)} for name, value in record.items()]
    show(rows, ("name", "value"), form)


def document(value: object) -> None:
    """Print one JSON document in ASCII, which every terminal can show."""
    json.dump(value, sys.stdout, indent=2, default=_plain)
    sys.stdout.write("\n")


def note(text: str) -> None:
    """Write a line of text to stderr, if there is one."""
    quietly(_write_note, text, failed=LOST.add)


def _write_note(text: str) -> None:
    if sys.stderr is not None:  # the program has one
        sys.stderr.write(f"{safe(text)}\n")


def line_of(value: object) -> None:
    """Print a value as one line of JSON, with escapes for what a terminal would act on."""
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    sys.stdout.write(f"{json_line(text)}\n")


def compact(value: object) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def cell(value: object, name: str = "") -> str:
    """Return a value as one column of a line; None is empty."""
    return safe(_text(value, name, "lines"))


def label(name: str) -> str:
    """Return a column's name as a table shows it."""
    return name.removesuffix("_at")


def _text(value: object, name: str, form: Style) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case int() if MOMENT(name) and not isinstance(value, bool):
            return ago(value, SystemClock().now()) if form == "table" else iso(value)
        case bytes():
            return value.hex()
        case bool() | list() | dict():
            return compact(value)
    return str(value)


def dated(row: Row) -> dict[str, Any]:
    """Return a row with its moments as RFC 3339 text."""
    moments = {name for name, value in row.items() if MOMENT(name) and isinstance(value, int)}
    return {name: iso(value) if name in moments else value for name, value in row.items()}


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


def _table(rows: Iterable[Row], columns: Sequence[str]) -> None:
    from rich.console import Console  # noqa: PLC0415 - a pipe does without it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        header = safe(label(name).replace("_", " "))
        table.add_column(Text(header), no_wrap=name in {"id", "state"}, overflow="fold")

    def coloured(name: str, text: str) -> Text:
        return Text(text, style=_colour(name, text))

    for row in rows:
        texts = [safe(_text(row.get(name), name, "table")) for name in columns]
        table.add_row(*map(coloured, columns, texts))
    Console(file=sys.stdout, highlight=False).print(table)


def _colour(name: str, text: str) -> str:
    """Return the colour of a cell: that of a level, or of what a state means for a person."""
    if name == "level":
        return FINDINGS.get(text, "")
    if name in {"state", "breaker"}:
        return LEVELS[level(f"breaker {text}" if name == "breaker" else text)]
    return ""
