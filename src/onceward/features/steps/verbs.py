"""Add steps to contexts: ``ctx.step`` and the verbs that build on it, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, overload
from uuid import UUID

from onceward.core.handle.call import CallPart, CallParts
from onceward.core.handle.output import AsyncOutputStream, OutputStream
from onceward.core.run.async_face import AsyncFace, OffLoop
from onceward.file.transaction import StoreTransaction
from onceward.message.handler_options import StepOptions
from onceward.message.handler_work import StoredStep
from onceward.message.times import Span

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A function that a handler calls as a step, and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: StepOptions
    named: Mapping[str, Any] = field(default_factory=dict)


class Steps(CallPart, Protocol):
    """The steps of one call of a handler."""

    def call(self, step: StepFunction) -> Any:
        """Return the result of a step: the stored one, or the function's."""
        ...

    async def await_call(self, step: StepFunction, *, off_loop: OffLoop) -> Any:
        """Do so for a coroutine; a plain function runs on its own thread."""
        ...

    def sleep(self, span: Span) -> None:
        """End the call for *span*; return if that has passed."""

    async def await_sleep(self, span: Span, *, off_loop: OffLoop) -> None:
        """Do so for a coroutine."""

    def once(
        self, name: str, args: tuple[Any, ...], work: Callable[[StoreTransaction], Any]
    ) -> Any:
        """Return the result of *work*, committed with it once; *args* identify it."""
        ...

    def wait(self, what: type | str, timeout: Span | None) -> Any:
        """Return the body of an awaited message, or end the call until one comes."""
        ...

    async def await_wait(self, what: type | str, timeout: Span | None, *, off_loop: OffLoop) -> Any:
        """Do so for a coroutine."""
        ...

    def stream(self, name: str | None) -> OutputStream:
        """Return an output stream; without a name, the stream of the running step."""
        ...

    def now(self) -> datetime:
        """Return the file's time."""
        ...

    def uuid(self) -> UUID:
        """Return a new id."""
        ...

    def random(self) -> float:
        """Return a random number."""
        ...

    def of_others(self, sender: str, message_id: str, scope: str) -> tuple[StoredStep, ...]:
        """Return the steps of another call, in order."""
        ...

    def commit(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* separately, if the lease is still held."""


class Streams(Protocol):
    """The output of one call of a handler."""

    def open(self, name: str) -> OutputStream:
        """Return the stream of a name."""
        ...

    def flush(self) -> None:
        """Commit the waiting chunks, with the transaction of the calling thread."""

    def void(self, name: str) -> None:
        """Restart a stream at its next chunk: its step failed, and is called again."""

    def storing(self) -> AbstractContextManager[Callable[[StoreTransaction], None]]:
        """Yield the work that stores the waiting chunks in the block's commit; it may run again."""
        ...

    def end(self) -> None:
        """Commit the rest with the end of the call, which has returned."""

    def close(self) -> None:
        """Refuse further chunks: the call has ended."""


class WithSteps(CallParts):
    """The steps of a handler's call; ``Context`` and ``Run`` have them."""

    @cached_property
    def _steps(self) -> Steps:
        made: Steps = self._part("steps")
        return made

    def step(
        self,
        function: Callable[[*Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> R:
        """
        Call a function once for this message, and return its result at each call of the handler.

        The function runs without a lock. Its result, read as its return annotation, is committed
        separately; when the handler is called again, the result is returned, and the function is
        not called. If the process dies while the function runs, the function is called again:
        effects outside the file happen at least once, with the same ``step.key``.

        Raises:
            Conflict: an earlier call passed other arguments to this step.
            StepFailed: it failed permanently; the failure is stored.
            StepLimit: the steps of this message reached their limit.
            InvalidArgument: the handler has written before, or the step has no clear name.
            LeaseLost: another worker handles the message.

        """
        found: R = self._steps.call(StepFunction(function, args, options))
        return found

    def sleep(self, span: Span) -> None:
        """
        Continue after *span*: seconds, a timedelta, or text such as ``3d``.

        The call **ends**, as with ``ctx.ask``: no thread waits, no lock is held, and the lane
        waits. The time is stored at once, and a restart does not change it.
        """
        self._steps.sleep(span)

    def wait(self, what: type[T], *, timeout: Span | None = None) -> T:
        """
        Return the body of the next message of a class in this session, as if it were a reply.

        It may come from any agent, before or after this call: a person's approval, or the message
        of a webhook. Until it arrives the call **ends**, as with ``ctx.ask``. Declare the class
        with ``agent.waits(Approved)``: its messages reach no handler.

        Raises:
            AnswerTimeout: none arrived within *timeout*; each later call gets the same error.
            InvalidArgument: the class is not declared.
            InvalidMessage: the body does not fit.

        """
        found: T = self._steps.wait(what, timeout)
        return found

    def stream(self, name: str | None = None) -> OutputStream:
        """
        Return an output stream of this message, which readers follow with ``box.follow``.

        Without a *name* it has the name of the running step, else ``output``. A later call of the
        handler that appends to a stream restarts it, and readers get ``Restarted``: give each step
        its own stream.
        """
        return self._steps.stream(name)

    def now(self) -> datetime:
        """Return the time, in UTC: the same at each call of the handler."""
        return self.step(self._steps.now)

    def uuid(self) -> UUID:
        """Return a new id (UUIDv7): the same at each call of the handler."""
        return self.step(self._steps.uuid)

    def random(self) -> float:
        """Return a random number from 0 to 1: the same at each call of the handler."""
        return self.step(self._steps.random)


class AsyncWithSteps(AsyncFace[Any]):
    """The steps of a coroutine's call; ``AsyncContext`` and ``AsyncRun`` have them."""

    @overload
    async def step(
        self,
        function: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> R: ...

    @overload
    async def step(
        self,
        function: Callable[[*Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> R: ...

    async def step(
        self,
        function: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> Any:
        """
        Call a function, or await a coroutine, once for this message; see ``Context.step``.

        A plain function runs on a separate thread. Concurrent steps need distinct names.
        """
        return await self._plain._steps.await_call(
            StepFunction(function, args, options), off_loop=self._off_loop
        )

    async def sleep(self, span: Span) -> None:
        """Continue after *span*; see ``Context.sleep``."""
        await self._plain._steps.await_sleep(span, off_loop=self._off_loop)

    async def wait(self, what: type[T], *, timeout: Span | None = None) -> T:
        """Return the body of the next message of a class; see ``Context.wait``."""
        found: T = await self._plain._steps.await_wait(what, timeout, off_loop=self._off_loop)
        return found

    def stream(self, name: str | None = None) -> AsyncOutputStream:
        """Return an output stream of this message; see ``Context.stream``."""
        return AsyncOutputStream(self._plain._steps.stream(name), self._off_loop)

    async def now(self) -> datetime:
        """Return the time, in UTC: the same at each call of the handler."""
        return await self.step(self._plain._steps.now)

    async def uuid(self) -> UUID:
        """Return a new id (UUIDv7): the same at each call of the handler."""
        return await self.step(self._plain._steps.uuid)

    async def random(self) -> float:
        """Return a random number from 0 to 1: the same at each call of the handler."""
        return await self.step(self._plain._steps.random)
