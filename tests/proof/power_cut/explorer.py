"""The explorer: one recorded life, thousands of ends."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.proof.power_cut.part import Found, Task, run
from tests.proof.power_cut.scene import Program
from tests.worker_pool import worker_pool

PATIENCE: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an exploration."""

    harness: str
    count: int
    """Distinct states of the disk that a program was started on."""
    violations: tuple[str, ...]
    """One line for each state in which a promise was broken: its name, then what was broken."""
    seconds: float
    seed: int
    operations: int = 0
    """Length of the recorded life."""
    in_full: int = 0
    """States that were judged to the end; the others had come back as one of these."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind of violation was found."""

    def __str__(self) -> str:
        tried = f"{self.operations} operations, {self.count} states ({self.in_full} in full)"
        found = f"{len(self.violations)} violations {dict(self.kinds) or ''}"
        return f"{self.harness}: seed {self.seed}, {tried}, {found} in {self.seconds:.1f} s"


def explore(
    program: Program,
    *,
    states: int = 1000,
    depth: int = 1,
    seconds: float = PATIENCE,
    enough: int | None = None,
    until: Collection[str] = (),
    only: str = "",
    keep: Path | None = None,
    aimed: bool = False,
) -> Verdict:
    """
    Cut the power in *states* distinct ways, start again each time, and return what broke.

    At *depth* 2 the first life is cut or killed, a second one is recorded while
    it recovers and goes on, and is cut too. Ends early after *seconds*, or
    after *enough* violations, or after one of a kind in *until*. *only* names one state of an
    earlier run. *aimed* (two deep) kills the first life before each of its syncs and cuts the power
    before the second life's first syncs: a few hundred states that find what is acted on before it
    is durable. Images of states with violations are copied to *keep*.
    """
    count = 1 if only else min(8, os.cpu_count() or 1)
    begun = time.monotonic()
    task = Task(
        program,
        depth=depth,
        states=-(-states // count),
        seconds=seconds,
        enough=enough,
        only=only,
        keep=str(keep or ""),
        aimed=aimed,
        until=frozenset(until),
        parts=count,
    )
    with TemporaryDirectory() as folder, worker_pool(count) as pool:
        task = replace(task, seen=str(Path(folder, "seen")) if until else "")
        parts = list(pool.map(run, [replace(task, part=part) for part in range(count)]))
    return _merged(program, depth, parts, time.monotonic() - begun)


def explore_days(
    program: Callable[[int], Program],
    *,
    seed: int,
    states: int,
    depth: int = 1,
    aimed: bool = False,
    seconds: float = PATIENCE,
    only: str = "",
    keep: Path | None = None,
) -> Iterator[Verdict]:
    """Cut the power in *states* ways, one day after the other; end early at a violation."""
    until, twins = (
        time.monotonic() + seconds,
        states // 20,
    )  # two processes may have drawn the same image
    for day in itertools.count(seed):
        verdict = explore(
            program(day),
            states=states,
            depth=depth,
            aimed=aimed,
            seconds=until - time.monotonic(),
            only=only,
            keep=keep,
        )
        yield verdict
        states -= verdict.count
        if verdict.violations or only or states <= twins or time.monotonic() > until:
            return


def _merged(program: Program, depth: int, parts: list[Found], seconds: float) -> Verdict:
    violations = [each for part in parts for each in part.violations]
    return Verdict(
        harness="power cuts" if depth == 1 else "power cuts, two deep",
        count=len(set[bytes]().union(*(part.images for part in parts))),
        violations=tuple(str(each) for each in violations),
        seconds=seconds,
        seed=program.seed,
        operations=max(part.operations for part in parts),
        in_full=sum(part.in_full for part in parts),
        kinds=Counter(kind for each in violations for kind in each.kinds),
    )
