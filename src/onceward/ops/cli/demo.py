"""``onceward demo``: kill a team of agents at random moments, and compare their files."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onceward.ops.cli.demo_agents import kill_agents
from onceward.ops.cli.demo_team import Team, Watch, plan
from onceward.ops.cli.durations import SpanOption
from onceward.ops.cli.exit_codes import DONE, FAILED, SIGNAL, NothingThere, Usage
from onceward.ops.cli.options import Quiet
from onceward.ops.cli.output import document, note, safe

SHELLS: Final = ("onceward sql --db", "sqlite3 -readonly -box")
"""Commands that query a file: our own, and SQLite's."""


def demo(
    *,
    path: Path | None = None,
    seconds: SpanOption = 20.0,  # type: ignore[assignment]  # a span is seconds
    kills: int = 6,
    json: Annotated[bool, Quiet] = False,
    home: Path | None = None,
    seed: int | None = None,
    agents: bool = False,
) -> int:
    """
    Watch agents lose nothing while their processes are killed.

    A coordinator and three workers, each a process with its own file, review Python files
    repeatedly. At random moments one of them is killed with SIGKILL and restarted. At the end a
    fresh process opens and compares their files. Exit code 1 if a message was lost or took effect
    twice, or an invariant is broken.

    With --agents a single agent runs a loop of a fake model and its tools. Its process is killed
    after each call in turn, before the result is stored. At the end its journey is drawn.

    Example: onceward demo --seconds 5 --kills 2

    Example: onceward demo --agents

    Args:
        path: The folder to review. Default: four packages of the standard library.
        seconds: How long they work.
        kills: How many processes are killed.
        json: Print only one JSON document.
        home: A new or empty folder for the files. Default: a temporary one.
        seed: The same seed kills in the same order; default: a random one.
        agents: Instead kill one agent, with a model and its tools, at each of its calls.

    """
    if agents:
        return kill_agents(_empty(home), json=json)
    if seconds <= 0 or kills < 0:
        raise Usage("--seconds must be more than 0, --kills 0 or more")
    code = [] if path is None else [_reviewable(path)]
    chosen = random.randrange(10**6) if seed is None else seed  # noqa: S311 - victims, not secrets
    team = Team(_empty(home), code)
    try:
        with _watched(seconds, quiet=json) as watch:
            team.perform(seconds, plan(seconds, kills, chosen), watch)
    except KeyboardInterrupt:
        note(f"interrupted; the files are kept in {team.home}")
        return SIGNAL + 2
    crashes = sum(each.crashes for each in team.members.values())
    report = team.prove() | {"seconds": seconds, "seed": chosen, "crashes": crashes}
    if json:
        document(report)
    else:
        _show(report)
    return DONE if report["ok"] else FAILED


def _reviewable(path: Path) -> Path:
    if not path.is_dir():
        raise NothingThere(f"there is no folder {path}: name a folder with Python files")
    if not any(found.is_file() for found in path.rglob("*.py")):
        raise NothingThere(f"there is no Python file under {path}: name a folder with Python files")
    return path.resolve()


def _empty(home: Path | None) -> Path:
    if home is None:
        return Path(tempfile.mkdtemp(prefix="onceward-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise Usage(f"{home} is not empty: name a new folder, so that only this run is compared")
    return home.resolve()


@contextmanager
def _watched(seconds: float, *, quiet: bool) -> Iterator[Watch]:
    name, said = TextColumn("[bold]review team"), TextColumn("{task.description}")
    columns = (name, BarColumn(), TimeElapsedColumn(), said)
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=quiet, transient=True) as progress:
        bar = progress.add_task("starting", total=seconds)
        yield lambda passed, said: progress.update(bar, completed=passed, description=said)


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    for name, value in _lines(report):
        table.add_row(name, value)
    console.print(table)
    good = "[green]Nothing was lost, nothing took effect twice.[/]"
    verdict = good if report["ok"] else "[bold red]A promise was broken.[/]"
    console.print(f"\n{verdict} Look for yourself:\n")
    for each, shell in zip(report["questions"], cycle(SHELLS), strict=False):
        file = Path(report["home"], f"{each['agent']}.db")
        console.print(f"  # {each['question']}", style="dim")
        console.print(f'  {shell} {file} "{each["sql"]}"', soft_wrap=True, markup=False)


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("files", "tasks", "results"):
        yield name, str(report[name])
    for name in ("lost", "duplicates"):
        yield name, f"[{'red' if report[name] else 'green'}]{report[name]}[/]"
    broken = (f"{v['agent']}: {v['invariant']} {v['offender']}" for v in report["violations"])
    for said in [*report["torn"], *broken][:10]:
        yield "broken", f"[red]{escape(safe(said))}[/]"
    kills = ", ".join(f"{agent} {times}" for agent, times in sorted(report["kills"].items()))
    yield "kills", f"{sum(report['kills'].values())}" + (f" ({kills})" if kills else "")
    again = f"{report['handled_again']} handled again, {report['pushed_again']} pushed again"
    yield "retries", again
    yield "sent to result", _spread(report["latency_ms"])
    yield "kill to next effect", _spread(report["back_after_ms"])
    found = list(report["findings"].items())[:4]
    yield "found", ", ".join(f"{count} {rule}" for rule, count in found)


def _spread(span: dict[str, int]) -> str:
    return f"p50 {span['p50']} ms, p99 {span['p99']} ms, max {span['max']} ms"
