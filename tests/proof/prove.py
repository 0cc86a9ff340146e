"""Run every harness that tries to break the promises, one after the other, in one table."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from tests.proof.bit_flips import flips
from tests.proof.disk_failures import sweep
from tests.proof.kills import http_kill_test, kill_test, nats_kill_test
from tests.proof.model import search, values
from tests.proof.mutants import hunt
from tests.proof.network import trial as network
from tests.proof.power_cut.explorer import explore_days
from tests.proof.power_cut.pair import Terms
from tests.proof.power_cut.workload import Town
from tests.proof.seed import proof_seed
from tests.proof.simulation import campaign as simulation

DONE: Final = 0
BROKEN: Final = 1
UNBOUNDED: Final = 86_400.0 * 30
MOST: Final = 50_000_000
"""States of the protocol: where there are more, something has grown that should not."""
SHOWN: Final = 10
"""Violations of each harness that are printed."""


class Finding(Protocol):
    """What every harness returns."""

    @property
    def count(self) -> int:
        """How much was tried."""
        ...

    @property
    def violations(self) -> tuple[str, ...]:
        """A line for each broken promise, with what it takes to see it again."""
        ...

    @property
    def seconds(self) -> float:
        """How long it took."""
        ...


@dataclass(frozen=True, slots=True)
class Harness:
    """One machine: what it counts, how large it is by default and in full, and how it is run."""

    name: str
    unit: str
    size: int
    full: int
    run: Callable[[int, float, int], Finding]
    """From size, seconds and seed; it ends when its time is up."""
    lacks: Callable[[], str] = str
    """Says what it would need that is not here; empty where nothing is missing."""


def _cuts(depth: int, transport: Literal["memory", "file"]) -> Callable[[int, float, int], Finding]:
    def run(size: int, seconds: float, seed: int) -> Finding:
        days = list(
            explore_days(
                lambda day: Town(seed=day, transport=transport),
                seed=seed,
                states=size,
                depth=depth,
                seconds=seconds,
            )
        )
        return replace(
            days[-1], count=sum(day.count for day in days), seconds=sum(day.seconds for day in days)
        )

    return run


def _planted(size: int, seconds: float, seed: int) -> Finding:
    return hunt.hunt(Path(), hunt.drawn(hunt.known(Path()), seed, size), seconds=seconds)


def _no_mutants() -> str:
    here = hunt.known(Path()) and find_spec("pytest")
    return (
        "" if here else "not tried: planted mistakes need the project's own tests, in this folder"
    )


BACK: Final = values.Rules(messages=2, late=False, backups=1)
"""A recipient that is put back to an earlier state, once."""
HARNESSES: Final = (
    Harness("power cuts", "states", 15_000, 1_000_000, _cuts(1, "memory")),
    Harness("power cuts, twice", "states", 5_000, 100_000, _cuts(2, "file")),
    Harness(
        "disk failures",
        "failures",
        2_000,
        10**9,
        lambda n, s, seed: sweep.sweep(Terms(seed=seed, busy_timeout=0.0), faults=n, seconds=s),
    ),
    Harness(
        "bit flips",
        "bits",
        2_000,
        100_000,
        lambda n, s, seed: flips.flip(seed, bits=n, seconds=s),
    ),
    Harness(
        "simulation",
        "worlds",
        2_000,
        100_000,
        lambda n, s, seed: simulation.simulate(n, seed=seed * 1_000_000, seconds=s),
    ),
    Harness(
        "protocol",
        "states",
        3,
        4,
        lambda n, s, _: search.explore(
            values.Rules(messages=n, relies=False), most=MOST, seconds=s
        ),
    ),
    Harness(
        "protocol, put back",
        "states",
        1,
        2,
        lambda n, s, _: search.explore(BACK._replace(frames=n, prunes=n > 1), seconds=s),
    ),
    Harness(
        "kills",
        "kills",
        500,
        100_000,
        lambda n, s, seed: kill_test.trial(kills=n, seconds=s, seed=seed),
    ),
    Harness(
        "kills over nats",
        "kills",
        80,
        10_000,
        nats_kill_test.tried,
    ),
    Harness("kills over http", "kills", 40, 10_000, http_kill_test.tried),
    Harness("http", "messages", 800, 20_000, network.campaign),
    Harness("mutants", "mutants", 12, 1_000, _planted, _no_mutants),
)


def prove(
    *,
    seconds: float | None = None,
    full: bool = False,
    json: bool = False,
    seed: int | None = None,
    only: str = "",
) -> int:
    """
    Try to break the promises.

    Power cuts, failing disks, wrong bits, simulated worlds, every state of the protocol, kills,
    a spoiled network.

    Prints a table of harness, how much was tried, violations and seconds. Exit code 1 if a promise
    was broken; the lines below the
    table then say how to see it again. Planted mistakes are tried in the project's own folder,
    where the tests are that must notice.

    Args:
        seconds: Share so many seconds among the harnesses, instead of going through a fixed number
        of cases.
        full: As many cases as a night allows.
        json: Print one JSON document, and nothing else.
        seed: Which cases are drawn. Default: ONCEWARD_SEED, or a fixed one.
        only: Only the harnesses whose name begins so.

    """
    chosen = [each for each in HARNESSES if each.name.startswith(only)]
    drawn = proof_seed() if seed is None else seed
    until = time.monotonic() + (UNBOUNDED if seconds is None else seconds)
    rows: list[dict[str, Any]] = []
    with _progress(quiet=json) as progress:
        bar = progress.add_task("", total=len(chosen))
        for number, each in enumerate(chosen):
            progress.update(bar, description=each.name)
            share = (
                UNBOUNDED
                if seconds is None
                else max(0.0, until - time.monotonic()) / (len(chosen) - number)
            )
            rows += _rows(
                each, each.full if full or seconds is not None else each.size, share, drawn
            )
            progress.advance(bar)
    _tell(rows, drawn, json=json)
    return BROKEN if any(row["violations"] for row in rows) else DONE


def _progress(*, quiet: bool) -> Progress:
    columns = (
        TextColumn("[bold]proving"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True)


def _rows(each: Harness, size: int, seconds: float, seed: int) -> list[dict[str, Any]]:
    """Run one harness; return its row, and that of what was counted on the way."""
    if lacking := each.lacks():
        return [_row(each.name, each.unit, Untried()) | {"skipped": lacking}]
    found = each.run(size, seconds, seed)
    rare = (
        [_row("rare branches", f"of {len(simulation.EXPECTED)}", found.rare)]
        if isinstance(found, simulation.Campaign)
        else []
    )
    return [_row(each.name, each.unit, found), *rare]


@dataclass(frozen=True, slots=True)
class Untried:
    """What a harness found that cannot run here."""

    count: int = 0
    violations: tuple[str, ...] = ()
    seconds: float = 0.0


def _row(name: str, unit: str, found: Finding) -> dict[str, Any]:
    return {
        "harness": name,
        "count": found.count,
        "unit": unit,
        "violations": len(found.violations),
        "seconds": round(found.seconds, 1),
        "first": list(found.violations[:SHOWN]),
    }


def _tell(rows: list[dict[str, Any]], seed: int, *, json: bool) -> None:
    if json:
        sys.stdout.write(jsonlib.dumps({"seed": seed, "harnesses": rows}, indent=2) + "\n")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("harness", "tried", "violations", "seconds"):
        table.add_column(name, justify="left" if name == "harness" else "right")
    for row in rows:
        broken = f"[{'red' if row['violations'] else 'green'}]{row['violations']}[/]"
        table.add_row(
            row["harness"], f"{row['count']:,} {row['unit']}", broken, f"{row['seconds']:.0f}"
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\nseed {seed}", style="dim")
    for row in rows:
        if "skipped" in row:
            console.print(
                f"{row['harness']}: {row['skipped']}", style="yellow", markup=False, soft_wrap=True
            )
        for line in row["first"]:
            console.print(f"{row['harness']}: {line}", style="red", markup=False, soft_wrap=True)
