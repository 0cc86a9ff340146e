"""Make the gates of an agent's workers, of the kind that its handlers need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onceward.core.handle.signatures import Handler, Handlers
from onceward.core.handle.worker import Gates, pool_size
from onceward.features.handler_limits.limits import HandlerLimits, WorkerGate


def gates(agent: Handlers, workers: int | None, free: Callable[[bool], object]) -> Gates:
    """Return what makes an agent's gates; they are needed if a handler has a limit."""
    one_by_one = partial(alone, workers=workers)
    rules = [each.rules for each in agent.handlers]
    keyed = any(each.is_grouped for each in rules)
    plain = [each.concurrency is None and each.rate is None and not each.batch for each in rules]
    limits = HandlerLimits(agent, alone=one_by_one, free=free)
    always = keyed or not all(plain) or bool(one_by_one(agent.handlers))
    if not keyed:
        return Gates(partial(WorkerGate, limits), always)
    from onceward.features.handler_limits.group_keys import GroupKeys  # noqa: PLC0415 - rarely needed
    from onceward.features.handler_limits.groups import GroupGate  # noqa: PLC0415 - as above

    return Gates(partial(GroupGate, limits, GroupKeys()), always)


def alone(handlers: Sequence[Handler], workers: int | None) -> frozenset[str]:
    """
    Return the handlers of which one runs at a time although there are several workers.

    Those are functions without *concurrency*, if the number of workers was not set: there are
    several only because other handlers can use them.
    """
    if workers is not None or pool_size(handlers, None) == 1:
        return frozenset()
    return frozenset(
        each.pattern
        for each in handlers
        if not each.is_async and each.rules.concurrency is None and not each.rules.batch
    )
