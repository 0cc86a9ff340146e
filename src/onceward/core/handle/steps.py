"""
Add steps to contexts: ``ctx.step`` in handlers, batches and runs.

The core knows a step's message and commits it separately; the feature decides what to store and
when to call its function.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack, overload
from uuid import UUID

from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run.async_face import AsyncFace, OffLoop, awaitable
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.send.block import Transaction
from onceward.core.send.call_parts import CallPart, Suspended
from onceward.file.transaction import StoreTransaction
from onceward.message.options import StepOptions
from onceward.message.times import Span
from onceward.message.vocabulary import StepState

# Rows of a call are deleted with the row of its message, in the inbox or the dead letters.
ORPHANED: Final = """
DELETE FROM {table}
 WHERE seq IN (SELECT s.seq
                 FROM {table} AS s
                WHERE s.{at} < :before
                  AND NOT EXISTS (SELECT 1
                                    FROM _onceward_inbox AS b
                                   WHERE b.sender = s.sender AND b.id = s.message_id)
                  AND NOT EXISTS (SELECT 1
                                    FROM _onceward_dead_letters AS d
                                   WHERE d.origin = 'inbox' AND d.peer = s.sender
                                     AND d.id = s.message_id)
                ORDER BY s.{at} LIMIT :limit)
"""
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def orphaned(table: str, at: str) -> str:
    """Return the statement that deletes a slice of old rows whose message no longer exists."""
    return ORPHANED.format(table=table, at=at)


class Committer(Protocol):
    """Commits the writes of a step separately, before the handler ends."""

    def free(self) -> None:
        """Release the lock; raises InvalidArgument if the handler has written."""

    def write(self, work: Callable[[StoreTransaction], T]) -> T:
        """Commit *work*, which may be run again."""
        ...

    def beside(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* at once, with the handler's writes if it has any."""

    def at_end(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* with the end of the call, which has returned."""

    def block(self) -> AbstractContextManager[tuple[Transaction, StoreTransaction]]:
        """Commit the writes of a block."""
        ...

    def wait(self, suspended: Suspended) -> None:
        """End the call until it can continue, or return if that is now."""

    @property
    def on_own_thread(self) -> bool:
        """Whether the calling thread runs the handler."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHome:
    """The message and the lease that the steps of one call belong to."""

    leased: LeasedMessage
    lease: Lease
    commits: Committer
    scope: str = ""
    """Digest of the messages of a run, which identifies its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDeps(RuntimeDeps):
    """The dependencies of those that call handlers."""

    steps: Callable[[HandlerDeps, StepHome], Steps]
    """Creates the steps of a handler's call, if it has any."""
    streams: Callable[[HandlerDeps, StepHome], Streams]
    """Creates its streams of output, if it has any."""


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A stored step of an earlier run."""

    name: str
    """Its name, with its ordinal and version as ``onceward show`` prints them: ``think#2``."""
    state: StepState
    attempts: int
    result: Any
    """The result of its function, as plain JSON values or bytes; None unless it is done."""
    error: str | None


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A function that a handler calls as a step, and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: StepOptions
    named: Mapping[str, Any] = field(default_factory=dict)


class OutputStream:
    """
    Accepts the output of a running handler, for readers that follow it with ``box.follow``.

    Chunks are committed in batches: those of ``stream_batch_for`` (0.1 s) or
    ``stream_batch_bytes`` (16 KiB) together, in one commit, and the rest with the end of the
    call. A worker that has lost its message adds nothing.
    """

    def __init__(
        self, name: str, add: Callable[[str, object], bool], flush: Callable[[], None]
    ) -> None:
        self.name = name
        """Name of the stream within its message."""
        self._add, self._flush = add, flush

    def append(self, chunk: object) -> None:
        """
        Append text, bytes, or a value that can be written as JSON.

        Raises:
            StreamLimit: the output of this message has reached its limit.
            InvalidMessage: the chunk cannot be written as JSON.
            LeaseLost: another worker handles the message, or its handler has ended.

        """
        if self._add(self.name, chunk):
            self._flush()

    def flush(self) -> None:
        """Commit what was appended so far."""
        self._flush()


class AsyncOutputStream(AsyncFace[OutputStream]):
    """Accepts the output of a running coroutine; see ``OutputStream``."""

    @property
    def name(self) -> str:
        """Return the name of the stream within its message."""
        return self._plain.name

    async def append(self, chunk: object) -> None:
        """Append text, bytes, or a JSON value; see ``OutputStream.append``."""
        if self._plain._add(self.name, chunk):
            await self.flush()

    flush = awaitable(OutputStream.flush)


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


class WithSteps:
    """The steps of a handler's call; ``Context`` and ``Run`` have them."""

    _steps: Steps
    _face: Any = None
    """The object that a coroutine gets instead of this one."""

    def _at_end(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* with the processed mark, once the handler has returned."""
        raise NotImplementedError

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


W_co = TypeVar("W_co", bound=WithSteps, covariant=True)


class AsyncWithSteps(AsyncFace[W_co]):
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


CONTEXT: Final[ContextVar[WithSteps | None]] = ContextVar("onceward_handled", default=None)
"""The context of the running handler."""
