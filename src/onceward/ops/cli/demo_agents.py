"""``onceward demo --agents``: kill a model and its tools at each of their calls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from onceward.message.clock import Millis, SystemClock
from onceward.ops.cli.example_folder import example_folder
from onceward.ops.cli.exit_codes import DONE, FAILED
from onceward.ops.cli.output import document, safe
from onceward.ops.cli.readonly import look
from onceward.ops.views.asking import NEVER
from onceward.ops.views.messages import message, message_ids

CALLS: Final = 7
"""Calls of the loop: of its model, and of its tools between."""
TOOLS: Final = 3
ENDS_WITHIN: Final = 60.0
WIDTH: Final = 40
"""Columns of the drawing."""


def kill_agents(home: Path, *, json: bool) -> int:
    """Kill the loop after each of its calls, in turn; print what became of its effects."""
    killed: list[Millis] = []
    for number in range(CALLS):
        _play(home, str(number), "after")
        killed.append(SystemClock().now())
    _play(home)
    report = _report(home, killed)
    if json:
        document(report)
    else:
        _show(report)
    return DONE if report["ok"] else FAILED


def _play(home: Path, *fate: str) -> None:
    command = [
        sys.executable,
        "-B",
        str(example_folder("agent_loop") / "trip.py"),
        str(home),
        *fate,
    ]
    subprocess.run(command, check=False, timeout=ENDS_WITHIN)  # noqa: S603 - our own script


def _report(home: Path, killed: list[Millis]) -> dict[str, Any]:
    effects = sorted(each.read_text("utf-8") for each in home.glob("*.ledger"))
    calls = len((home / "calls").read_text("utf-8").split())
    with look(home / "assistant.db") as found:
        known = [message(found, each, window=NEVER) for each in message_ids(found, "")]
    task = next(each for each in known if each.steps)
    steps = task.steps
    drawn = [
        {"call": f"{each.name}#{each.ordinal}", "from": each.started_at, "to": each.ended_at}
        for each in steps
    ]
    once = len(effects) == len(set(effects)) == TOOLS
    done = (home / "answer").exists() and len(steps) == CALLS
    return {
        "home": str(home),
        "task": task.rows[0].id,
        "kills": killed,
        "calls": calls,
        "effects": effects,
        "journey": drawn,
        "ok": once and done and calls == 2 * CALLS,
    }


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, drawing, seconds in _journey(report):
        table.add_row(name, drawing, seconds)
    console.print(table)
    effects = ", ".join(safe(each) for each in report["effects"])
    console.print(f"\neffects of the tools  {effects}")
    console.print(f"killed {len(report['kills'])} times, {report['calls']} calls of {CALLS}")
    good = "[green]Each tool took effect once.[/] A call whose result was stored is not made again."
    console.print(good if report["ok"] else "[bold red]A promise was broken.[/]")
    file = Path(report["home"], "assistant.db")
    line = f"\n  onceward show {report['task']} --db {file}"
    console.print(line, soft_wrap=True, markup=False)


def _journey(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the calls and the kills in the order of time, each with a mark at its time."""
    steps = report["journey"]
    begun = min(report["kills"][0], *(each["from"] for each in steps))
    span = max(1, *(each["to"] - begun for each in steps))
    rows = [(at, "[red]killed[/]", "[red]x[/]") for at in report["kills"]]
    rows += [(each["to"], each["call"], "[green]#[/]") for each in steps]
    for at, name, mark in sorted(rows):
        column = min(WIDTH, max(0, (at - begun) * WIDTH // span))
        yield name, " " * column + mark, f"{(at - begun) / 1000:.1f} s"
