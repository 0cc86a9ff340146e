"""One process's share of an exploration."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

from tests.proof.power_cut.case import (
    KILL,
    Cut,
    aimed_endings,
    aimed_seconds,
    endings,
    seconds,
    shuffled,
)
from tests.proof.power_cut.disk import Disk, Image
from tests.proof.power_cut.persistence import image
from tests.proof.power_cut.recovered import Recovered
from tests.proof.power_cut.scene import Fact, Program
from tests.proof.power_cut.track import Life, Track, digest, judged, lay_out, play

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - files that need not be kept, in a folder of our own
SECOND_CUTS: Final = 12
"""Cuts of one recovery that was recorded."""
SAMPLE: Final = 16
"""One in so many states that came back as a judged one is judged again."""
KEPT: Final = 5


@dataclass(frozen=True, slots=True)
class Task:
    """The share of one process."""

    program: Program
    depth: int
    states: int
    seconds: float
    enough: int | None
    only: str
    keep: str
    aimed: bool = False
    """Whether to kill before each sync and then lose what was not synced."""
    until: frozenset[str] = frozenset()
    """Kinds of violations of which one is enough for all parts."""
    seen: str = ""
    """Path of the file that a part makes when it has found such a violation."""
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Violation:
    """A state in which a promise was broken."""

    state: str
    words: tuple[str, ...]
    kept: str = ""

    @property
    def kinds(self) -> set[str]:
        """The first words."""
        return {words.partition(" ")[0] for words in self.words}

    def __str__(self) -> str:
        return f"state {self.state}: {'; '.join(self.words)}" + (
            f" (files in {self.kept})" if self.kept else ""
        )


@dataclass(slots=True)
class Found:
    """The findings of one process."""

    operations: int = 0
    in_full: int = 0
    images: set[bytes] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)


def run(task: Task) -> Found:
    """Do one process's share."""
    with arena() as folder:
        return Part(task, folder).run()


@contextmanager
def arena() -> Iterator[Path]:
    """Return an empty folder, in memory where there is such a place, that is gone afterwards."""
    base = MEMORY if os.access(MEMORY, os.W_OK) else None
    with (
        TemporaryDirectory(prefix="onceward-cut-", dir=base) as name,
        patch.dict(os.environ, {"XDG_RUNTIME_DIR": name}),
    ):
        folder = Path(name, "disk")
        folder.mkdir()
        yield folder


class Part:
    """Looks at state after state until there are enough."""

    def __init__(self, task: Task, folder: Path) -> None:
        self._task, self._folder, self._program = task, folder, task.program
        self._until = time.monotonic() + task.seconds
        self._rng = Random(f"{task.program.seed}/{task.depth}/{task.part}")
        self._found = Found()
        self._seen: set[tuple[bytes, int]] = set()
        self._sound: set[tuple[bytes, int]] = set()
        self._again = 0
        self._recovered = Recovered(folder)

    def run(self) -> Found:
        """Record the first life and end it in many ways."""
        track = Track(play(self._program, self._folder, start=Disk(), number=0, facts=[]))
        self._found.operations = len(track.life.log)
        if self._task.only:
            self._one(track, [Cut.parse(each) for each in self._task.only.split(">")])
        elif self._task.aimed:
            self._aimed_cuts(track)
        elif self._task.depth == 1:
            self._cuts(track)
        else:
            self._second_cuts(track)
        return self._found

    @property
    def _enough(self) -> bool:
        found, task = self._found, self._task
        return (
            len(found.images) >= task.states
            or time.monotonic() > self._until
            or (task.enough is not None and len(found.violations) >= task.enough)
            or (task.seen != "" and os.path.exists(task.seen))  # noqa: PTH110 - asked a thousand times
        )

    def _cuts(self, track: Track) -> None:
        for cut in shuffled(
            len(track.life.log), self._rng, part=self._task.part, parts=self._task.parts
        ):
            if self._enough:
                break
            self._cut(track, cut, number=1, before="")

    def _second_cuts(self, track: Track) -> None:
        for end in endings(track.life.log, self._rng):
            if self._enough:
                break
            second = self._resumed(track, end)
            for cut in islice(seconds(second.life.log, self._rng), SECOND_CUTS):
                self._cut(second, cut, number=2, before=f"{end} > ")

    def _aimed_cuts(self, track: Track) -> None:
        task = self._task
        for end in aimed_endings(track.life.log, self._rng, part=task.part, parts=task.parts):
            if self._enough:
                break
            second = self._resumed(track, end)
            for cut in aimed_seconds(second.life.log):
                self._cut(second, cut, number=2, before=f"{end} > ")

    def _one(self, track: Track, cuts: list[Cut]) -> None:
        before = ""
        for number, cut in enumerate(cuts, 1):
            if number == len(cuts):
                self._cut(track, cut, number=number, before=before)
            else:
                track, before = self._resumed(track, cut), f"{before}{cut} > "

    def _resumed(self, track: Track, end: Cut) -> Track:
        """End a life, start the next one and record it; unsynced writes of a kill stay unsynced."""
        disk = track.at(end.position)
        start = (
            disk
            if end.model == KILL
            else Disk.of(image(disk, end.model, end.rng(self._program.seed)))
        )
        facts = track.life.known(end.position)
        life: Life = play(self._program, self._folder, start=start, number=1, facts=facts)
        if life.wrong:
            self._blame(str(end), list(life.wrong), start.cached())
        return Track(life)

    def _cut(self, track: Track, cut: Cut, *, number: int, before: str) -> None:
        seed = self._program.seed
        left = image(track.at(cut.position), cut.model, cut.rng(seed))
        facts, seen = track.life.known(cut.position), digest(left)
        if (seen, len(facts)) in self._seen:
            return
        self._seen.add((seen, len(facts)))
        self._found.images.add(seen)
        lay_out(left, self._folder)
        wrong = self._judge(left, facts, number)
        if wrong:
            self._blame(f"{before}{cut}", wrong, left)

    def _judge(self, left: Image, facts: list[Fact], number: int) -> list[str]:
        """Judge a state, unless what it comes back as has been judged with the same knowledge."""
        came_back = self._recovered.of(left)
        key = None if came_back is None else (came_back, hash(tuple(facts)))
        if key in self._sound:
            self._again += 1
            if self._again % SAMPLE:
                return []
        self._found.in_full += 1
        wrong = judged(self._program, self._folder, number=number, facts=facts)
        if key is not None and not wrong:
            self._sound.add(key)
        return wrong

    def _blame(self, state: str, words: list[str], left: Image) -> None:
        kept = ""
        if self._task.keep and len(self._found.violations) < KEPT:
            folder = Path(
                self._task.keep,
                f"seed-{self._program.seed}-{state.replace('/', '_').replace(' > ', '--')}",
            )
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            lay_out(left, folder)
            kept = str(folder)
        violation = Violation(state, tuple(words), kept)
        self._found.violations.append(violation)
        if self._task.until & violation.kinds:
            Path(self._task.seen).touch()
