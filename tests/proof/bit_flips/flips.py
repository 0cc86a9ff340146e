"""Flip one bit after the other, in two agents' files or on the wire between them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from unittest.mock import patch

import apsw
from tests.proof.bit_flips.watched import Noisy, Watched, flipped, hear
from tests.proof.power_cut import planted
from tests.proof.power_cut.disk import Disk, Image
from tests.proof.power_cut.pair import Terms
from tests.proof.power_cut.part import arena
from tests.proof.power_cut.recorder import recording
from tests.proof.power_cut.scene import Scene, steady
from tests.proof.power_cut.track import lay_out
from tests.worker_pool import worker_pool

from onceward import Postbox
from onceward.errors import OncewardError

PATIENCE: Final = 86_400.0
WIRE: Final = "wire"
TURNS: Final = 60
"""
Rounds of one delivery.

There is less than that to do, so a postbox that needs them all works without an end.
"""
PARCELS: Final = 8
"""Among so many first parcels one is spoilt."""


@dataclass(frozen=True, slots=True)
class Flips:
    """What came of flipped bits."""

    harness: str
    count: int
    violations: tuple[str, ...]
    seconds: float
    seed: int
    noticed: int = 0
    """
    How many were met as an error of ours, or found by the invariants.

    Others hit what was never read, or changed nothing.
    """

    def __str__(self) -> str:
        said = (
            f"{self.harness}: seed {self.seed}, {self.count} bits flipped, {self.noticed} noticed"
        )
        return f"{said}, {len(self.violations)} violations in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked of one process."""

    seed: int
    numbers: tuple[int, ...]
    seconds: float


@dataclass(slots=True)
class Found:
    """What one process saw."""

    count: int = 0
    noticed: int = 0
    violations: list[str] = field(default_factory=list)


def flip(
    seed: int,
    *,
    bits: int = 2_000,
    seconds: float = PATIENCE,
    only: int | None = None,
    workers: int | None = None,
) -> Flips:
    """Flip *bits* bits, one in each run, and return what broke; *only* repeats one run."""
    begun = time.monotonic()
    parts = 1 if only is not None else workers or min(8, os.cpu_count() or 1)
    numbers = tuple(range(bits)) if only is None else (only,)
    with worker_pool(parts) as pool:
        found = list(
            pool.map(_run, [Task(seed, numbers[part::parts], seconds) for part in range(parts)])
        )
    return Flips(
        harness="bit flips",
        count=sum(each.count for each in found),
        violations=tuple(words for each in found for words in each.violations),
        seconds=time.monotonic() - begun,
        seed=seed,
        noticed=sum(each.noticed for each in found),
    )


def _run(task: Task) -> Found:
    until, found = time.monotonic() + task.seconds, Found()
    with arena() as folder:
        bench = Bench(task.seed, folder)
        for number in task.numbers:
            if time.monotonic() > until:
                break
            wrong, noticed = bench.flip(number)
            found.count += 1
            found.noticed += noticed
            found.violations += [f"bit {number}: {words}" for words in wrong]
    return found


class Bench:
    """Holds sound files with mail in every state, and spoils them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._seed, self._folder = seed, folder
        self._terms = Terms(seed=seed, busy_timeout=0.0)
        self._sent: dict[str, int] = {}
        self.noticed = False
        """Whether anything was noticed in the last life."""
        self.images = (self._sound(checkpoint=False), self._sound(checkpoint=True))

    def flip(self, number: int) -> tuple[list[str], bool]:
        """Spoil one bit and live on; return what is wrong, and whether it was noticed."""
        rng = random.Random(f"{self._seed}/{number}")
        image = dict(rng.choice(self.images))
        target = rng.choice((*(name for name in sorted(image) if image[name]), WIRE))
        way = Noisy(rng, rng.randint(1, PARCELS) if target == WIRE else 0)
        if target != WIRE:
            image[target] = flipped(image[target], rng)
        return [f"{target}: {words}" for words in self.live(image, way)], self.noticed

    def live(self, image: Image, way: Noisy) -> list[str]:
        """Let both live on *image*, talking by *way*, and return what is wrong."""
        lay_out(image, self._folder)
        with (
            steady(self._seed, 1),
            planted.all_of(()),
            patch("onceward.api.postbox.MAX_ROUNDS", TURNS),
        ):
            life = _Life(Watched(Scene(self._folder, None, 1), self._terms, dict(self._sent), way))
            wrong = life.run()
            self.noticed = life.noticed
        return wrong + (["RUNAWAY: parcels are pushed without an end"] if way.runaway else [])

    def _sound(self, *, checkpoint: bool) -> Image:
        """Return two agents' files with messages waiting, in flight, done, refused and answered."""
        lay_out({}, self._folder)
        with steady(self._seed, 0), planted.all_of(()), recording(Disk(), self._seed) as recorder:
            pair = Watched(Scene(self._folder, recorder.name), self._terms, self._sent)
            with pair:
                for _ in range(7):
                    pair.sign(pair.next_number())
                    pair.turn()
                for _ in range(3):
                    pair.send(pair.next_number())
                pair.carry()
                for _ in range(3):
                    pair.sign(pair.next_number())
                if checkpoint:
                    for box in pair.boxes.values():
                        box._db.checkpoint(truncate=True)
                disk = Disk()
                for op in recorder.log:
                    disk.apply(op)
        return disk.cached()


class _Life:
    """What two agents do on spoilt files, step by step; a step may fail, in our own words."""

    def __init__(self, pair: Watched) -> None:
        self._pair = pair
        self._strange: list[str] = []
        self.noticed = False

    def run(self) -> list[str]:
        """Open, look, work, look and close; return what is wrong."""
        pair = self._pair
        for side in ("near", "far"):
            self._try(f"open {side}", lambda side=side: pair.open(side))  # type: ignore[misc]
        for box in list(pair.boxes.values()):
            self._try("look", lambda box=box: hear(box))  # type: ignore[misc]
        if "near" in pair.boxes:
            self._try("sign", lambda: pair.sign(pair.next_number()))
        for _ in range(2):
            for box in list(pair.boxes.values()):
                self._try("deliver", lambda box=box: self._deliver(box))  # type: ignore[misc]
            pair.clock.advance(61)
        for box in list(pair.boxes.values()):
            self._try("maintain", box.file.run_maintenance)
            self._try("check", lambda box=box: self._check(box))  # type: ignore[misc]
        self._try("close", pair.close)
        for con in apsw.connections():
            con.close(force=True)
        return self._strange + pair.wrong

    def _deliver(self, box: Postbox) -> None:
        if box.run_until_idle() >= TURNS:
            self._strange.append(f"RUNAWAY: the engines of {box.agent} find no end")

    def _check(self, box: object) -> None:
        self.noticed |= bool(box.file.check())  # type: ignore[attr-defined]

    def _try(self, step: str, call: Callable[[], object]) -> None:
        try:
            call()
        except OncewardError:
            self.noticed = True
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self._strange.append(f"UNTYPED {step}: {type(error).__name__}: {error}"[:300])
