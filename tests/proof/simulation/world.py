"""A world of agents on one thread: processes, clocks, network and accidents from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

from tests.proof.simulation import disks
from tests.proof.simulation.fault_plan import Weather
from tests.proof.simulation.history import EFFECT, EFFECT_OF, EFFECTS, History
from tests.proof.simulation.mint import Mint
from tests.proof.simulation.network import Network
from tests.proof.simulation.process import SCHEME, Died, Fatal, Killed, Process
from tests.proof.simulation.thinking import Thinking

from onceward.api.agent import Agent
from onceward.errors import OncewardError
from onceward.file.backup import Takeovers, read_takeovers, stamp
from onceward.file.environment import load_settings
from onceward.message.parcel import Takeover
from onceward.message.times import Span
from onceward.testing.clock import ManualClock

T = TypeVar("T")
DEEP: Final = 2
"""How many pushes and handlers may be under way inside each other."""
ROUNDS: Final = 150
PAUSE: Final = 9.0
"""Seconds between two rounds of the end: longer than any backoff of the weather."""

MISTAKES: Final = (AttributeError, LookupError, NameError, TypeError, ValueError)
"""What no handler raises on purpose: the code of the world no longer fits the package."""

GREETING: Final = {"n": 0, "do": "note"}

_founded: dict[tuple[str, ...], bytes] = {}
"""Files that were just made, by agent, schema and neighbours: worlds are many, and begin alike."""


class Simulation:
    """
    A world that tells the same story for the same seed.

    The agents are real: their files, engines and handlers run as they do in
    production, statement by statement, but on one thread, with the time and the
    network of this world. ``step`` lets a process act, often with an
    accident; ``settle`` ends all accidents and runs until idle; ``wrong``
    says what should not have been possible.

    At the end every agent sends *greeting* to every other, if there is one: a file
    that was rolled back is noticed at the next contact, not before.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        *,
        seed: int,
        schema: Mapping[str, str] | None = None,
        weather: Weather | None = None,
        greeting: object = None,
        engines: bool = False,
        restores: bool = False,
    ) -> None:
        self.restores = restores
        """Whether a file that was restored must greet its peers itself."""
        self.engines = engines
        """Whether engines work as started ones do: parcels, answers and claims share commits."""
        self.dead_owners: set[str] = set()
        """Owners of leases whose processes have died."""
        self.seed, self.rng = seed, random.Random(seed)
        self.luck = random.Random(seed ^ 0x5EED)
        self.weather, self._greeting = weather or Weather.of(self.rng), greeting
        self.agents = {agent.name: agent for agent in agents}
        self.clocks = {name: ManualClock() for name in self.agents}
        self._folder = TemporaryDirectory(prefix="onceward-sim-", dir=disks.folder())
        self.paths = {name: Path(self._folder.name) / f"{name}.db" for name in self.agents}
        self.history = History(self.paths)
        self.history.remembers = self.weather.remembers
        self.network = Network(self)
        self.mint = Mint(self.rng, self.clocks, self.history.minted)
        self.processes: dict[str, list[Process]] = {name: [] for name in self.agents}
        self.clones: list[Process] = []
        """Processes on other files of an agent, which act as that agent: copies, and old ones."""
        self._stack: list[Process] = []
        self.backups: dict[str, tuple[Path, int]] = {}
        """The last backup of a file, and the place in the story that it holds."""
        self._trace = blake2b(digest_size=16)
        self._places = count(1)
        self._settings = load_settings(None, self.weather.settings, env={})
        for name in self.agents:
            self._found(name, (schema or {}).get(name, ""))
            for _ in range(self.weather.processes):
                self.begin(name)

    # -- people -------------------------------------------------------------------------------

    @property
    def wrong(self) -> list[str]:
        """Contradictions found so far."""
        return self.history.wrong

    def _found(self, name: str, schema: str) -> None:
        """Make the file of an agent, in fair weather; a copy where one like it was made before."""
        kind = (name, schema, *self.agents)
        if kind in _founded:
            self.paths[name].write_bytes(_founded[kind])
            return
        process = self._process(name, self.paths[name], random.Random(0))
        process.start(self.network.port(process), self._witnessed)
        with process.box.begin() as tx:
            for statement in (EFFECTS, *filter(str.strip, schema.split(";"))):
                tx.execute(statement)
        for other in self.agents:
            if other != name:
                process.box.peers.add(other, f"{SCHEME}:{other}")
        process.close()
        _founded[kind] = self.paths[name].read_bytes()
        Path(f"{self.paths[name]}-run").unlink(missing_ok=True)  # as where a copy is used

    def _process(self, name: str, path: Path, rng: random.Random) -> Process:
        return Process(
            self.agents[name],
            path,
            clock=self.clocks[name],
            rng=rng,
            ids=self.mint.source(name),
            settings=self._settings,
        )

    def begin(self, name: str, *, at: Path | None = None) -> Process | None:
        """Start a process of an agent; None if it died over it."""
        process = self._process(name, at or self.paths[name], random.Random(self.rng.random()))
        if at is None:
            self.processes[name].append(process)
        else:
            self.clones.append(process)
        try:
            self.enter(process, lambda: self._start(process))
        except Died:
            return None
        except OncewardError as error:
            self.note("cannot begin", name, type(error).__name__)
            self._gone(process)
            return None
        return process

    def _start(self, process: Process) -> None:
        process.start(self.network.port(process), self._witnessed)
        if self.engines:
            others = [
                each
                for alive in (*self.processes.values(), self.clones)
                for each in alive
                if each is not process and each.path == process.path
            ]
            process.start_engines(is_dead=self.dead_owners.__contains__, alone=not others)

    @property
    def busy(self) -> Sequence[Process]:
        """Agents with a call under way."""
        return self._stack

    def awake(self, name: str) -> Process | None:
        """Return a process of an agent that is alive and not in the middle of something."""
        free = [process for process in self.processes[name] if process not in self._stack]
        return self.rng.choice(free) if free else None

    def enter(self, process: Process, work: Callable[[], T]) -> T:
        """Let a process do something; raises Died if it was killed meanwhile."""
        self._stack.append(process)
        try:
            return work()
        except Killed as killed:
            if killed.process is not process:
                raise
            self.note("died", process.agent, process.points)
            self._gone(process)
            raise Died(process.agent) from None
        finally:
            self._stack.pop()
            self.history.reached["lease lost in commit"] += process.outrun
            process.outrun = 0
            if not process.over:
                process.kill_in(None)
                process.fail_commit("")

    def _gone(self, process: Process) -> None:
        self.dead_owners |= process.owners
        process.bury()
        self.history.reached["died"] += 1
        for alive in (*self.processes.values(), self.clones):
            if process in alive:
                alive.remove(process)

    def _witnessed(self, process: Process, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a handler with the counted effect and the acts of others meanwhile."""

        def run(body: Any, context: Any) -> Any:
            died = self.history.deaths[context.message.id]
            self.meanwhile()
            process.beat()
            try:
                answer = call(body, context)
            except Fatal:
                self._die_of(process, context, died)
            except MISTAKES as error:
                if not isinstance(error, OncewardError):
                    self.history.wrong.append(f"{process.agent}: its handler is broken: {error!r}")
                raise
            done = (context.message.id, context.message.sender, body.get("result"))
            context.tx.execute(EFFECT_OF, done)
            self.note("handled", process.agent, context.message.id, context.message.attempt)
            self.meanwhile()
            return answer

        return run

    def _die_of(self, process: Process, context: Any, died: int) -> NoReturn:
        """Kill the process of a handler whose message does that, after its effect."""
        message = context.message
        if process not in self.clones:
            self.history.deadly(process.agent, message.id, message.attempt, died)
        context.tx.execute(EFFECT, (message.id, message.sender))
        process.die()
        raise AssertionError(process.agent)

    # -- time ---------------------------------------------------------------------------------

    def pass_time(self, seconds: Span) -> None:
        """Advance the clocks of all agents."""
        for clock in self.clocks.values():
            clock.advance(seconds)

    def meanwhile(self) -> None:
        """Let others act, or time pass, while a call is under way."""
        if len(self._stack) <= DEEP and self.rng.random() < self.weather.meanwhile:
            for _ in range(self.rng.randint(1, 3)):
                self._meanwhile(self)

    thinking: Thinking | None = None
    """What handlers that take steps do; without it there are none."""
    _meanwhile: Callable[[Simulation], None] = staticmethod(lambda _: None)

    def run(
        self,
        steps: int,
        step: Callable[[Simulation], None],
        meanwhile: Callable[[Simulation], None] | None = None,
    ) -> None:
        """Tell *steps* steps and judge touched files after each; *meanwhile* is a nested step."""
        self._meanwhile = meanwhile or step
        for _ in range(steps):
            step(self)
            self.look()
            if self.history.wrong:
                return

    def look(self) -> None:
        """Judge all files as they stand."""
        for name in self.agents:
            self.history.look(name)

    # -- accidents ----------------------------------------------------------------------------

    def reached(self, name: str) -> Process | None:
        """Return a process that takes a parcel for an agent: at times one of a machine given up."""
        old = [each for each in self.clones if each.agent == name and each not in self._stack]
        if self.weather.blows and self.restores and old and self.luck.randrange(2):
            return self.luck.choice(old)
        return self.awake(name)

    def kill(self, process: Process) -> None:
        """Kill a process between two steps."""
        self.note("killed", process.agent)
        self._gone(process)

    def copy(self, name: str, to: Path) -> int:
        """Back a file up as SQLite does; return the place in the story that it holds."""
        disks.copy(self.paths[name], to)
        return self.place()

    def restore(self, name: str, backup: Path, place: int) -> bool:
        """End an agent's processes and restore its backup; return whether that was possible."""
        if any(process.agent == name for process in self._stack):
            return False
        for process in list(self.processes[name]):
            self.kill(process)
        self.history.rolled_back(
            name,
            place,
            remembers=self.weather.remembers and (self.restores or self._greeting is not None),
        )
        before = read_takeovers(self.paths[name])
        disks.replace(self.paths[name], backup)
        stamp(self.paths[name], kept(read_takeovers(backup), before))
        self.note("restored", name, place)
        return True

    def take_over(self, name: str, backup: Path, place: int) -> None:
        """Go on with an agent's backup elsewhere; its processes go on, too, with the old file."""
        self.history.rolled_back(name, place, remembers=self.weather.remembers)
        self.clones += self.processes[name]
        self.processes[name] = []
        self.paths[name] = self.paths[name].with_name(f"{name}-{place}-{self.place()}.db")
        self.history.files[name].path = self.paths[name]
        disks.replace(self.paths[name], backup)
        stamp(self.paths[name], taken_over(read_takeovers(backup), at=self.place()))
        self.note("taken over", name, place)

    def place(self) -> int:
        """Return the next place in the story."""
        return next(self._places)

    # -- the end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """End all accidents and run until nothing waits; what still waits is wrong."""
        self.weather = Weather(processes=self.weather.processes, settings=self.weather.settings)
        self.network.cut.clear()
        given_up, self.clones = (self.clones, []) if self.restores else ([], self.clones)
        while self.clones:
            self.kill(self.clones[-1])
        self._round()
        for name in self.agents if self._greeting is not None else ():
            self._greet(name)
        waits: list[str] = []
        for _ in range(ROUNDS):
            self._round()
            waits = self.history.open_ends()
            if self.history.wrong or not waits:
                break
            self.pass_time(PAUSE)
        for process in given_up:
            self._try_again(process)
        if not self.history.wrong:
            self.history.wrong += [f"it never ends: {row}" for row in waits]
            self.history.judge()
            if self.thinking is not None:
                self.thinking.judge()

    def _try_again(self, process: Process) -> None:
        """Let a machine that was given up send to another one: it must be stopped by that."""
        self.clones.append(process)
        other = next(each for each in self.agents if each != process.agent)
        with suppress(OncewardError, Died):  # a full outbox
            late = f"late-{self.place()}"
            self.enter(process, lambda: process.box.send(other, GREETING, message_id=late))
        for _ in range(ROUNDS):
            if process.over or process.box.file.health().paused:
                return
            with suppress(OncewardError, Died):
                self.enter(process, process.work_off)
            self.pass_time(PAUSE)
        self.history.wrong.append(f"{process.agent}: the file that was given up goes on")

    def _greet(self, name: str) -> None:
        """Send from one agent to all others: a rolled-back file is noticed at the next contact."""
        for other in self.agents:
            process = self.awake(name)
            if other != name and process is not None:
                with suppress(OncewardError, Died):
                    self.enter(
                        process,
                        lambda process=process, other=other: process.box.send(  # type: ignore[misc]
                            other, self._greeting
                        ),
                    )

    def _round(self) -> None:
        for name, alive in self.processes.items():
            if not alive:
                self.begin(name)
        self.network.arrive_late()
        for process in [process for alive in self.processes.values() for process in alive]:
            with suppress(OncewardError, Died):
                self.enter(process, process.work_off)
        self.look()

    # -- the story ----------------------------------------------------------------------------

    def note(self, *facts: object) -> None:
        """Add a fact to the story."""
        self._trace.update(repr(facts).encode())
        if self.telling is not None:
            self.telling(" ".join(map(str, facts)))

    telling: Callable[[str], None] | None = None
    """The listener of the story while it is told."""

    @property
    def fingerprint(self) -> str:
        """The story so far, as a digest: the same for the same seed."""
        return self._trace.hexdigest()

    def close(self) -> None:
        """End all processes and delete all files; safe to call twice."""
        self.mint.close()
        for process in [
            process for alive in (*self.processes.values(), self.clones) for process in alive
        ]:
            process.bury()
        self.processes, self.clones = {name: [] for name in self.agents}, []
        for file in self.history.files.values():
            file.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        """Use the world for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def kept(backup: Takeovers, old: Takeovers) -> Takeovers:
    """Return the takeovers of a restored file, as the command ``restore`` keeps them."""
    own, ended = (max(filter(None, pair), default=None) for pair in zip(backup, old, strict=True))
    return Takeovers(own, ended)


def taken_over(backup: Takeovers, *, at: int) -> Takeovers:
    """Return the takeover after that of the backup; the new machine knows no other one."""
    number = 0 if backup.own is None else Takeover.parse(backup.own).number
    return Takeovers(Takeover(number + 1, at, "machine").text)
