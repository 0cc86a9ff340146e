"""Hold the workers of a postbox: one at first, more while handlers keep messages waiting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

from onceward.core.engine.deps import RuntimeDeps
from onceward.core.handle.agent import Agent
from onceward.core.handle.invoke import Loop
from onceward.core.handle.worker import Worker
from onceward.errors import OncewardError
from onceward.message.log import log

if TYPE_CHECKING:
    from onceward.core.handle.handler_limits import HandlerLimits, WorkerGate

ASYNC_WORKERS: Final = 8
"""Most coroutines of an agent that run at once where no number was said."""


class WorkerPool:
    """
    The workers of one agent, which share the limits of its handlers.

    The setting ``workers`` starts that many. Without it there is one, and further ones are
    started when they are needed, up to what the handlers can use.
    """

    def __init__(self, deps: RuntimeDeps, agent: Agent, loop: Loop) -> None:
        said = deps.settings.workers
        self._gate = gates(agent, said, partial(deps.db.notifier.notify_local, ("in",)))
        self._spare = 0 if said is not None else pool_size(agent, None) - 1
        self._new = partial(Worker, deps, agent, loop)
        if self._spare:
            self._new = partial(self._new, grow=self.grow)
        self._lock, self._name = Lock(), agent.name
        self.workers: list[Worker] = [self._new(gate=self._gate()) for _ in range(said or 1)]
        """The workers that there are; further ones are added at the end."""
        self.workers += batch_workers(deps, agent, loop)

    def grow(self) -> bool:
        """Start a further worker where there may be one; return whether there may be another."""
        with self._lock:
            if self._spare > 0:
                self._spare -= 1
                try:
                    worker = self._new(gate=self._gate())
                    worker.start()
                    self.workers.append(worker)
                except (OncewardError, OSError, RuntimeError) as error:  # no thread, no file left
                    log.failure("warning", "no further worker", error, agent=self._name)
                    self._spare = 0
            return self._spare > 0

    def end(self) -> None:
        """Start no further worker."""
        with self._lock:
            self._spare = 0


def batch_workers(deps: RuntimeDeps, agent: Agent, loop: Loop) -> list[Worker]:
    """Return a worker for each batch handler of an agent."""
    batched = [each for each in agent.handlers if each.rules.batch is not None]
    if not batched:
        return []
    from onceward.core.handle.batch_worker import BatchWorker  # noqa: PLC0415 - rarely needed

    return [BatchWorker(deps, agent, loop, handler=each) for each in batched]


def alone(agent: Agent, workers: int | None) -> frozenset[str]:
    """
    Return the handlers of which one runs at a time although there are several workers.

    Those are the functions that say no *concurrency*, where the number of workers was not
    said: there are several only because other handlers can use them.
    """
    if workers is not None or pool_size(agent, None) == 1:
        return frozenset()
    return frozenset(
        each.pattern
        for each in agent.handlers
        if not each.is_async and each.rules.concurrency is None and not each.rules.batch
    )


def pool_size(agent: Agent, workers: int | None) -> int:
    """Return how many workers an agent has: as said, or as many as its handlers can use."""
    if workers is not None:
        return workers
    single = [each for each in agent.handlers if not each.rules.batch]
    coroutines = ASYNC_WORKERS if any(each.is_async for each in single) else 1
    return max(coroutines, *(each.rules.concurrency or 1 for each in agent.handlers))


def handler_limits(
    agent: Agent, workers: int | None, free: Callable[[], None]
) -> HandlerLimits | None:
    """Return what the workers of an agent share, None where its handlers have no limits."""
    one_by_one = alone(agent, workers)
    rules = [each.rules for each in agent.handlers]
    plain = [each.concurrency is None and each.rate is None and not each.batch for each in rules]
    if not one_by_one and all(plain):
        return None
    from onceward.core.handle.handler_limits import HandlerLimits  # noqa: PLC0415 - rarely needed

    return HandlerLimits(agent, alone=one_by_one, free=free)


def gates(
    agent: Agent, workers: int | None, free: Callable[[], None]
) -> Callable[[], WorkerGate | None]:
    """Return what makes the gate of one worker of an agent, None where all is admitted."""
    limits = handler_limits(agent, workers, free)
    if limits is None:
        return lambda: None
    from onceward.core.handle.handler_limits import WorkerGate  # noqa: PLC0415 - rarely needed

    return partial(WorkerGate, limits)
