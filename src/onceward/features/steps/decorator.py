"""Make a function a step wherever a handler calls it: ``@step``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeVar, Unpack, cast, overload

from onceward.core.handle.call import CONTEXT
from onceward.core.handle.output import AsyncOutputStream, OutputStream
from onceward.core.handle.signatures import is_coroutine, name_of
from onceward.core.run.async_face import Inline
from onceward.core.send.block import Transaction
from onceward.errors import InvalidArgument
from onceward.features.steps.steps import OUTPUT, RUNNING, RunningStep
from onceward.features.steps.verbs import StepFunction, WithSteps
from onceward.message.handler_options import StepOptions, positive_span, step_rules
from onceward.message.ids import new_token
from onceward.message.names import check_function
from onceward.message.times import Span

P = ParamSpec("P")
R = TypeVar("R")
NO_STEP: Final = "no step is running here: read step.{} in the function of a step"


class StepDecorator:
    """
    Make a function a step wherever a handler calls it; elsewhere it is a plain function.

    ``@step`` or ``@step(attempts=5, retry_on=OSError)``. In the function, ``step.key`` is
    the idempotency key for effects outside the file: the same at each call for the same message.
    """

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def __call__(
        self, /, **options: Unpack[StepOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def __call__(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[StepOptions]
    ) -> Any:
        """Return the function as a step; with options, return the decorator."""
        step_rules(options)
        if function is None:
            return lambda made: _as_step(made, options)
        return _as_step(function, options)

    @property
    def key(self) -> str:
        """Return the idempotency key of the running step."""
        return self._running("key").key

    @property
    def attempt(self) -> int:
        """Return the number of this call of the function, from 1."""
        return self._running("attempt").attempt

    @property
    def tx(self) -> Transaction:
        """Return the transaction of a step with ``tx=True``, which commits with its result."""
        found = self._running("tx").tx
        if found is None:
            raise InvalidArgument("this step has no transaction: set tx=True")
        return found

    def extend(self, seconds: Span) -> None:
        """
        Let this call of the function take *seconds* from now, if its step has a timeout.

        A function that works in parts and calls this after each has a time limit for each part.

        Raises:
            TimeoutError: the time has passed already; the step has failed.

        """
        limit = self._running("extend").limit
        if limit is not None:
            limit.extend(positive_span("seconds", seconds))

    def stream(self, name: str | None = None) -> OutputStream:
        """
        Return an output stream of the message, as ``ctx.stream`` does; by default the step's.

        If the function is called as a plain one, its chunks are dropped.
        """
        within = self._running("stream").within
        if within is not None and _on_loop():
            msg = "append would block the event loop: await the stream of step.async_stream()"
            raise InvalidArgument(msg)
        return _unread(name) if within is None else within.stream(name)

    def async_stream(self, name: str | None = None) -> AsyncOutputStream:
        """Do so for a coroutine; see ``stream``."""
        within, handled = self._running("async_stream").within, CONTEXT.get()
        if within is None or handled is None:
            return AsyncOutputStream(_unread(name), Inline())
        return AsyncOutputStream(within.stream(name), handled._face._off_loop)

    @property
    def context(self) -> Any:
        """
        Return the context of the running handler, for functions that do not get it.

        It is a ``Context``, ``AsyncContext``, ``Run``, ``AsyncRun`` or ``BatchContext``; None
        outside handlers, and inside the function of a step.
        """
        running = RUNNING.get()
        if running is not None:
            return running.context
        handled = CONTEXT.get()
        return handled if handled is None else handled._face or handled

    @contextmanager
    def _offering(self, context: object) -> Iterator[None]:
        """Let ``step.context`` be an object of an integration in a part of a step's function."""
        before = RUNNING.set(replace(self._running("context"), context=context))
        try:
            yield
        finally:
            RUNNING.reset(before)

    @staticmethod
    def _running(what: str) -> RunningStep:
        running = RUNNING.get()
        if running is None:
            raise InvalidArgument(NO_STEP.format(what))
        return running


def _unread(name: str | None) -> OutputStream:
    """Return a stream that drops its chunks."""
    return OutputStream(name or OUTPUT, lambda _name, _chunk: False, lambda: None)


def _as_step(function: Callable[..., Any], options: StepOptions) -> Callable[..., Any]:
    check_function("function", function)
    made: Any = _async_step(function) if is_coroutine(function) else _plain_step(function)
    made.__onceward_step__ = (function, options)
    return made  # type: ignore[no-any-return]


def _plain_step(function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        handled = _handled()
        if handled is None:
            with _plainly(call):
                return function(*args, **kwargs)
        if handled._face is not None and _on_loop():
            msg = f"step {name_of(call)} would block the event loop: await ctx.step(...)"
            raise InvalidArgument(msg)
        found: R = handled._steps.call(StepFunction(call, args, {}, kwargs))
        return found

    return call


def _async_step(
    function: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        handled = _handled()
        if handled is None:
            with _plainly(call):
                return await function(*args, **kwargs)
        off_loop = handled._face._off_loop
        found: R = await handled._steps.await_call(
            StepFunction(call, args, {}, kwargs), off_loop=off_loop
        )
        return found

    return call


def _handled() -> WithSteps | None:
    """Return the context of the running handler; None outside one, and inside a step."""
    return cast("WithSteps | None", CONTEXT.get()) if RUNNING.get() is None else None


def _on_loop() -> bool:
    from asyncio import _get_running_loop  # noqa: PLC0415 - async handlers only

    return _get_running_loop() is not None


@contextmanager
def _plainly(function: Callable[..., Any]) -> Iterator[None]:
    """Give a function that is not a separate step a key."""
    outer = RUNNING.get()
    key = new_token() if outer is None else outer.inner_key(name_of(function))
    made = partial(str, key)
    running = (
        RunningStep(made_key=made) if outer is None else replace(outer, made_key=made, counts={})
    )
    before = RUNNING.set(running)
    try:
        yield
    finally:
        RUNNING.reset(before)


step: Final = StepDecorator()
