"""List the features of a postbox: what each adds to the way of a message, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from onceward.core.accept.accept import Storing
from onceward.core.maintenance import Upkeep

if TYPE_CHECKING:
    from onceward.api.agent import Agent
    from onceward.core.accept.accept import Inspect, ParsedFrame
    from onceward.core.handle.claim import ClaimGate
    from onceward.core.handle.invoke import Loop
    from onceward.core.handle.steps import HandlerDeps
    from onceward.core.handle.worker import CallGuard, WorkerPool
    from onceward.file.database import Database
    from onceward.file.directory import DirectoryHandle


class MakeGates(Protocol):
    """Returns, for an agent and its number of workers, a function that makes admission objects."""

    def __call__(
        self, agent: Agent, workers: int | None, free: Callable[[], None]
    ) -> Callable[[], ClaimGate] | None:
        """Return it, None if workers may claim all; *free* is called when more may be claimed."""


class Engine(Protocol):
    """Does due work, on its own threads or on the caller's."""

    def start(self) -> None:
        """Start working in the background."""

    def run_due(self) -> int:
        """Do due work on this thread; return how many messages moved."""

    def stop(self, timeout: float) -> None:
        """Start no more work; wait up to *timeout* seconds for running work."""

    def cancel(self) -> bool:
        """Cancel work that still runs after ``stop``; return whether there is such work."""

    def join(self, timeout: float) -> None:
        """Wait after ``stop`` up to *timeout* seconds for running work."""


class Switch(Protocol):
    """Enables or disables a part of a file for all processes."""

    def __call__(self, db: Database, *, on: bool) -> None:
        """Enable or disable it, if that is a change."""


@dataclass(frozen=True, slots=True)
class Late:
    """A function of a feature by name, ``folder.module.function``; imported with its first call."""

    name: str

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function."""
        return loaded(self.name)(*args, **named)


@cache
def loaded(name: str) -> Callable[..., Any]:
    """Import the module of a feature's function; return the function."""
    module, _, function = name.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(f"onceward.features.{module}"), function)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The parts of one feature, which a postbox composes."""

    name: str
    """Its folder in ``onceward.features``."""
    accepting: Callable[[DirectoryHandle, str, list[ParsedFrame]], list[ParsedFrame]] | None = None
    """Judges, for an agent of a home, the frames of a parcel before they are stored."""
    storing: Storing | None = None
    """Its work in the commit that stores the frames."""
    upkeep: Upkeep | None = None
    """Its work in each round of maintenance."""
    switches: Mapping[str, Switch] = field(default_factory=dict)
    """By setting: what applies it to the file, where the caller gave that setting."""
    gates: MakeGates | None = None
    """Makes the admission of messages to the workers of an agent."""
    guard: Callable[[Agent], CallGuard | None] | None = None
    """Makes the check in the file that decides whether a handler of an agent is called."""
    engines: Callable[[HandlerDeps, Agent, Loop], Sequence[Engine]] | None = None
    """Makes the engine that handles messages of an agent besides its workers."""
    attribute: Callable[[HandlerDeps], object] | None = None
    """Makes the attribute of a postbox that has the name of the feature."""


def _run_workers(deps: HandlerDeps, agent: Agent, loop: Loop) -> Sequence[Engine]:
    if not agent.sessions:
        return ()
    from onceward.features.runs.worker import RunWorker  # noqa: PLC0415 - rarely needed

    return [RunWorker(deps, agent.sessions, loop, beside_workers=bool(agent.handlers))]


def _batch_workers(deps: HandlerDeps, agent: Agent, loop: Loop) -> Sequence[Engine]:
    if all(each.rules.batch is None for each in agent.handlers):
        return ()
    from onceward.features.batches.worker import batch_workers  # noqa: PLC0415 - rarely needed

    return batch_workers(deps, agent, loop)


def call_guard(agent: Agent) -> CallGuard | None:
    """Return the check that drops equal bodies of an agent's handlers; None if all are called."""
    if all(each.rules.unique_for is None for each in agent.handlers):
        return None
    from onceward.features.handler_limits.unique_bodies import UniqueBodies  # noqa: PLC0415 - as above

    return UniqueBodies()


FEATURES: Final = (
    Feature(
        name="channels",
        accepting=Late("channels.closed.refuse"),
        storing=Storing(takes={"acknowledgment": Late("channels.channel_posts.acknowledged")}),
        upkeep=Upkeep(prune=Late("channels.channel_posts.prune_acknowledgments")),
    ),
    Feature(
        name="mailboxes",
        accepting=Late("mailboxes.directory.inspect"),
        storing=Storing(
            keyed=Late("mailboxes.keys.supersede"), returned=Late("mailboxes.keys.readmit")
        ),
        upkeep=Upkeep(expire=Late("mailboxes.mailboxes.expire")),
    ),
    Feature(
        name="cancellation",
        storing=Storing(canceller=Late("cancellation.arrived.Canceller")),
    ),
    Feature(name="batches", engines=_batch_workers),
    Feature(
        name="runs",
        storing=Storing(cancelling=Late("runs.runs.abort_bound")),
        upkeep=Upkeep(prune=Late("runs.runs.prune")),
        engines=_run_workers,
    ),
    Feature(
        name="handler_limits",
        upkeep=Upkeep(prune=Late("handler_limits.unique_bodies.prune")),
        gates=Late("handler_limits.limits.gates"),
        guard=call_guard,
    ),
    Feature(
        name="steps",
        storing=Storing(awaited=Late("steps.awaited.keep")),
        upkeep=Upkeep(prune=Late("steps.stored.prune")),
    ),
    Feature(name="streams", upkeep=Upkeep(prune=Late("streams.stored.prune"))),
    Feature(
        name="history",
        upkeep=Upkeep(keep=Late("history.upkeep.index")),
        switches={
            "transitions": Late("history.upkeep.switch"),
            "search": Late("history.full_text.switch"),
        },
    ),
    Feature(name="limits", attribute=Late("limits.api.Limits")),
)

make_steps: Final = Late("steps.steps.MessageSteps")
"""Makes the steps of one call of a handler."""
make_streams: Final = Late("streams.output.MessageStreams")
"""Makes the streams of output of one call of a handler."""
forget_steps: Final = Late("steps.stored.forget")
"""Deletes the steps of a message: all of them, or one and those after it."""
declare_awaited: Final = Late("steps.awaited.declare")
"""Stores which types the handlers of an agent wait for."""
STORING: Final = [each.storing for each in FEATURES if each.storing is not None]


def judging(home: DirectoryHandle, agent: str) -> Inspect:
    """Return the function that checks the frames of a parcel for each feature in turn."""
    judges = [each.accepting for each in FEATURES if each.accepting is not None]

    def judge(frames: list[ParsedFrame]) -> list[ParsedFrame]:
        for each in judges:
            frames = each(home, agent, frames)
        return frames

    return judge


def worker_pool(deps: HandlerDeps, agent: Agent, loop: Loop) -> WorkerPool | None:
    """Return the workers of an agent, with the admissions and checks of the features."""
    if not agent.handlers:
        return None
    from onceward.core.handle.worker import WorkerPool  # noqa: PLC0415 - with handlers only

    workers = deps.settings.workers
    free = partial(deps.db.notifier.notify_local, ("in",))
    gates = [each.gates(agent, workers, free) for each in FEATURES if each.gates is not None]
    guards = [each.guard(agent) for each in FEATURES if each.guard is not None]
    gate, guard = next(filter(None, gates), None), next(filter(None, guards), None)
    return WorkerPool(deps, agent, loop, gate=gate, guard=guard)


def engines(deps: HandlerDeps, agent: Agent, loop: Loop) -> list[Engine]:
    """Return the engines that handle messages of an agent besides its workers."""
    made = [each.engines(deps, agent, loop) for each in FEATURES if each.engines is not None]
    return [engine for listed in made for engine in listed]


def switches() -> Iterator[tuple[str, Switch]]:
    """Yield the settings that change a file, and the functions that apply them."""
    for each in FEATURES:
        yield from each.switches.items()


def attributes() -> Iterator[tuple[str, Callable[[HandlerDeps], object]]]:
    """Yield the attributes of a postbox that features make, each with its factory."""
    for each in FEATURES:
        if each.attribute is not None:
            yield each.name, each.attribute
