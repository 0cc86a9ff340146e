"""Whether packing and settling cost the same, however much lies in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final

from onceward.bench import fill
from onceward.bench.measure import Goal, Result
from onceward.bench.plan import Plan
from onceward.bench.sink import Sink, box_with

SMALL: Final = 10_000
LARGE: Final = 1_000_000
MANY: Final = 100_000
PER_SECOND: Final = 20_000
PARCELS: Final = 4
FRAMES: Final = 500
"""Messages of one parcel, fewer where the smallest file would run dry."""
ROUNDS: Final = 5
DEARER: Final = 1.5


def backlog(plan: Plan) -> Iterator[Result]:
    """Push a few parcels out of each file, in turns; every message may cost 1.5 times what it costs in the smallest file."""
    files = {name: _made(plan, name, fillings) for name, fillings in _shapes(plan).items()}
    rounds = min(ROUNDS, plan.rounds)
    frames = max(1, min(FRAMES, _small(plan) // ((rounds + 1) * (PARCELS + 1))))
    costs: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(rounds + 1):
        for name, path in files.items():
            costs[name].append(_cost(path, frames))
    smallest = costs[f"{_small(plan)} pending"][1:]
    for name, each in costs.items():
        dearer = median(one / other for one, other in zip(each[1:], smallest, strict=True))
        more = {"shape": name, "us_per_message": median(each[1:]), "of_smallest": dearer}
        yield Result(
            case="backlog", durability="safe", rate=1e6 / median(each[1:]), more=more, goals=(Goal("of_smallest", at_most=DEARER),)
        )


Filling = Callable[[Path], None]


def _small(plan: Plan) -> int:
    return plan.messages(SMALL, per_second=PER_SECOND)


def _shapes(plan: Plan) -> dict[str, tuple[Filling, ...]]:
    small, large, many = _small(plan), plan.messages(LARGE, per_second=2 * PER_SECOND), plan.messages(MANY, per_second=PER_SECOND)

    def ready(path: Path) -> None:
        fill.pending(path, small)

    return {
        f"{small} pending": (ready,),
        f"{large} pending, in one lane": (lambda path: fill.pending(path, large),),
        f"{large} acked before {small} pending": (lambda path: fill.acked(path, large), ready),
        f"{many} pending, each in a lane of its own": (lambda path: fill.pending(path, many, lanes=many),),
        f"{many} delayed before {small} pending": (lambda path: fill.delayed(path, many), ready),
    }


def _made(plan: Plan, name: str, fillings: tuple[Filling, ...]) -> Path:
    path = plan.room(name.replace(" ", "-").replace(",", "")) / "alice.db"
    for filling in fillings:
        filling(path)
    return path


def _cost(path: Path, frames: int) -> float:
    """Return the microseconds that one message took between the first push and the last one."""
    sink = Sink(PARCELS + 1)
    with box_with(path, sink, run=False, parcel_frames=frames) as box:
        box.pump()
    return 1e6 * (sink.came[-1] - sink.came[0]) / sum(sink.messages[:-1])
