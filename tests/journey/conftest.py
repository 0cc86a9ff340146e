"""
A small world for journeys.

It has real files, a clock that is turned by hand, a wire that fails when told, and an audit at
the end.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.leftovers import Leftovers

from onceward import Agent, Postbox
from onceward.api import features
from onceward.core.deliver.transport import Features
from onceward.core.handle.worker import Worker
from onceward.errors import PushFailed, Refused, Unreachable
from onceward.features.checks import invariants
from onceward.file.read_only import FileReader
from onceward.message.names import DIRECTORY
from onceward.message.parcel import Answer, Parcel
from onceward.ops.views.overview import stats
from onceward.testing import Controls
from onceward.transports.memory import MemoryTransport

START = 1_767_225_600_000


class Crash(BaseException):
    """The process dies at this very point: nothing of ours may catch it."""


class Clock:
    """Time stands still until a test turns it."""

    def __init__(self) -> None:
        self._at = START
        self._waited = 0.0

    def now(self) -> int:
        """Return the wall clock in milliseconds."""
        return self._at

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self._waited

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self._at += round(seconds * 1000)
        self._waited += seconds


class Wire:
    """
    Carries parcels inside the process and misbehaves by script, one word per push.

    ``ok``; ``down`` (no peer there); ``error`` (the peer fails);
    ``lost`` (arrives, the answer does not); ``refuse``; ``busy``; ``cut`` (the process dies
    before the push), ``died`` (the process dies after it).
    """

    features = Features(schemes=frozenset({"wire"}))

    def __init__(self) -> None:
        self.script: list[str] = []
        self.always = "ok"
        self.of: str | None = None
        """Sender whose pushes follow the script; None for all senders."""
        self.pushed: list[Parcel] = []
        self.on_push: Callable[[Parcel], None] = lambda _: None
        self._inner = MemoryTransport()

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Push as the script says."""
        self.pushed.append(parcel)
        self.on_push(parcel)
        word = self._word(parcel.sender)
        match word:
            case "down":
                raise Unreachable(word)
            case "error":
                raise PushFailed(word)
            case "refuse":
                raise Refused(word)
            case "busy":
                return Answer(verdict="busy")
            case "cut":
                raise Crash(word)
        answer = self._inner.deliver(url.replace("wire:", "memory:"), parcel)
        if word == "lost":
            raise Unreachable(word)
        if word == "died":
            raise Crash(word)
        return answer

    def _word(self, sender: str) -> str:
        if self.of not in {None, sender}:
            return "ok"
        return self.script.pop(0) if self.script else self.always

    def push_again(self, parcel: Parcel) -> Answer:
        """Deliver a copy that some network kept for long."""
        return self._inner.deliver(f"memory:{parcel.recipient}", parcel)

    def close(self) -> None:
        """Nothing is held."""

    @property
    def ids(self) -> list[str]:
        """The ids of all frames that were pushed, in order, repeats included."""
        return [carried.id for parcel in self.pushed for carried in parcel.frames]


STEADY = {"delivery_retry": "±0%", "handler_retry": "±0%"}
"""Retries without jitter."""


@dataclass
class World:
    """Agents in one folder on one clock."""

    home: Path
    clock: Clock
    wire: Wire
    boxes: dict[str, Postbox] = field(default_factory=dict)
    crash: type[BaseException] = Crash
    audited: bool = True
    _given: dict[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)

    def open(self, who: str | Agent, **overrides: Any) -> Postbox:
        """Open an agent's postbox without engines."""
        name = who.name if isinstance(who, Agent) else who
        self._given[name] = (who, dict(overrides))
        steady = {} if "settings" in overrides else STEADY
        named: dict[str, Any] = {**steady, "transports": {"wire": self.wire}, **overrides}
        box = Postbox(
            self.path(name),
            agent=who,
            start=False,
            testing=Controls(clock=self.clock, ids=named.pop("ids", None), rng=random.Random(7)),
            **named,
        )
        self.boxes[name] = box
        return box

    def wired(
        self, sender: str | Agent, receiver: str | Agent, **overrides: Any
    ) -> tuple[Postbox, Postbox]:
        """Open two agents that reach each other by the wire only."""
        one, other = self.open(sender, **overrides), self.open(receiver)
        one.peers.add(other.agent, f"wire:{other.agent}")
        other.peers.add(one.agent, f"wire:{one.agent}")
        return one, other

    def path(self, name: str) -> Path:
        """Return where an agent's file lies."""
        return self.home / f"{name}.db"

    def shut(self) -> None:
        """Close everything, so that no handle of this process is left on any file."""
        for box in self.boxes.values():
            box.close()
        self.boxes.clear()

    def reopen(self, *names: str) -> tuple[Postbox, ...]:
        """Close everything and open the named agents (without names: all) again as before."""
        self.shut()
        return tuple(
            self.open(self._given[name][0], **self._given[name][1])
            for name in names or tuple(self._given)
        )

    def keep_copy(self, name: str) -> None:
        """Copy a closed agent's file, as a backup does."""
        shutil.copyfile(self.path(name), self.home / f"{name}.backup")

    def restore(self, name: str) -> None:
        """Put the copy back over the closed file."""
        shutil.copyfile(self.home / f"{name}.backup", self.path(name))

    def settle(self) -> None:
        """Run the engines of all agents until no message moves."""
        while sum([box.run_until_idle() for box in self.boxes.values()]):
            pass

    @staticmethod
    def claim_many(box: Postbox, messages: int) -> None:
        """Make a box's worker claim many messages at once, as it does after quick ones."""
        for worker in (each for each in box._engines if isinstance(each, Worker)):
            worker._size = messages

    @staticmethod
    def elsewhere(work: Callable[[], object]) -> None:
        """Do something on another thread, and wait for it."""
        wrong: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again below
                wrong.append(error)

        thread = Thread(target=run)
        thread.start()
        thread.join()
        if wrong:
            raise wrong[0]

    def wait(self, seconds: float) -> None:
        """Let time pass and run the engines of all agents."""
        self.clock.forward(seconds)
        self.settle()


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep settings of the environment away from the tests."""
    for name in ("ONCEWARD_DISABLED", "ONCEWARD_HOME", "ONCEWARD_DURABILITY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest, leftovers: Leftovers) -> Iterator[World]:
    """
    Return an empty folder for agents, and audit every file in it when the test is over.

    ``left_behind`` checks the rules of every file, unless the test is marked as broken.
    """
    made = World(tmp_path, Clock(), Wire())
    yield made
    made.shut()
    if made.audited:
        broken = request.node.get_closest_marker("broken") is not None
        assert {} == audit(tmp_path, leftovers.reading, rules=broken)


@dataclass(frozen=True)
class Audited:
    """A closed file, as the rules read it."""

    agent: str
    ask: Callable[..., list[tuple[Any, ...]]]


def audit(
    home: Path, reading: Callable[[Path], AbstractContextManager[FileReader]], *, rules: bool
) -> dict[str, list[object]]:
    """Return by agent where its file breaks rules, if asked for, or has wrong numbers."""
    found: dict[str, list[object]] = {}
    for path in sorted(path for path in home.glob("*.db") if path.name != DIRECTORY):
        with reading(path) as file:
            wrong: list[object] = [*differences(file)]
            if rules:
                wrong += invariants.check(Audited(path.stem, file.rows), features.rules())
            if wrong:
                found[path.name] = wrong
    return found


def differences(file: FileReader) -> list[str]:
    """Return where ``stats`` says something else than the rows do."""
    told = stats(file)
    counted = dict(file.rows("SELECT state, count(*) FROM onceward_outbox GROUP BY state"))
    waiting = dict(file.rows("SELECT state, count(*) FROM onceward_inbox GROUP BY state"))
    real = {name: counted.get(name, 0) for name in ("sending", "sent", "failed")}
    real["pending"] = counted.get("pending", 0) + real["sending"]
    real |= {f"inbox_{name}": waiting.get(name, 0) for name in ("pending", "processing")}
    real["dead_letters"] = file.rows("SELECT count(*) FROM _onceward_dead_letters")[0][0]
    return [
        f"{name}: told {told[name]}, counted {number}"
        for name, number in real.items()
        if told[name] != number
    ]
