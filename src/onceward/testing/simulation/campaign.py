"""Many worlds, one after the other and side by side: what ``onceward prove`` and CI run."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final

from onceward.testing.daily import SEED, seed_of_the_day
from onceward.testing.simulation.post import HALF, SCRATCH, people
from onceward.testing.simulation.story import interrupt, step
from onceward.testing.simulation.weather import Weather
from onceward.testing.simulation.world import Simulation

STEPS: Final = 70
NAMES: Final = ("ada", "bob", "cyd")
CHUNK: Final = 20


@dataclass(frozen=True, slots=True)
class Told:
    """How one world's story went."""

    seed: int
    fingerprint: str
    wrong: tuple[str, ...]
    reached: Counter[str] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Campaign:
    """What many worlds showed; the same seed tells the same stories."""

    harness: str
    count: int
    violations: tuple[str, ...]
    seconds: float
    reached: Counter[str]
    """How often each thing worth seeing was seen, over all worlds."""


def tell(seed: int, *, steps: int = STEPS, weather: Weather | None = None, aloud: bool = False) -> Told:
    """Tell the story of one seed to its end."""
    agents = people(*NAMES[: 2 + seed % 2])
    schema = {agent.name: SCRATCH for agent in agents}
    with Simulation(agents, seed=seed, weather=weather, schema=schema, greeting={"n": 0, "do": "note"}) as world:
        world.telling = print if aloud else None
        world.run(steps, step, interrupt)
        if not world.wrong:
            world.settle()
        wrong = [
            *world.wrong,
            *(f"{name}: {row} is half an effect" for name in world.agents for (row,) in world.history.files[name].ask(HALF)),
        ]
        return Told(seed, world.fingerprint, tuple(wrong), world.history.reached)


def todays_seed() -> int:
    """Return the first seed of the day, or what ``ONCEWARD_SEED`` says: print it, and any run can be repeated."""
    return int(os.environ[SEED]) if os.environ.get(SEED) else seed_of_the_day() * 1_000_000


def simulate(worlds: int = 2000, *, seed: int | None = None, processes: int = 0, seconds: float | None = None) -> Campaign:
    """
    Tell *worlds* stories, from *seed* on, by *processes* side by side (0: one for each processor).

    With *seconds* no new stories are begun after so much time.
    """
    first, begun = todays_seed() if seed is None else seed, time.monotonic()
    chunks = [range(start, min(start + CHUNK, first + worlds)) for start in range(first, first + worlds, CHUNK)]
    told: list[Told] = []
    with ProcessPoolExecutor(processes or os.cpu_count() or 1, mp_context=get_context("spawn")) as pool:
        for some in pool.map(_tell_all, chunks):
            told += some
            if seconds is not None and time.monotonic() - begun > seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    reached = sum((one.reached for one in told), Counter[str]())
    wrong = tuple(f"seed {one.seed}: {line}" for one in told for line in one.wrong[:3])
    return Campaign("simulation", len(told), wrong, time.monotonic() - begun, reached)


def _tell_all(seeds: Iterable[int]) -> list[Told]:
    return [tell(seed) for seed in seeds]
