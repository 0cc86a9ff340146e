"""Make the gates of an agent's workers, of the kind that its handlers need."""

from __future__ import annotations

from collections.abc import Callable

from onceward.core.handle.signatures import Handlers
from onceward.core.handle.worker import pool_size
from onceward.features.handler_limits.limits import HandlerLimits, WorkerGate


def gates(
    agent: Handlers, workers: int | None, free: Callable[[], None]
) -> Callable[[], WorkerGate] | None:
    """Return the factory of an agent's gates; None if all messages are admitted."""
    one_by_one = alone(agent, workers)
    rules = [each.rules for each in agent.handlers]
    keyed = any(each.is_grouped for each in rules)
    plain = [each.concurrency is None and each.rate is None and not each.batch for each in rules]
    if not one_by_one and all(plain) and not keyed:
        return None
    limits = HandlerLimits(agent, alone=one_by_one, free=free)
    if not keyed:
        return lambda: WorkerGate(limits)
    from onceward.features.handler_limits.groups import GroupGate  # noqa: PLC0415 - rarely needed

    return lambda: GroupGate(limits)


def alone(agent: Handlers, workers: int | None) -> frozenset[str]:
    """
    Return the handlers of which one runs at a time although there are several workers.

    Those are functions without *concurrency*, if the number of workers was not set: there are
    several only because other handlers can use them.
    """
    if workers is not None or pool_size(agent, None) == 1:
        return frozenset()
    return frozenset(
        each.pattern
        for each in agent.handlers
        if not each.is_async and each.rules.concurrency is None and not each.rules.batch
    )
