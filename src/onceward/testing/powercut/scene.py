"""Where a program plays: a folder, a file system, and an audience outside that remembers what it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol
from unittest.mock import patch

from onceward.model.clock import Millis
from onceward.testing.clock import START_AT

A_DAY: Millis = 86_400_000


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was known outside after so many operations of the disk."""

    position: int
    kind: str
    n: int


@dataclass(slots=True)
class Scene:
    """One life of a program: from its start to a cut, a kill or its end."""

    folder: Path
    vfs: str | None = None
    life: int = 0
    """How often the machine has been started before."""
    facts: list[Fact] = field(default_factory=list)
    """What the world outside knows, from earlier lives too."""
    position: Callable[[], int] = lambda: 0

    @property
    def starts_at(self) -> Millis:
        """When this life begins: every lease of an earlier one has run out by then."""
        return START_AT + self.life * A_DAY

    def note(self, kind: str, n: int) -> None:
        """Let the world outside know something."""
        self.facts.append(Fact(self.position(), kind, n))

    def known(self, kind: str) -> list[int]:
        """Return the numbers of all facts of that kind, in the order in which they became known."""
        return [fact.n for fact in self.facts if fact.kind == kind]


class Program(Protocol):
    """What is to survive power cuts."""

    @property
    def seed(self) -> int:
        """What its own choices depend on, and which of its ends are looked at."""
        ...

    def perform(self, scene: Scene) -> None:
        """Work from an empty folder on, through the scene's file system, and note what the world is told."""
        ...

    def judge(self, scene: Scene) -> list[str]:
        """Start again after a cut, go on working, note what the world is told, and return what is wrong."""
        ...

    def planted(self) -> AbstractContextManager[object]:
        """Return the block in which the program runs; a place for planting bugs that the explorer must find."""
        ...


@contextmanager
def steady(seed: int, life: int) -> Iterator[None]:
    """Make names and tokens the same in every run, in a process and after a boot that have names of their own."""
    rng = Random(f"{seed}/{life}")  # noqa: S311 - the same names in every run
    with ExitStack() as stack:
        stack.enter_context(patch("secrets.token_hex", lambda size=16: rng.randbytes(size).hex()))
        stack.enter_context(patch("onceward.db.file_checks.boot_id", lambda: f"boot-{life}"))
        stack.enter_context(
            patch(
                "onceward.db.file_checks.process_id",
                lambda pid=None: f"boot-{life}.1.{pid or life + 2}.1",
            )
        )
        yield
