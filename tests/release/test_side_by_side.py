"""The release before and this one exchange messages, while processes of both are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.children import Child
from tests.ports import free_port
from tests.release import previous
from tests.release.previous import Release

from onceward import Postbox
from onceward.keys import Keys

NEIGHBOUR = Path(__file__).parent / "neighbour.py"
THIS = Release(version("onceward"), Path(sys.executable), is_stand_in=False)
COUNT = 60
KILLED_AFTER = (5, 10, 15)
"""Numbers after which an end is killed and started again, each time by a signal."""
BRISK = {
    "ONCEWARD_DELIVERY_RETRY": "0.05s..0.2s ±0%",
    "ONCEWARD_BREAKER_OPEN_FOR": "0.2",
    "ONCEWARD_LEASE": "2",
}
"""Short spans, so that what died is reached soon."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return the release before this one, or what stands in for it."""
    return previous.install(tmp_path_factory.mktemp("previous"), tag=previous.last_tag())


@dataclass
class End:
    """One of the two agents: its release, its home, and the process that runs."""

    release: Release
    name: str
    other: str
    home: Path
    urls: tuple[str, ...] = ()
    got: int = 0
    taken: set[str] = field(default_factory=set)

    @contextmanager
    def running(self) -> Iterator[Child]:
        """Run the process."""
        words = [self.release.python, NEIGHBOUR, self.home, self.name, self.other, COUNT]
        env = {**os.environ, **BRISK, "PYTHONSAFEPATH": "1"}
        env.pop("PYTHONPATH", None)
        with (
            (self.home / f"{self.name}.log").open("ab") as log,
            Child([*words, *self.urls], "stdout", env=env, log=log) as child,
        ):
            yield child

    def hear(self, child: Child, enough: Callable[[], bool]) -> None:
        """Read what the process says until it is enough."""
        while not enough():
            line = child.hear()
            assert line, (self.home / f"{self.name}.log").read_text(encoding="utf-8")
            self._note(line)

    def kill(self, child: Child) -> None:
        """End the process at once; what it had said counts."""
        said, _ = child.stop(signal.SIGKILL)
        for line in said.splitlines():
            self._note(line)

    def _note(self, line: str) -> None:
        word, _, number = line.partition(" ")
        self.got += word == "got"
        self.taken |= {number} if word == "taken" else set()

    def box(self) -> Postbox:
        """Open the file in this release."""
        return Postbox(self.home / f"{self.name}.db", agent=self.name, start=False)


def by_files(old: Release, folder: Path) -> list[End]:
    """Return two agents of one home."""
    return [End(old, "old", "new", folder), End(THIS, "new", "old", folder)]


def by_http(old: Release, folder: Path) -> list[End]:
    """Return two agents of two homes, each of which serves."""
    homes = {name: folder / name for name in ("old", "new")}
    urls = {name: f"http://127.0.0.1:{free_port()}" for name in homes}
    for home in homes.values():
        home.mkdir()
    Keys(homes["new"]).add("old", Keys(homes["old"]).create("new"))
    return [
        End(old, "old", "new", homes["old"], (urls["old"], urls["new"])),
        End(THIS, "new", "old", homes["new"], (urls["new"], urls["old"])),
    ]


@pytest.mark.parametrize("way", [by_files, by_http], ids=["files", "http"])
def test_two_releases_exchange_messages_while_both_are_killed(
    before: Release, tmp_path: Path, way: Callable[[Release, Path], list[End]]
) -> None:
    """Each number takes effect once at the other side, and each reply comes."""
    ends = way(before, tmp_path)
    with ExitStack() as stack:
        running = [stack.enter_context(end.running()) for end in ends]
        for few in KILLED_AFTER:
            for at, end in enumerate(ends):
                end.hear(running[at], lambda end=end, few=few: end.got >= few)  # type: ignore[misc]
                end.kill(running[at])
                running[at] = stack.enter_context(end.running())
        for child, end in zip(running, ends, strict=True):
            end.hear(child, lambda end=end: len(end.taken) == COUNT)  # type: ignore[misc]

    for end in ends:
        with end.box() as box:
            once = box.query("SELECT n, count(*) FROM got GROUP BY n ORDER BY n")
            assert [(n, 1) for n in range(COUNT)] == once
            assert [] == box.dead_letters.list()
            assert [] == box.file.check()


def test_the_release_before_is_another_one(before: Release) -> None:
    """Its own interpreter imports its own files, and its version is lower than this one's."""
    asked = "import onceward; print(onceward.__file__)"
    told = subprocess.run(
        [before.python, "-I", "-c", asked], check=True, capture_output=True, text=True
    )

    assert before.python.parent.parent in Path(told.stdout.strip()).parents
    assert _number(before.version) < _number(version("onceward"))


def test_the_last_tag_is_taken_as_soon_as_there_is_one(before: Release) -> None:
    """Until then the tree stands in for the release before it, under a version of its own."""
    tag = previous.last_tag()

    assert before.is_stand_in == (tag is None)
    assert before.version == (previous.STAND_IN if tag is None else tag.removeprefix("v"))


def _number(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
