"""Run the generators of ``agent.around`` around one call of a handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

from onceward.core.handle.agent import Around
from onceward.core.handle.depends import _name, _plain
from onceward.errors import InvalidArgument


def check_around(work: Around) -> None:
    """Raise InvalidArgument where *work* is no generator function."""
    if not inspect.isgeneratorfunction(_plain(work)):
        msg = (
            f"agent.around takes a generator function, not {_name(work)}: def f(ctx) with one"
            " yield where the handler is called, also for async handlers"
        )
        raise InvalidArgument(msg)


def surround(groups: Sequence[Sequence[Around]], context: Any, handle: Callable[[], Any]) -> Any:
    """Call *handle* inside the generators of all groups, the first one outermost."""
    return _within([each for group in groups for each in group], context, handle)


def _within(makers: Sequence[Around], context: Any, handle: Callable[[], Any]) -> Any:
    if not makers:
        return handle()
    steps = cast("Generator[None, Any, Any]", makers[0](context))
    try:
        next(steps)
    except StopIteration as end:  # it did not yield: the handler is not called
        return end.value
    try:
        value = _within(makers[1:], context, handle)
    except BaseException as error:
        changed = _raise_in(steps, error)
        if isinstance(error, Exception):
            return changed
        raise  # a call that ends from outside, or waits for a reply, is not made another
    changed = _end(steps, lambda: steps.send(value))
    return value if changed is None else changed


def _raise_in(steps: Generator[None, Any, Any], error: BaseException) -> Any:
    """Raise *error* at the yield; return what the generator returns if it catches it."""
    return _end(steps, lambda: steps.throw(error))


def _end(steps: Generator[None, Any, Any], go_on: Callable[[], object]) -> Any:
    try:
        go_on()
    except StopIteration as end:
        return end.value
    steps.close()
    msg = "a generator of agent.around yields once"
    raise RuntimeError(msg)
