"""``onceward top``: show agents live on a terminal, or once in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

from onceward.message.clock import SystemClock, monotonic
from onceward.ops.cli.durations import Span, SpanOption
from onceward.ops.cli.exit_codes import DONE, Usage
from onceward.ops.cli.metrics import homes
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import has_screen, show
from onceward.ops.cli.target import ANSWER, Answer
from onceward.ops.cli.top_state import COLUMNS, AgentRow, Sort, TopState, row_of
from onceward.ops.observe.detail import FileDetail, read_detail
from onceward.ops.observe.rates import Rates
from onceward.ops.observe.snapshots import Snapshots, agent_files
from onceward.ops.views.vocabulary import UNREAD

EVERY: Final = Span(1.0)
LOOK_FOR: Final = 0.3
"""Seconds for which one round opens files, so that keys are answered soon."""


def top(
    *places: Path,
    every: SpanOption = EVERY,
    sort: Sort = "state",
    filter: Annotated[
        str, said("Only agents whose name contains this, or that are in this state.")
    ] = "",
    once: Annotated[bool, Quiet, said("Print one table and exit.")] = False,
    answer: Answer = ANSWER,
) -> int:
    """
    Show agents live: what waits and since when, rates, leases, dead letters, breakers.

    Agents in trouble come first; the view of one agent shows each reason that holds its messages
    back, and the command that repairs it. Files are read on read-only connections, and again only
    when they change. Keys: arrows select and sort, enter shows one agent, / filters, r reverses, p
    pauses, q quits. If stdout or stdin is not a terminal, or a dumb one, one table is printed.

    Columns: agent, state, pending, oldest, inbox, waits, sent_rate, handled_rate, leased, failing,
    queue, dead, breakers, wal. Ages (oldest: outbox, waits: inbox) are in seconds, rates in
    messages per second, wal in bytes.

    Example: onceward top

    Example: onceward top /srv/home --sort oldest --once

    Args:
        places: Home folders and files; default ONCEWARD_HOME, else here.
        every: Time between two rounds.
        sort: The column to sort by.

    """
    if every <= 0:
        raise Usage("--every must be more than 0")
    looks = Looks(homes(places))
    state = TopState(sort=sort, filter=filter)
    if answer.json or once or not (has_screen() and sys.stdin.isatty()):
        looks.look(within=None)
        show([_plain(row) for row in state.arranged(looks.rows)], COLUMNS, answer.style)
        return DONE
    live(looks, state, every)
    return DONE


def _plain(row: AgentRow) -> dict[str, Any]:
    return asdict(row) | {"path": str(row.path)}


class Looks:
    """The rows of all agents, as the last look found them."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places, self._clock = places, SystemClock()
        self._snapshots, self._rates = Snapshots(), Rates()
        self.title = f"onceward top {places[0]}" + (" ..." if len(places) > 1 else "")
        self.rows: list[AgentRow] = []
        self.detail = FileDetail(problem=None)

    def look(self, *, within: float | None) -> None:
        """Read what changed."""
        found = self._snapshots.take(agent_files(self._places), within=within)
        self._rates.note(found, monotonic())
        now = self._clock.now()
        self.rows = [row_of(each, self._rates, now) for each in found]

    @property
    def unread(self) -> bool:
        """Whether some files were not read yet: then the next round is due at once."""
        return any(row.state == UNREAD for row in self.rows)

    def look_closer(self, path: Path) -> None:
        """Read the rows behind the numbers of one agent."""
        self.detail = read_detail(path)


def live(looks: Looks, state: TopState, every: float) -> None:
    """Show agents until a key ends it; the terminal is always restored."""
    from rich.console import Console  # noqa: PLC0415 - a pipe does without it
    from rich.live import Live  # noqa: PLC0415

    from onceward.ops.cli.keyboard import RESIZED, keyboard  # noqa: PLC0415

    console = Console(file=sys.stdout, highlight=False)
    looks.look(within=LOOK_FOR)
    with keyboard() as keys, Live(console=console, screen=True, auto_refresh=False) as shown:
        due = monotonic() + every
        while not state.ended:
            shown.update(frame(looks, state, console.size), refresh=True)
            at_once = looks.unread and not state.paused
            key = keys.read(0.0 if at_once else max(0.0, due - monotonic()))
            if key is None:
                due = monotonic() + every
                if not state.paused:
                    _look(looks, state)
            elif key != RESIZED:
                state = state.pressed(key, state.arranged(looks.rows))
                if state.detail and key == "enter":
                    _look(looks, state)


def _look(looks: Looks, state: TopState) -> None:
    looks.look(within=LOOK_FOR)
    if state.detail and state.selected is not None:
        looks.look_closer(state.selected)


def frame(looks: Looks, state: TopState, size: tuple[int, int]) -> Any:
    """Return the screen for a terminal of this size."""
    from onceward.ops.cli.top_view import Size, detail_screen, screen  # noqa: PLC0415 - loads rich

    room = Size(*size)
    shown = state.arranged(looks.rows)
    if state.detail:
        whole = replace(state, filter="").arranged(looks.rows)
        found = next((row for row in whole if row.path == state.selected), None)
        if found is not None:
            return detail_screen(looks.title, found, looks.detail, state, room)
    return screen(looks.title, shown, len(looks.rows), state, room)
