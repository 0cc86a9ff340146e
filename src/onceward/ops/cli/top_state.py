"""Decide what ``onceward top`` shows: its rows, their order, and what each key does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from onceward.message.clock import Millis
from onceward.ops.observe.rates import Rates
from onceward.ops.observe.snapshots import FileSnapshot
from onceward.ops.views.vocabulary import SEVERITY, UNREAD, UNREADABLE, WELL

PAGE: Final = 10
"""Rows that a page key moves by."""


@dataclass(frozen=True, kw_only=True)
class AgentRow:
    """One agent as ``top`` shows it; ages are seconds, rates messages a second."""

    path: Path
    agent: str
    state: str
    pending: int = 0
    oldest: float | None = None
    inbox: int = 0
    waits: float | None = None
    sent_rate: float | None = None
    handled_rate: float | None = None
    leased: int = 0
    failing: int = 0
    queue: int = 0
    dead: int = 0
    breakers: int = 0
    wal: int = 0


Sort = Literal[
    "agent", "state", "pending", "oldest", "inbox", "waits", "sent_rate", "handled_rate",
    "leased", "failing", "queue", "dead", "breakers", "wal",
]  # fmt: skip
COLUMNS: Final[tuple[Sort, ...]] = get_args(Sort)


def row_of(found: FileSnapshot, rates: Rates, now: Millis) -> AgentRow:
    """Return an agent's row from its snapshot."""
    numbers = found.overview
    if numbers is None:
        state = UNREADABLE if found.taken_at else UNREAD
        return AgentRow(path=found.path, agent=found.agent, state=state)
    return AgentRow(
        path=found.path,
        agent=found.agent,
        state=min((*numbers.trouble, *found.idle(now), WELL), key=SEVERITY.index),
        pending=numbers.outgoing,
        oldest=_age(numbers.outbox_oldest_at, now),
        inbox=numbers.incoming,
        waits=_age(numbers.inbox_oldest_at, now),
        sent_rate=rates.of(found.path, "enqueued"),
        handled_rate=rates.of(found.path, "processed"),
        leased=numbers.lanes.leased,
        failing=numbers.lanes.failing,
        queue=numbers.run_queue,
        dead=numbers.dead_letters,
        breakers=numbers.breakers_open,
        wal=found.wal_bytes,
    )


def _age(at: Millis | None, now: Millis) -> float | None:
    return None if at is None else max(0.0, (now - at) / 1000)


@dataclass(frozen=True, kw_only=True)
class TopState:
    """The choices of a user; each key returns changed ones."""

    sort: Sort = "state"
    reverse: bool = False
    filter: str = ""
    typing: bool = False
    """Whether letters are typed into the filter."""
    selected: Path | None = None
    detail: bool = False
    """Whether only the selected agent is shown."""
    paused: bool = False
    """Whether the screen is paused."""
    ended: bool = False

    def arranged(self, rows: Sequence[AgentRow]) -> list[AgentRow]:
        """Return the rows that match the filter, in order; ages and numbers largest first."""
        wanted = self.filter.casefold()
        found = [row for row in rows if wanted in row.agent.casefold() or wanted == row.state]
        found.sort(key=lambda row: row.agent)
        text = self.sort in {"agent", "state"}
        return sorted(found, key=_order(self.sort), reverse=self.reverse is text)

    def at(self, rows: Sequence[AgentRow]) -> int:
        """Return the index of the selected row, or of the first if it is not shown."""
        paths = [row.path for row in rows]
        return paths.index(self.selected) if self.selected in paths else 0

    def pressed(self, key: str, rows: Sequence[AgentRow]) -> TopState:
        """Return the choices after a key; *rows* are the shown ones."""
        if self.typing:
            return self._typed(key)
        if key in MOVES and not self.detail:
            return self._moved(MOVES[key], rows)
        if key in SORTS:
            return self._sorted(SORTS[key])
        match key:
            case "q":
                return replace(self, ended=True)
            case "enter" if rows:
                return replace(self, detail=True, selected=rows[self.at(rows)].path)
            case "escape" | "backspace" | "enter":
                return replace(self, detail=False, filter=self.filter if self.detail else "")
            case "/":
                return replace(self, typing=True, detail=False)
            case "r":
                return replace(self, reverse=not self.reverse)
            case " " | "p":
                return replace(self, paused=not self.paused)
        return self

    def _typed(self, key: str) -> TopState:
        match key:
            case "enter":
                return replace(self, typing=False)
            case "escape":
                return replace(self, typing=False, filter="")
            case "backspace":
                return replace(self, filter=self.filter[:-1])
            case _ if len(key) == 1 and key.isprintable():
                return replace(self, filter=self.filter + key)
        return self

    def _moved(self, by: int, rows: Sequence[AgentRow]) -> TopState:
        if not rows:
            return self
        at = min(max(0, self.at(rows) + by), len(rows) - 1)
        return replace(self, selected=rows[at].path)

    def _sorted(self, by: int) -> TopState:
        at = (COLUMNS.index(self.sort) + by) % len(COLUMNS)
        return replace(self, sort=COLUMNS[at], reverse=False)


MOVES: Final = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -PAGE,
    "page down": PAGE,
    "home": -(1 << 30),
    "end": 1 << 30,
}
"""How many rows a key moves the selection."""
SORTS: Final = {"left": -1, "<": -1, "right": 1, ">": 1, "s": 1}
"""How many columns a key moves the sort order."""


def _order(column: str) -> Callable[[AgentRow], Any]:
    def key(row: AgentRow) -> Any:
        value = getattr(row, column)
        if column == "state":
            return SEVERITY.index(value)
        return -1 if value is None else value

    return key
