"""Many worlds, one after the other and side by side: what ``python -m tests.proof`` and CI run."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_stack
from types import FrameType
from typing import Final

from tests.proof.seed import SEED, TODAY, proof_seed
from tests.proof.simulation.fault_plan import Weather
from tests.proof.simulation.history import REPEATED
from tests.proof.simulation.people import HALF, SCRATCH, people
from tests.proof.simulation.restored import known_as_restored
from tests.proof.simulation.scenario import interrupt, step
from tests.proof.simulation.thinking import TABLES, Thinking
from tests.proof.simulation.world import Simulation
from tests.worker_pool import worker_pool

from onceward.message.handler_options import PLAIN_RULES, HandlerRules

STEPS: Final = 70
NAMES: Final = ("ada", "bob", "cyd")
CHUNK: Final = 20
AHEAD: Final = 8
"""Chunks that are under way at a time, for all processes together."""
UNBOUNDED: Final = 86_400.0 * 30
LIMIT: Final = 120.0
"""Seconds that one story may take: hundreds of times what it does."""
DEPTH: Final = 6
ENGINES: Final = 4
"""Bit of a seed that says whether the engines of its world work as started ones do."""


EXPECTED: Final = (
    "answer accepted",
    "answer busy",
    "answer duplicate",
    "answer fork",
    "died",
    "ended as dead letter here",
    "gap",
    "guard rang",
    "handled on arrival",
    "lease lost in commit",
    "push corrupt",
    "push delay",
    "push drop",
    "push late",
    "push lose",
    "push twice",
    "receipt duplicate",
    "receipt processed",
    "receipt rejected expired",
    "receipt rejected stale",
    "receipt stored",
    "resolved as absent",
    "resolved as there",
    "retry after unknown outcome",
    "send ended by Died",
    "send ended by OutcomeUnknown",
    "send refused by Conflict",
    "send refused by Paused",
    "send refused by OutboxLimit",
)
"""What a day's worlds must have seen, or they prove less than they say."""
OFTEN_ENOUGH: Final = 1000
"""Worlds after which everything that the weather knows must have happened at least once."""


@dataclass(frozen=True, slots=True)
class Told:
    """How one world's story went."""

    seed: int
    fingerprint: str
    wrong: tuple[str, ...]
    reached: Counter[str] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Rare:
    """
    Which of the rare branches many worlds went through.

    After enough of them each that is missing is a violation.
    """

    harness: str
    count: int
    violations: tuple[str, ...]
    seconds: float = 0.0
    """Nothing of its own: the worlds took it."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What many worlds showed; the same seed tells the same stories."""

    harness: str
    count: int
    violations: tuple[str, ...]
    seconds: float
    reached: Counter[str]
    """How often each thing worth seeing was seen, over all worlds."""

    @property
    def rare(self) -> Rare:
        """What of the expected was seen at least once."""
        return Rare(
            "rare branches",
            sum(self.reached[what] > 0 for what in EXPECTED),
            unreached(self.reached, self.count),
        )


def tell(
    seed: int,
    *,
    steps: int = STEPS,
    weather: Weather | None = None,
    aloud: bool = False,
    engines: bool | None = None,
    rules: HandlerRules = PLAIN_RULES,
    thoughtful: bool = False,
    restores: bool = False,
) -> Told:
    """
    Tell the story of one seed to its end; by default half of the seeds have *engines*.

    *rules* are the options of all handlers; *thoughtful* ones take steps. With *restores* files are
    restored often, and nothing but their own greetings tells their peers.
    """
    if restores:
        weather = (weather or Weather.of(random.Random(seed))).with_restores()
    engines = bool(seed & ENGINES) if engines is None else engines
    thinking = Thinking() if thoughtful else None
    agents = people(*NAMES[: 2 + seed % 2], rules=rules, thinking=thinking, results=1 + restores)
    tables = f"{SCRATCH};{TABLES}" if thoughtful else SCRATCH
    schema = {agent.name: tables for agent in agents}
    with (
        known_as_restored() if restores else nullcontext(),
        Simulation(
            agents,
            seed=seed,
            weather=weather,
            schema=schema,
            greeting=None if restores else {"n": 0, "do": "note"},
            engines=engines,
            restores=restores,
        ) as world,
    ):
        world.telling = print if aloud else None
        if thinking is not None:
            world.thinking, thinking.world = thinking, world
        world.run(steps, step, interrupt)
        if not world.wrong:
            world.settle()
        wrong = [
            *world.wrong,
            *(
                f"{name}: {row} is half an effect"
                for name in world.agents
                for (row,) in world.history.files[name].ask(HALF)
            ),
            *(
                f"{name}: the result {row} took effect twice"
                for name in world.agents
                for (row,) in world.history.files[name].ask(REPEATED)
            ),
        ]
        return Told(seed, world.fingerprint, tuple(wrong), world.history.reached)


def first_seed() -> int:
    """
    Return the seed of the first world.

    ONCEWARD_SEED as it is, else a million times the seed of the proof.
    """
    asked = os.environ.get(SEED, TODAY)
    return proof_seed() * 1_000_000 if asked in {"", TODAY} else int(asked)


def simulate(
    worlds: int = 2000, *, seed: int | None = None, processes: int = 0, seconds: float | None = None
) -> Campaign:
    """
    Tell *worlds* stories, from *seed* on, by *processes* side by side (0: one for each processor).

    With *seconds* no new stories are begun after so much time.
    """
    first, begun = first_seed() if seed is None else seed, time.monotonic()
    until = begun + (UNBOUNDED if seconds is None else seconds)
    chunk = CHUNK if seconds is None else 1  # a campaign by time waits for no neighbours
    chunks = (
        range(start, min(start + chunk, first + worlds))
        for start in range(first, first + worlds, chunk)
    )
    count, wrong, reached = 0, list[str](), Counter[str]()
    with worker_pool(processes or os.cpu_count() or 1) as pool:
        try:
            for told in _in_turn(pool, chunks, until):
                count += len(told)
                wrong += [f"seed {one.seed}: {line}" for one in told for line in one.wrong[:3]]
                reached += sum((one.reached for one in told), Counter[str]())
        except BrokenProcessPool:
            wrong.append(f"a world from seed {first + count} on ended its process: see stderr")
    return Campaign("simulation", count, tuple(wrong), time.monotonic() - begun, reached)


def _in_turn(
    pool: ProcessPoolExecutor, chunks: Iterable[range], until: float
) -> Iterator[list[Told]]:
    """
    Yield what became of each chunk, in their order.

    A few are under way, and none but the first is begun when the time is up.
    """
    under_way = deque[Future[list[Told]]]()
    for number, seeds in enumerate(chunks):
        if number and time.monotonic() > until:
            break
        under_way.append(pool.submit(_tell_all, seeds))
        if len(under_way) > AHEAD:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def unreached(reached: Counter[str], worlds: int) -> tuple[str, ...]:
    """Return a line for each rare thing that so many worlds should have seen, and did not."""
    return tuple(
        f"never reached: {what}"
        for what in EXPECTED
        if worlds >= OFTEN_ENOUGH and not reached[what]
    )


def _tell_all(seeds: Iterable[int]) -> list[Told]:
    return [patiently(seed) for seed in seeds]


class Hangs(BaseException):
    """A story that does not end; no engine takes it for an error of its own."""


def patiently(seed: int, *, limit: float = LIMIT) -> Told:
    """Tell one story; one that takes more than *limit* seconds is wrong and says where it was."""
    try:
        with _deadline(limit):
            return tell(seed)
    except Hangs as hangs:
        return Told(seed, "", (f"it hangs: after {limit:.0f} s it was at {hangs}",), Counter())


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """
    Raise Hangs in this thread when the time is up.

    What no signal can end ends the process, with every stack on stderr.
    """
    if not hasattr(signal, "setitimer"):  # pragma: no cover - Windows has no such clock
        yield
        return

    def ring(_: int, frame: FrameType | None) -> None:
        raise Hangs(
            " < ".join(
                f"{Path(at.filename).name}:{at.lineno} {at.name}"
                for at in reversed(extract_stack(frame)[-DEPTH:])
            )
        )

    before, (left, _) = (
        signal.signal(signal.SIGALRM, ring),
        signal.setitimer(signal.ITIMER_REAL, seconds),
    )
    faulthandler.dump_traceback_later(seconds + LIMIT, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, before)
