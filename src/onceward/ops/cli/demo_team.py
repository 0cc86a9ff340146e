"""Run the demo's processes: start, kill and restart them, and compare their files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final

from onceward.errors import OncewardError
from onceward.message.clock import Millis, SystemClock, monotonic
from onceward.ops.cli.example_folder import example_folder
from onceward.ops.cli.exit_codes import DONE

SCRIPTS: Final = example_folder("review_team")
COORDINATOR: Final = "coordinator"
WORKERS: Final = ("worker-1", "worker-2", "worker-3")
GAVE_UP: Final = 75
"""Exit code of a coordinator that had to finish without all answers."""
START_WITHIN: Final = 60.0
STOP_WITHIN: Final = 5.0
CRASHES: Final = 3
"""How often a process may exit by itself before the demo fails."""
TICK: Final = 0.02
KILLING: Final = (0.05, 0.95)
"""The part of the time in which processes are killed."""

Watch = Callable[[float, str], None]
"""Takes the elapsed seconds and a progress text."""


def plan(seconds: float, kills: int, seed: int) -> list[tuple[float, str]]:
    """Return kills in order, as (seconds, process); the same seed gives the same plan."""
    dice = random.Random(seed)  # noqa: S311 - victims, not secrets
    return sorted(
        (seconds * dice.uniform(*KILLING), dice.choice((COORDINATOR, *WORKERS)))
        for _ in range(kills)
    )


@dataclass
class Member:
    """One agent's process, with its command and its log."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[str] | None = None
    crashes: int = 0

    def start(self, hear: Callable[[str], None]) -> None:
        """Start the process in its own session, safe from Ctrl-C; it ends with its stdin."""
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own scripts
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        Thread(target=_listen, args=(self.process.stdout, hear), daemon=True).start()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.dismiss()

    def dismiss(self) -> None:
        """Close its standard input, the signal to finish."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs or before its start."""
        return None if self.process is None else self.process.poll()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.code is None


def _listen(said: IO[str], hear: Callable[[str], None]) -> None:
    with said:
        for line in said:
            hear(line)


@dataclass
class Team:
    """The processes of one run, the coordinator's counts, and the kills."""

    home: Path
    code: list[Path]
    members: dict[str, Member] = field(default_factory=dict)
    killed: list[tuple[str, Millis]] = field(default_factory=list)
    tasks: int = 0
    results: int = 0

    def __post_init__(self) -> None:
        """Define the processes; nothing is started."""
        for name in WORKERS:
            self._enlist(name, "worker.py", name)
        code = ["--code", *map(str, self.code)] if self.code else []
        self._enlist(COORDINATOR, "coordinator.py", *WORKERS, *code)

    def _enlist(self, name: str, script: str, *words: str) -> None:
        command = [sys.executable, "-B", str(SCRIPTS / script), str(self.home), *words]
        self.members[name] = Member(name, command, self.home / f"{name}.log")

    def perform(self, seconds: float, victims: list[tuple[float, str]], watch: Watch) -> None:
        """Run the processes, kill them by the plan, and finish; at the end no process is left."""
        try:
            self._start()
            begun = monotonic()
            while (passed := monotonic() - begun) < seconds or victims:
                while victims and victims[0][0] <= passed:
                    self._kill(victims.pop(0)[1])
                self._look_after(self.members.values())
                self._tell(watch, passed)
            self._finish(lambda: self._tell(watch, seconds))
        finally:
            self._stop()

    def _start(self) -> None:
        """Start the workers, then the coordinator; return after its first answer."""
        for name in WORKERS:
            self.members[name].start(self._hear)
        self._await(lambda: all((self.home / f"{name}.db").exists() for name in WORKERS))
        self.members[COORDINATOR].start(self._hear)
        self._await(lambda: self.results > 0)

    def _await(self, wanted: Callable[[], bool]) -> None:
        deadline = monotonic() + START_WITHIN
        while not wanted():
            self._look_after(self.members.values())
            if monotonic() > deadline:
                late = f"the processes gave no answer within {START_WITHIN:.0f} s"
                raise OncewardError(f"{late}: see the logs in {self.home}")
            time.sleep(TICK)

    def _hear(self, line: str) -> None:
        words = line.split()
        if len(words) == 2 and all(word.isdigit() for word in words):  # noqa: PLR2004 - "tasks results"; a kill may cut it
            self.tasks, self.results = map(int, words)

    def _tell(self, watch: Watch, passed: float) -> None:
        watch(passed, f"{self.tasks} tasks, {self.results} results, {len(self.killed)} kills")
        time.sleep(TICK)

    def _kill(self, name: str) -> None:
        self.killed.append((name, SystemClock().now()))
        self.members[name].kill()
        self.members[name].start(self._hear)

    def _look_after(self, members: Iterable[Member]) -> None:
        """Restart processes that exited by themselves; raise OncewardError after repeated exits."""
        for member in members:
            if member.code is None:
                continue
            member.crashes += 1
            if member.crashes > CRASHES:
                times = f"{member.name} ended {member.crashes} times by itself"
                raise OncewardError(f"{times} (exit code {member.code}): see {member.log}")
            member.start(self._hear)

    def _finish(self, tell: Callable[[], None]) -> None:
        """Wait until the coordinator has its answers, or gives up."""
        coordinator = self.members[COORDINATOR]
        coordinator.dismiss()
        while coordinator.code not in {DONE, GAVE_UP}:
            if coordinator.code is not None:
                self._look_after([coordinator])
                coordinator.dismiss()
            self._look_after(self.members[name] for name in WORKERS)
            tell()

    def _stop(self) -> None:
        """End the coordinator, then the workers, gracefully first; store the kills."""
        try:
            for names in ([COORDINATOR], WORKERS):
                self._wait([self.members[name] for name in names])
        finally:
            for member in self.members.values():
                member.kill()
            (self.home / "kills.json").write_text(json.dumps(self.killed), encoding="utf-8")

    def _wait(self, members: list[Member]) -> None:
        for member in members:
            member.dismiss()
        deadline = monotonic() + STOP_WITHIN
        while monotonic() < deadline and any(member.alive for member in members):
            time.sleep(TICK)

    def prove(self) -> dict[str, Any]:
        """Compare the files in a fresh process, and return its report."""
        command = [sys.executable, "-B", str(SCRIPTS / "proof.py"), str(self.home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError as error:
            msg = f"the files in {self.home} could not be compared: {done.stderr.strip()[-2000:]}"
            raise OncewardError(msg) from error
        return found
