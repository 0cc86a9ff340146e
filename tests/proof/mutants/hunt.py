"""Mutants: mistakes, each planted in a copy of the project, and the test that notices it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, Self

LIST: Final = Path("tests", "proof", "mutants", "mutants.toml")
LIMIT: Final = 600.0
"""Seconds that the tests of one mutant may take; one that hangs them has been noticed too."""
SIDE_BY_SIDE: Final = 2
PATIENCE: Final = 86_400.0
COPIED: Final = ("src", "schema", "tests")
LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "proof", "spark")
HUNG: Final = " (did not end)"
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
QUIETLY: Final = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "")


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One planted mistake.

    What stands in a file once, what it becomes, and the tests that must notice, in this order.
    """

    name: str
    promise: str
    file: str
    before: str
    after: str
    tests: list[str]


@dataclass(frozen=True, slots=True)
class Killed:
    """How one mutant ended: the first test that failed on it, empty where none did."""

    mutant: Mutant
    killer: str
    seconds: float

    @property
    def layer(self) -> str:
        """The folder of tests that noticed."""
        return "/".join(self.killer.split("/")[:2])

    @property
    def killing_tests(self) -> str:
        """The function that failed, with all its parameters; the file where its tests hung."""
        return self.killer.removesuffix(HUNG).partition("[")[0]

    def __str__(self) -> str:
        found = self.killer or "SURVIVED"
        return f"{self.mutant.promise}  {self.mutant.name:45} {found}  {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Hunt:
    """What became of the mutants that were tried."""

    harness: str
    count: int
    violations: tuple[str, ...]
    """A line for each that went unnoticed."""
    seconds: float
    killed: tuple[Killed, ...]


def known(root: Path) -> list[Mutant]:
    """Return the mutants of the project at *root*; none where its tests are not there."""
    if not (root / LIST).is_file():
        return []
    return [
        Mutant(**each)
        for each in tomllib.loads((root / LIST).read_text(encoding="utf-8"))["mutant"]
    ]


def hunt(
    root: Path, mutants: Sequence[Mutant], *, seconds: float = PATIENCE, aloud: bool = False
) -> Hunt:
    """Try *mutants*, some side by side; none is begun after so many seconds."""
    begun, idle, killed = time.monotonic(), SimpleQueue["Copy"](), list[Killed]()

    def one(mutant: Mutant) -> None:
        if time.monotonic() - begun > seconds:
            return
        copy = idle.get()
        try:
            found = copy.tried(mutant)
        finally:
            idle.put(copy)
        killed.append(found)
        if aloud:
            sys.stdout.write(f"{found}\n")

    with (
        TemporaryDirectory(prefix="onceward-mutants-") as folder,
        ThreadPoolExecutor(SIDE_BY_SIDE) as pool,
    ):
        for number in range(SIDE_BY_SIDE):
            idle.put(Copy.of(root, Path(folder, str(number))))
        list(pool.map(one, mutants))
    survivors = tuple(f"nobody noticed: {each.mutant.name}" for each in killed if not each.killer)
    return Hunt("mutants", len(killed), survivors, time.monotonic() - begun, tuple(killed))


def drawn(mutants: Sequence[Mutant], seed: int, count: int) -> list[Mutant]:
    """Return *count* of the mutants, in an order that the seed decides."""
    return Random(seed).sample(mutants, min(count, len(mutants)))


class Copy:
    """A copy of the project in which one mistake after the other is planted and taken back."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def of(cls, project: Path, root: Path) -> Self:
        """Copy what tests need."""
        for folder in COPIED:
            shutil.copytree(project / folder, root / folder, ignore=LEFT_OUT)
        shutil.copy(project / "pyproject.toml", root)
        return cls(root)

    def tried(self, mutant: Mutant) -> Killed:
        """Plant one mistake, run its tests until one fails, take it back."""
        begun = time.monotonic()
        with self._planted(mutant):
            killer = next(filter(None, map(self.failing, mutant.tests)), "")
        return Killed(mutant, killer, time.monotonic() - begun)

    @contextmanager
    def _planted(self, mutant: Mutant) -> Iterator[None]:
        file = self._root / mutant.file
        text = file.read_text(encoding="utf-8")
        self._write(file, text.replace(mutant.before, mutant.after))
        try:
            yield
        finally:
            self._write(file, text)

    @staticmethod
    def _write(file: Path, text: str) -> None:
        """Write a source file; what was compiled of it may bear the same second and size."""
        file.write_text(text, encoding="utf-8")
        for compiled in Path(cache_from_source(str(file))).parent.glob(f"{file.stem}.*"):
            compiled.unlink()

    def failing(self, tests: str) -> str:
        """
        Return the first of *tests* that fails, empty where all pass.

        Raises:
            RuntimeError: they could not be run at all.

        """
        command = [
            sys.executable,
            "-m",
            "pytest",
            *QUIETLY,
            f"--basetemp={self._root / 'tmp'}",
            *tests.split(),
        ]
        environment = os.environ | {"PYTHONPATH": str(self._root / "src")}
        try:
            ran = subprocess.run(
                command,
                cwd=self._root,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return tests + HUNG
        if ran.returncode == 0:
            return ""
        if ran.returncode == 1 and (failed := FAILED.search(ran.stdout)):
            return failed[1]
        msg = (
            f"pytest {tests} ended with {ran.returncode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        )
        raise RuntimeError(msg)
