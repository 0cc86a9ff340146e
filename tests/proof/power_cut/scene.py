"""The surroundings of a program: a folder, a file system, and a record of what it told outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol
from unittest.mock import patch

from tests.proof.power_cut.recorder import Recorder

from onceward.message.clock import Millis
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
    """Facts that the outside was told, in earlier lives too."""
    position: Callable[[], int] = lambda: 0
    recorder: Recorder | None = None
    """Records what the life asks of the disk, if another life may follow."""

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
    """A program that must survive power cuts."""

    @property
    def seed(self) -> int:
        """Decides the program's choices and which of its ends are examined."""
        ...

    def perform(self, scene: Scene) -> None:
        """Work from an empty folder on by the scene's file system; note what is told outside."""
        ...

    def judge(self, scene: Scene) -> list[str]:
        """Start again after a cut, go on, note what is told outside; return what is wrong."""
        ...

    def planted(self) -> AbstractContextManager[object]:
        """Return the block in which the program runs; bugs are planted here."""
        ...


@contextmanager
def steady(seed: int, life: int) -> Iterator[None]:
    """Make names and tokens the same in every run; process and boot have their own."""
    rng = Random(f"{seed}/{life}")
    with ExitStack() as stack:
        stack.enter_context(patch("secrets.token_hex", lambda size=16: rng.randbytes(size).hex()))
        stack.enter_context(patch("onceward.file.file_checks.boot_id", lambda: f"boot-{life}"))
        stack.enter_context(
            patch(
                "onceward.file.file_checks.process_id",
                lambda pid=None: f"boot-{life}.1.{pid or life + 2}.1",
            )
        )
        yield
