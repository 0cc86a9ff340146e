"""List the features of a postbox, in a fixed order, and compose what they give."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Engine, Feature, FileRule, LeaseTable, PositionTable
from onceward.core.deliver.dispatcher import DueWork

if TYPE_CHECKING:
    from onceward.core.accept.policy import Inspect, ParsedFrame
    from onceward.core.contract import Opening
    from onceward.core.handle.call import HandlerDeps
    from onceward.core.handle.invoke import Loop
    from onceward.core.handle.signatures import Handlers
    from onceward.core.handle.worker import CallGuard, WorkerPool
    from onceward.file.directory import DirectoryHandle
    from onceward.file.notify import Notifier

FOLDER: Final = "onceward.features"
NAMES: Final = (
    "channels",
    "mailboxes",
    "cancellation",
    "requests",
    "groups",
    "pools",
    "batches",
    "runs",
    "handler_limits",
    "steps",
    "streams",
    "schedules",
    "polling",
    "history",
    "checks",
    "limits",
    "large_bodies",
)
"""Folders of the features, in their order."""


def _feature(name: str) -> Feature:
    found: Feature = import_module(f"{FOLDER}.{name}").FEATURE
    return found


FEATURES: Final = tuple(map(_feature, NAMES))
ARRIVES: Final = [each.arrives for each in FEATURES if each.arrives is not None]
UPKEEP: Final = [each.upkeep for each in FEATURES if each.upkeep is not None]
CALLS: Final = [each.calls for each in FEATURES if each.calls is not None]
CLAIMS: Final = [each.claims for each in FEATURES if each.claims is not None]
CALL_PARTS: Final = {name: make for each in CALLS for name, make in each.parts.items()}
"""By name: makes a part of a call of a handler."""


def judging(home: DirectoryHandle, agent: str) -> Inspect:
    """Return the function that checks the frames of a parcel for each feature in turn."""
    judges = [each.judge for each in ARRIVES if each.judge is not None]

    def judge(frames: list[ParsedFrame]) -> list[ParsedFrame]:
        for each in judges:
            frames = each(home, agent, frames)
        return frames

    return judge


def call_guard(agent: Handlers) -> CallGuard | None:
    """Return the check in the file that decides whether a handler of an agent is called."""
    guards = (each.guard(agent) for each in CALLS if each.guard is not None)
    return next(filter(None, guards), None)


def _tell_workers(notifier: Notifier, here: bool) -> None:  # noqa: FBT001 - of a callback
    """Tell the workers that more may be claimed: *here*, those of this process, too."""
    tell = notifier.notify if here else notifier.notify_others
    tell("in")


def worker_pool(deps: HandlerDeps, agent: Handlers, loop: Loop) -> WorkerPool | None:
    """Return the workers of an agent, with the admissions and checks of the features."""
    if not agent.handlers:
        return None
    from onceward.core.handle.worker import WorkerPool  # noqa: PLC0415 - with handlers only

    workers, free = deps.settings.workers, partial(_tell_workers, deps.db.notifier)
    gates = (each.gates(agent, workers, free) for each in CLAIMS if each.gates is not None)
    return WorkerPool(deps, agent, loop, gates=next(gates, None), guard=call_guard(agent))


def engines(deps: HandlerDeps, agent: Handlers, loop: Loop) -> list[Engine]:
    """Return the engines that handle messages of an agent besides its workers."""
    made = [each.engines(deps, agent, loop) for each in CLAIMS if each.engines is not None]
    return [engine for listed in made for engine in listed]


def due(opening: Opening) -> list[DueWork]:
    """Return the work of features at moments that they store, for an opening."""
    return [
        each.due._replace(run=partial(each.due.run, opening))
        for each in FEATURES
        if each.due is not None
    ]


def work_on_home(opening: Opening) -> list[Callable[[int], int]]:
    """Return the work of features on the home of an opening, for each round of maintenance."""
    works = [each.upkeep.home for each in FEATURES if each.upkeep and each.upkeep.home]
    return [partial(_at_home, opening, work) for work in works]


def _at_home(opening: Opening, work: Callable[[Opening, int], int], limit: int) -> int:
    return work(opening, limit) if opening.home.known else 0


def open_all(opening: Opening) -> None:
    """Let each feature prepare a file that is opened."""
    for each in FEATURES:
        if each.opens is not None:
            each.opens(opening)


def rules() -> dict[str, FileRule]:
    """Return what must hold in a file, by the name of each rule."""
    made = [each.rules() for each in FEATURES if each.rules is not None]
    return {name: rule for each in made for name, rule in each.items()}


def repairs() -> list[LeaseTable | PositionTable]:
    """Return the leases and positions of a file that no process repairs automatically."""
    return [table for each in FEATURES if each.repairs is not None for table in each.repairs()]
