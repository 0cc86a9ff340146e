"""Run agents on one clock and one seed: real files and transports, no threads, backups."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from onceward.api.agent import Agent
from onceward.api.postbox import Postbox
from onceward.core.deliver.transport import Accept
from onceward.file.environment import load_settings
from onceward.message.ids import clock_ids
from onceward.message.settings import Controls
from onceward.testing.clock import ManualClock
from onceward.testing.faults import Fault, FaultyTransport
from onceward.testing.harness import STEADY
from onceward.testing.wire import SCHEME, Wire, acceptor

QUICK: Final[dict[str, Any]] = {**STEADY, "durability": "fast"}
"""Settings for quick runs that are all the same; they need not survive a power cut."""
TURN: Final = 61.0
"""Longer than any backoff and any ack deadline, so that a turn brings all that can come."""
ROUNDS: Final = 50


class World:
    """
    Agents in one folder that share a clock, a source of ids and a source of randomness.

    ``open`` starts an agent, ``run`` lets the named ones work until nothing is
    due, ``keep`` and ``restore`` make a backup and bring it back.
    """

    def __init__(self, folder: Path, *, seed: int = 0, clock: ManualClock | None = None) -> None:
        self.folder, self.clock = folder, clock or ManualClock()
        self.dice = random.Random(seed)
        self._ids = clock_ids(self.clock, random.Random(seed + 1))
        self._open: dict[Path, Postbox] = {}
        """The latest postbox of each file."""
        self._earlier: list[Postbox] = []
        self._acceptors: dict[str, Accept] = {}

    def path(self, name: str, where: str = "") -> Path:
        """Return the path of an agent's file, or of a second one in the subfolder *where*."""
        return self.folder / where / f"{name}.db"

    def open(
        self, agent: Agent | str, *, where: str = "", faults: Iterable[Fault] = (), **settings: Any
    ) -> Postbox:
        """Open an agent's file, created on first use; *faults* happen to deliveries to a url."""
        name = agent.name if isinstance(agent, Agent) else agent
        path = self.path(name, where)
        path.parent.mkdir(parents=True, exist_ok=True)
        chosen = load_settings(None, {**QUICK, **settings})
        transports = {SCHEME: FaultyTransport(Wire(self._acceptors), faults)}
        box = Postbox(
            path,
            agent=agent,
            start=False,
            testing=Controls(clock=self.clock, ids=self._ids, rng=self.dice),
            transports=transports,
            settings=chosen,
        )
        if path in self._open:
            self._earlier.append(self._open[path])
        self._open[path], self._acceptors[name] = box, acceptor(box, chosen)
        return box

    @staticmethod
    def url(name: str) -> str:
        """Return the url of an open agent without a file between, so that faults can happen."""
        return f"{SCHEME}:{name}"

    def shut(self, box: Postbox) -> Path:
        """Close an agent's file and return its path."""
        if self._open.pop(box.file.path, None) is box:
            self._acceptors.pop(box.agent, None)
        box.close()
        return box.file.path

    def run(self, *boxes: Postbox) -> None:
        """Let these agents push and handle until nothing is due any more."""
        for _ in range(ROUNDS):
            if not sum(box.run_until_idle() for box in boxes):
                return

    def turns(self, *boxes: Postbox, times: int = 1) -> None:
        """Let time pass beyond every backoff, and run, so many times."""
        for _ in range(times):
            self.clock.advance(TURN)
            self.run(*boxes)

    def rest(self) -> None:
        """Close every file: deliveries by file hold peers' files open, which blocks a swap."""
        for box in list(self._open.values()):
            self.shut(box)
        while self._earlier:
            self._earlier.pop().close()

    def keep(self, name: str, where: str = "kept") -> Path:
        """Close all agents, copy the file of one aside and return the copy; open again on use."""
        self.rest()
        copy = self.path(name, where)
        copy.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(self.path(name), copy))

    def restore(self, name: str, copy: Path) -> None:
        """Close all agents and replace the file of one by the copy, as a restore does."""
        self.rest()
        shutil.move(copy, self.path(name))

    def __enter__(self) -> Self:
        """Live for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close every file."""
        self.rest()
