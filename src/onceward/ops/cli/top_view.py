"""Draw what ``onceward top`` shows, for a terminal of a given size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onceward.message.clock import Millis, SystemClock
from onceward.ops.cli.command import picked
from onceward.ops.cli.durations import ago
from onceward.ops.cli.output import LEVELS, MOMENT, Row, safe
from onceward.ops.cli.top_state import COLUMNS, AgentRow, Sort, TopState
from onceward.ops.observe.detail import FileDetail
from onceward.ops.views.vocabulary import UNREAD, WELL, Level, level
from onceward.ops.views.why import Why

HEADERS: Final = {
    "sent_rate": "sent/s",
    "handled_rate": "handled/s",
    "waits": "waits",
    "queue": "run queue",
    "wal": "WAL",
}
WORRIES: Final[dict[str, tuple[float, Level]]] = {
    "oldest": (300.0, "wait"), "waits": (300.0, "wait"), "failing": (1, "wait"),
    "dead": (1, "act"), "breakers": (1, "act"),
}  # fmt: skip
"""From which value on a cell is coloured, and how urgent it is then."""
KEYS: Final = "q quit  enter detail  / filter  left right sort  r reverse  p pause"
KEYS_TYPING: Final = "enter keep  escape clear"
KEYS_DETAIL: Final = "q quit  escape back  p pause"
LINES_AROUND: Final = 4
"""Lines of a screen that are not rows: title, header, gap, keys."""
LEAST_FIRST: Final[tuple[Sort, ...]] = (
    "wal", "queue", "leased", "breakers", "handled_rate", "sent_rate", "failing", "dead",
    "waits", "oldest", "inbox", "state",
)  # fmt: skip
"""Columns that a narrow terminal omits, in this order."""
STATE: Final = len("unreadable") + 2
NAME: Final = 16
"""Minimum characters for an agent's name; columns give way to it."""
LONGEST_NAME: Final = 32
"""Characters of an agent's name that are shown."""
ID: Final = 36
"""Characters of an id, the longest text that is always shown whole."""
FREE: Final = frozenset({"last_error", "reason"})
"""Columns that are omitted if there is no room."""
SECTIONS: Final = {
    "peers": ("Peers", "name breaker failures in_flight seen_at last_error"),
    "members": ("Members of pools", "pool agent works failures in_flight credits"),
    "failing": ("Lanes that fail", "session head_id attempts due_at reason"),
    "dead": ("Dead letters by reason", "reason type count newest_at"),
    "sent": ("Sent last", "id recipient type state attempts created_at"),
    "received": ("Received last", "id sender type state attempts received_at"),
}
"""Title and columns by the field of ``FileDetail``."""


class Size(NamedTuple):
    """Columns and lines of a terminal."""

    width: int
    height: int


def screen(
    title: str, shown: Sequence[AgentRow], all_rows: int, state: TopState, size: Size
) -> RenderableType:
    """Return the table of agents, with as many rows as fit around the selected one."""
    at, room = state.at(shown), max(1, size.height - LINES_AROUND)
    first = min(max(0, at - room // 2), max(0, len(shown) - room))
    columns = columns_for(size.width, state.sort, shown)
    table = _table(columns, size.width, shown, state)
    for index, row in enumerate(shown[first : first + room], first):
        cells = [_cell(name, getattr(row, name)) for name in columns]
        table.add_row(*cells, style="reverse" if index == at else "")
    count = f"{all_rows} agents" if len(shown) == all_rows else f"{len(shown)} of {all_rows} agents"
    return Group(
        _headline(title, f"{count}, {_trouble(shown)}", state),
        table,
        Text(""),
        Text(KEYS_TYPING if state.typing else KEYS, style="dim", no_wrap=True, overflow="crop"),
    )


def columns_for(width: int, sort: str, rows: Sequence[AgentRow]) -> list[Sort]:
    """Return the columns that a terminal has room for, always with the sort column."""
    longest = max((len(row.agent) for row in rows), default=0)
    room = width - min(NAME, max(len("agent v"), longest)) - 2
    left = [name for name in LEAST_FIRST if name != sort]
    columns = list(COLUMNS)
    while left and _width(columns, rows) > room:
        columns.remove(left.pop(0))
    return columns


def _width(columns: Sequence[Sort], rows: Sequence[AgentRow]) -> int:
    """Return the width of the columns, except the name column."""
    widths = {"agent": 0, "state": max([STATE, *(len(row.state) + 2 for row in rows)])}
    return sum(widths.get(name, len(_header(name)) + 3) for name in columns)


def detail_screen(
    title: str, row: AgentRow, detail: FileDetail, state: TopState, size: Size
) -> RenderableType:
    """Return one agent with the rows behind its numbers."""
    now, columns = SystemClock().now(), columns_for(size.width, "state", [row])
    numbers = _table(columns, size.width, [row])
    numbers.add_row(*(_cell(name, getattr(row, name)) for name in columns))
    parts: list[RenderableType] = [_headline(f"{title}  {row.agent}", str(row.path), state)]
    if detail.problem is not None:
        return Group(*parts, Text(safe(detail.problem), style="red"), _keys_of_detail())
    parts += [numbers, Text(""), *(_reason(each, now) for each in detail.whys)]
    for name, (heading, shown) in SECTIONS.items():
        if found := getattr(detail, name):
            rows = [picked(each, shown.split()) for each in found]
            parts += [Text(f"\n{heading}", style="bold"), _section(rows, now)]
    return Group(*parts, _keys_of_detail())


def _reason(found: Why, now: Millis) -> Text:
    line = Text(safe(found.text(now)), style=LEVELS[found.level])
    return line.append(f"  {safe(found.cure)}", style="dim") if found.cure else line


def _keys_of_detail() -> Text:
    return Text(f"\n{KEYS_DETAIL}", style="dim", no_wrap=True, overflow="crop")


def _section(rows: Sequence[Row], now: Millis) -> Table:
    expand = any(name in FREE for name in rows[0])
    table = Table(box=None, pad_edge=False, header_style="dim", expand=expand)
    cells = [[_moment(name, value, now) for name, value in row.items()] for row in rows]
    for index, name in enumerate(rows[0]):
        header = _header(name.removesuffix("_at"))
        longest = max(len(header), *(len(line[index]) for line in cells))
        given = {"ratio": 1} if name in FREE else {"min_width": min(ID, longest)}
        table.add_column(header, no_wrap=True, overflow="ellipsis", **given)  # type: ignore[arg-type]  # its own options
    for line in cells:
        table.add_row(*map(Text, line))
    return table


def _moment(name: str, value: Any, now: Millis) -> str:
    if MOMENT(name) and isinstance(value, int):
        return ago(value, now)
    return "" if value is None else safe(str(value))


def _headline(title: str, told: str, state: TopState) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(safe(title), style="bold")
    line.append(f"  {safe(told)}")
    if state.typing or state.filter:
        line.append(f"  filter: {safe(state.filter)}{'_' if state.typing else ''}", style="cyan")
    if state.paused:
        line.append("  screen paused", style="magenta")
    return line


def _trouble(rows: Sequence[AgentRow]) -> str:
    unread = sum(row.state == UNREAD for row in rows)
    bad = sum(row.state not in {WELL, UNREAD} for row in rows)
    told = f"{bad} not ok" if bad else "all ok"
    return f"{told}, {unread} {UNREAD}" if unread else told


def _table(
    columns: Sequence[Sort], width: int, rows: Sequence[AgentRow], state: TopState | None = None
) -> Table:
    """Return a table without rows; the sort column is marked."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    room = min(LONGEST_NAME, max(1, width - _width(columns, rows) - 2))
    for name in columns:
        sorts = state is not None and name == state.sort
        mark = (" ^" if state.reverse else " v") if state is not None and sorts else ""
        justify = "left" if name in {"agent", "state"} else "right"
        table.add_column(
            f"{_header(name)}{mark}",
            justify=justify,  # type: ignore[arg-type]  # one of both words
            no_wrap=True,
            overflow="ellipsis",
            header_style="underline" if sorts else "",
            max_width=room if name == "agent" else None,
        )
    return table


def _header(name: str) -> str:
    return HEADERS.get(name, name.replace("_", " "))


def _cell(name: str, value: Any) -> Text:
    if isinstance(value, str):
        return Text(safe(value), style=LEVELS[level(value)] if name == "state" else "")
    least, urgency = WORRIES.get(name, (math.inf, "ok"))
    worries = value is not None and value >= least
    return Text(_number(name, value), style=LEVELS[urgency] if worries else "")


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in {"oldest", "waits"}:
        return ago(0, round(1000 * value)).removesuffix(" ago")
    if name == "wal":
        return f"{value / (1 << 20):.1f}M" if value >= 1 << 20 else f"{value / 1024:.0f}k"
    return f"{value:.1f}" if name.endswith("_rate") else f"{value}"
