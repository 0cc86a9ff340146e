"""Where tasks are run on a disk that fails, and what comes of it is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final, Self, cast, get_args

import apsw
from tests.proof.disk_failures.failing import KINDS, FailingDisk, Fault
from tests.proof.disk_failures.task import TASKS, Lasts, Task
from tests.proof.power_cut import planted
from tests.proof.power_cut.disk import Disk, Image
from tests.proof.power_cut.pair import Terms
from tests.proof.power_cut.recovered import Recovered
from tests.proof.power_cut.scene import Fact, Scene, steady
from tests.proof.power_cut.track import judged, lay_out
from tests.proof.power_cut.workload import Town

OLDER: Final = "older"


@dataclass(frozen=True, slots=True)
class Case:
    """Which operation fails, in which task, how, and for how long."""

    task: str
    kind: str
    number: int
    lasts: Lasts

    def __str__(self) -> str:
        return f"{self.task}/{self.kind}/{self.number}/{self.lasts}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` wrote."""
        task, kind, number, lasts = text.split("/")
        return cls(task, kind, int(number), cast("Lasts", lasts))


@dataclass(slots=True)
class Found:
    """What came of it so far."""

    of: int = 0
    unknown: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Start:
    """What a task begins with."""

    image: Image
    facts: list[Fact]


class Bench:
    """Runs tasks one after the other in one folder."""

    def __init__(self, terms: Terms, folder: Path) -> None:
        self._terms, self._folder = terms, folder
        self._town = Town(seed=terms.seed, transport=terms.transport)
        self._recovered = Recovered(folder)
        self._sound: set[tuple[bytes, int]] = set()
        self.found = Found()
        self._starts = {name: self._prepared(before) for name, (before, _) in TASKS.items()}

    def cases(self) -> list[Case]:
        """Return every operation that may fail, in the order of the seed."""
        found: list[Case] = []
        for name in TASKS:
            fault = Fault()
            self._run(name, fault, [])
            found += [
                Case(name, kind, number, lasts)
                for kind in KINDS
                for number in range(1, fault.seen[kind] + 1)
                for lasts in get_args(Lasts)
            ]
        self.found.of = len(found)
        Random(self._terms.seed).shuffle(found)
        return found

    def fail(self, case: Case) -> None:
        """Let one operation fail; judge the files after the process, and after a death at once."""
        fault, spots = Fault(case.kind, case.number, case.lasts != "once"), list[_Spot]()
        wrong = self._run(case.task, fault, spots, case.lasts)
        if not spots:
            return
        self.found.kinds[case.kind] += 1
        closed = {
            path.name: path.read_bytes()
            for path in self._folder.iterdir()
            if not path.name.endswith("-shm")
        }
        wrong += [f"closed: {words}" for words in self._judge(closed, spots[-1].facts)]
        wrong += [f"killed: {words}" for words in self._judge(spots[0].image, spots[0].facts)]
        if wrong:
            self.found.violations.append(f"{case}: {'; '.join(wrong)}")

    def _prepared(self, before: str) -> _Start:
        nothing, spots = _Start({}, []), list[_Spot]()
        if not before:
            return nothing
        lay_out(nothing.image, self._folder)
        with ExitStack() as stack:
            stack.enter_context(self._world(0))
            if before.startswith(OLDER):
                stack.enter_context(planted.older_schema())
            self._play(nothing, Fault(fired=True), before.removeprefix(OLDER), life=0, spots=spots)
        return _Start(spots[-2].image, spots[-2].facts)  # the last step closes

    def _run(
        self, name: str, fault: Fault, spots: list[_Spot], lasts: Lasts | None = None
    ) -> list[str]:
        start = self._starts[name]
        lay_out(start.image, self._folder)
        with self._world(1):
            return self._play(start, fault, TASKS[name][1], life=1, spots=spots, lasts=lasts)

    @contextmanager
    def _world(self, life: int) -> Iterator[None]:
        with steady(self._terms.seed, life), planted.all_of(self._terms.mutants):
            yield

    def _play(
        self,
        start: _Start,
        fault: Fault,
        script: str,
        *,
        life: int,
        spots: list[_Spot],
        lasts: Lasts | None = None,
    ) -> list[str]:
        disk = Disk.of(start.image)
        vfs = FailingDisk(disk, self._terms.seed, fault)
        scene = Scene(
            self._folder,
            vfs.name,
            life,
            [replace(fact, position=0) for fact in start.facts],
            lambda: len(vfs.log),
        )

        def look() -> None:
            if fault.fired:
                spots.append(_Spot(disk, len(vfs.log), vfs, list(scene.facts)))

        task = Task(scene, self._terms, look, fault)
        try:
            wrong = task.run(script, lasts)
        finally:
            fault.kind = ""  # whatever was left open is closed on a disk that works
            for con in apsw.connections():
                con.close(force=True)
            vfs.unregister()
        self.found.unknown += task.unknown
        return wrong

    def _judge(self, image: Image, facts: list[Fact]) -> list[str]:
        lay_out(image, self._folder)
        came_back = self._recovered.of(image)
        key = (
            None
            if came_back is None
            else (came_back, hash(tuple((fact.kind, fact.n) for fact in facts)))
        )
        if key in self._sound:
            return []
        wrong = judged(self._town, self._folder, number=2, facts=facts)
        if key is not None and not wrong:
            self._sound.add(key)
        return wrong


@dataclass(frozen=True, slots=True)
class _Spot:
    """The moment after a step."""

    start: Disk
    position: int
    vfs: FailingDisk
    facts: list[Fact]

    @property
    def image(self) -> Image:
        """The files as a process that died here leaves them."""
        disk = self.start.clone()
        for op in self.vfs.log[: self.position]:
            disk.apply(op)
        return disk.cached()
