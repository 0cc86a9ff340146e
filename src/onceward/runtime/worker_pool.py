"""Hold the workers of a postbox: one at first, more while handlers keep messages waiting."""

from __future__ import annotations

from functools import partial
from threading import Lock

from onceward.runtime.agent import Agent
from onceward.runtime.deps import RuntimeDeps
from onceward.runtime.handler_limits import handler_limits, pool_size
from onceward.runtime.invoke import Loop
from onceward.runtime.worker import Worker


class WorkerPool:
    """
    The workers of one agent, which share the limits of its handlers.

    The setting ``workers`` starts that many. Without it there is one, and further ones are
    started when they are needed, up to what the handlers can use.
    """

    def __init__(self, deps: RuntimeDeps, agent: Agent, loop: Loop) -> None:
        said = deps.settings.workers
        free = partial(deps.db.notifier.notify_local, ("in",))
        limits = handler_limits(agent, said, free)
        self._spare = 0 if said is not None else pool_size(agent, None) - 1
        self._make = partial(Worker, deps, agent, loop, limits=limits)
        if self._spare:
            self._make = partial(self._make, grow=self.grow)
        self._lock = Lock()
        self.workers: list[Worker] = [self._make() for _ in range(said or 1)]
        """The workers that there are; further ones are added at the end."""

    def grow(self) -> bool:
        """Start a further worker where there may be one; return whether there may be another."""
        with self._lock:
            if self._spare > 0:
                self._spare -= 1
                worker = self._make()
                self.workers.append(worker)
                worker.start()
            return self._spare > 0

    def end(self) -> None:
        """Start no further worker."""
        with self._lock:
            self._spare = 0
