"""Whether a message costs the same on its way out and in, however much lies in the file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event as Flag
from typing import Final

from tests.bench import fill
from tests.bench.crew import LONGEST
from tests.bench.mail import Note
from tests.bench.measure import Goal, Result
from tests.bench.plan import Plan
from tests.bench.sink import Sink, box_with

from onceward import Agent, Postbox, Tuning

SMALL: Final = 10_000
LARGE: Final = 1_000_000
MANY: Final = 100_000
PER_SECOND: Final = 20_000
PARCELS: Final = 4
FRAMES: Final = 500
"""Messages of one parcel, fewer where the smallest file would run dry."""
ROUNDS: Final = 5
DEARER: Final = 1.5

Shapes = dict[str, Callable[[Path], None]]
"""How a file is filled, by what is said of it; the first is the smallest."""


def backlog(plan: Plan) -> Iterator[Result]:
    """
    Compare files of each size in turns.

    A message may cost 1.5 times what it costs in the smallest file.
    """
    small, large = (
        plan.scaled(SMALL, per_second=PER_SECOND),
        plan.scaled(LARGE, per_second=2 * PER_SECOND),
    )
    many = plan.scaled(MANY, per_second=2 * PER_SECOND)
    rounds = min(ROUNDS, plan.rounds) + 1
    frames = max(1, min(FRAMES, small // (rounds * (PARCELS + 1))))
    handled = max(2, small // (2 * rounds))
    yield from _compared(
        plan, _outgoing(small, large, many), rounds, lambda path: _packed(path, frames)
    )
    yield from _compared(
        plan, _one_lane(small, large), rounds, lambda path: _handled(path, handled)
    )
    yield from _compared(
        plan, _own_lanes(small, many), rounds, lambda path: _handled(path, handled)
    )


def _outgoing(small: int, large: int, many: int) -> Shapes:
    def behind(path: Path, before: Callable[[Path, int], None], count: int) -> None:
        before(path, count)
        fill.pending(path, small)

    return {
        f"{small} pending": partial(fill.pending, count=small),
        f"{large} pending": partial(fill.pending, count=large),
        f"{large} acked before {small} pending": partial(behind, before=fill.acked, count=large),
        f"{many} pending in lanes of their own": partial(fill.pending, count=many, lanes=many),
        f"{many} delayed before {small} pending": partial(behind, before=fill.delayed, count=many),
    }


def _one_lane(small: int, large: int) -> Shapes:
    return {
        f"inbox: {count} in one lane": partial(fill.inbox, count=count, lanes=1)
        for count in (small, large)
    }


def _own_lanes(small: int, many: int) -> Shapes:
    return {
        f"inbox: {count} in lanes of their own": partial(fill.inbox, count=count, lanes=count)
        for count in (small, many)
    }


def _compared(
    plan: Plan, shapes: Shapes, rounds: int, cost: Callable[[Path], float]
) -> Iterator[Result]:
    files = {name: plan.room(name.replace(" ", "-").replace(":", "")) / "box.db" for name in shapes}
    for name, path in files.items():
        shapes[name](path)
    costs = [{name: cost(path) for name, path in files.items()} for _ in range(rounds)][1:]
    smallest = next(iter(shapes))
    for name in shapes:
        dearer = median(each[name] / each[smallest] for each in costs)
        typical = median(each[name] for each in costs)
        more = {"shape": name, "us_per_message": typical, "of_smallest": dearer}
        yield Result(
            case="backlog",
            durability="safe",
            rate=1e6 / typical,
            more=more,
            goals=(Goal("of_smallest", at_most=DEARER),),
        )


def _packed(path: Path, frames: int) -> float:
    """Return the microseconds per message to pack and settle it, over a few parcels."""
    sink = Sink(PARCELS + 1)
    with box_with(path, sink, start=False, tuning=Tuning(parcel_max_messages=frames)) as box:
        box.run_until_idle()
    return 1e6 * (sink.came[-1] - sink.came[0]) / sum(sink.messages[:-1])


def _handled(path: Path, count: int) -> float:
    """
    Return the microseconds per message to claim it, handle it by nothing and settle it.

    The rest stays.
    """
    came, opened, enough = list[float](), Flag(), Flag()
    agent = Agent("bob")

    @agent.on(Note)
    def note(body: Note) -> None:
        del body
        came.append(time.perf_counter())
        if len(came) >= count:
            opened.wait()
            box.stop(0.0)  # from within, where nothing waits for this handler
            enough.set()

    with Postbox(path, agent=agent) as box:
        opened.set()
        if not enough.wait(LONGEST):
            msg = f"{count} messages were not handled: see health() of {path}"
            raise TimeoutError(msg)
    return 1e6 * (came[-1] - came[0]) / (len(came) - 1)
