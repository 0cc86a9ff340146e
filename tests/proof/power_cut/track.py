"""A recorded life that can be stopped after any of its operations."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from tests.proof.power_cut.disk import Disk, Image, Op
from tests.proof.power_cut.recorder import recording
from tests.proof.power_cut.scene import Fact, Program, Scene, steady

EVERY: Final = 50
"""Operations between two states of the disk that are kept for quick access."""


@dataclass(frozen=True, slots=True)
class Life:
    """The operations of a life, what was told outside meanwhile, and how it ended."""

    start: Disk
    log: tuple[Op, ...]
    facts: tuple[Fact, ...]
    wrong: tuple[str, ...]

    def known(self, position: int) -> list[Fact]:
        """Return what the world knew after so many operations."""
        return [fact for fact in self.facts if fact.position <= position]


class Track:
    """The disk of one life, at any moment of it."""

    def __init__(self, life: Life) -> None:
        self.life = life
        disk, self._kept = life.start.clone(), list[Disk]()
        for position, op in enumerate(life.log):
            if position % EVERY == 0:
                self._kept.append(disk.clone())
            disk.apply(op)
        self._kept.append(disk)

    def at(self, position: int) -> Disk:
        """Return the disk after the first *position* operations; it is the caller's."""
        index = min(position // EVERY, len(self._kept) - 2) if len(self._kept) > 1 else 0
        disk = self._kept[index].clone()
        for op in self.life.log[index * EVERY : position]:
            disk.apply(op)
        return disk


def play(program: Program, folder: Path, *, start: Disk, number: int, facts: list[Fact]) -> Life:
    """Run *program* on *start*, laid out in *folder*, and record it; later lives judge."""
    lay_out(start.cached(), folder)
    with (
        steady(program.seed, number),
        program.planted(),
        recording(start, program.seed) as recorder,
    ):
        scene = Scene(
            folder,
            recorder.name,
            number,
            [replace(fact, position=0) for fact in facts],
            lambda: len(recorder.log),
            recorder,
        )
        wrong: list[str] = []
        if number == 0:
            program.perform(scene)
        else:
            wrong = program.judge(scene)
        return Life(start, tuple(recorder.log), tuple(scene.facts), tuple(wrong))


def judged(program: Program, folder: Path, *, number: int, facts: list[Fact]) -> list[str]:
    """Start *program* again on the files in *folder* without recording; return what is wrong."""
    with steady(program.seed, number), program.planted():
        return program.judge(Scene(folder, None, number, list(facts)))


def lay_out(image: Image, folder: Path) -> None:
    """Write *image* into *folder*, into existing inodes where there are any, which is cheaper."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in image:
            path.unlink()
    for name, data in sorted(image.items()):
        path = folder / name
        if name.endswith("/"):
            path.mkdir()
            continue
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
            file.truncate()


def digest(image: Image) -> bytes:
    """Return what tells one image from another."""
    seen = hashlib.blake2b(digest_size=12)
    for name, data in sorted(image.items()):
        seen.update(name.encode() + b":" + print_of(data))
    return seen.digest()


@lru_cache(maxsize=256)
def print_of(data: bytes) -> bytes:
    """Return a key of a content; most files of an image are those of the image before."""
    return hashlib.blake2b(data, digest_size=12).digest()
