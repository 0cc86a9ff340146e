"""
Kill real processes: SIGKILL and SIGSTOP at random instants, each victim restarted at once.

A role is a function of a module, ``role(folder, name)``, that works forever; it must keep its state
in files, because it will be killed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Final

from onceward.message import times
from onceward.message.clock import monotonic
from onceward.message.times import Span

Role = Callable[[Path, str], None]
PAUSE: Final = (0.02, 0.12)
"""Seconds between two kills, at least and at most."""
STOPPED_FOR: Final = (0.01, 0.25)
STOPS: Final = 0.2
"""How many of the victims are stopped for a while first."""
QUIET_FOR: Final = 60.0


@dataclass(slots=True)
class Crew:
    """Processes in their roles, and how often they were killed."""

    folder: Path
    roles: Mapping[str, Role]
    rng: random.Random
    kills: int = 0
    stops: int = 0
    alive: dict[str, BaseProcess] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a role that is not running."""
        # A server forks the children: it has imported everything and opened nothing.
        context = get_context("forkserver")
        context.set_forkserver_preload(
            ["onceward", *sorted({role.__module__ for role in self.roles.values()})]
        )
        process = context.Process(
            target=_play, args=(self.roles[name], self.folder, name), name=name, daemon=True
        )
        process.start()
        self.alive[name] = process

    def kill(self, name: str) -> None:
        """End a role by SIGKILL, after it stood still for a moment if chance wants it."""
        process = self.alive.pop(name)
        if self.rng.random() < STOPS:
            self._send(process, signal.SIGSTOP)
            self.stops += 1
            time.sleep(self.rng.uniform(*STOPPED_FOR))
            if self.rng.random() < 0.5:  # noqa: PLR2004 - one of two
                self._send(process, signal.SIGCONT)
                time.sleep(self.rng.uniform(*PAUSE))
        self._send(process, signal.SIGKILL)
        process.join()
        process.close()
        self.kills += 1

    @staticmethod
    def _send(process: BaseProcess, what: signal.Signals) -> None:
        if process.pid is not None and process.exitcode is None:
            os.kill(process.pid, what)

    def torment(self, kills: int, *, seconds: Span = 86_400.0) -> None:
        """Kill and restart a random role, *kills* times; ends early after *seconds*."""
        deadline = monotonic() + times.seconds("seconds", seconds)
        while self.kills < kills and monotonic() < deadline:
            time.sleep(self.rng.uniform(*PAUSE))
            victim = self.rng.choice(sorted(self.alive))
            self.kill(victim)
            self.start(victim)

    def fallen(self) -> list[str]:
        """Return the roles that ended by themselves; a role works forever: each is a failure."""
        return [
            f"{name} ended by itself with exit code {p.exitcode}"
            for name, p in self.alive.items()
            if p.exitcode is not None
        ]

    def retire(self, *names: str) -> None:
        """End roles permanently."""
        for name in names:
            if name in self.alive:
                self.kill(name)

    def wait_until(self, calm: Callable[[], bool], *, seconds: Span = QUIET_FOR) -> bool:
        """Return whether *calm* came true in time; no process is killed meanwhile."""
        deadline = monotonic() + times.seconds("seconds", seconds)
        while not (done := calm()) and monotonic() < deadline:
            time.sleep(0.05)
        return done


def _play(role: Role, folder: Path, name: str) -> None:
    end_with_parent()
    role(folder, name)


@contextmanager
def crew(folder: Path, roles: Mapping[str, Role], rng: random.Random) -> Iterator[Crew]:
    """Start every role, and kill them all at the end."""
    made = Crew(folder, roles, rng)
    try:
        for name in roles:
            made.start(name)
        yield made
    finally:
        made.retire(*roles)


def end_with_parent() -> None:
    """End this process, a child of multiprocessing, as soon as the process that started it ends."""
    if parent_process() is not None:
        Thread(target=_follow_parent, name="onceward-parent", daemon=True).start()


def _follow_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
