"""
Create the async methods of a class from its sync methods.

``join = awaitable(Channel.join)`` in the body of ``AsyncChannel`` is a method
with the signature, the options and the docstring of ``Channel.join`` that
returns a coroutine. The sync method runs on a thread that may touch the file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from onceward.errors import ForkedProcess
from onceward.file import forks

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")
S_co = TypeVar("S_co", covariant=True)

OnWorker = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call on the worker's thread, where the transaction lives, and awaits its result."""


class OffLoop(Protocol):
    """Runs sync calls on a thread that may touch the file."""

    async def call(self, work: Callable[[], T]) -> T:
        """Run *work* off the loop and return its result."""
        ...

    async def write(self, work: Callable[[], T]) -> T:
        """Run *work*, which writes once and may share its commit with other tasks."""
        ...


class Inline:
    """Runs calls that touch no file at once."""

    async def call(self, work: Callable[[], T]) -> T:
        """Run *work* and return its result."""
        return work()

    write = call


class WorkerThread:
    """The worker's thread of a handler that is a coroutine."""

    def __init__(self, on_worker: OnWorker) -> None:
        self._on_worker = on_worker

    async def call(self, work: Callable[[], T]) -> T:
        """Run *work* on the worker's thread and return its result."""
        found: T = await self._on_worker(work)
        return found

    write = call

    async def in_block(self, work: Callable[[], T]) -> T:
        """Run *work* on the worker's thread, and await its end even if cancelled."""
        from asyncio import ensure_future  # noqa: PLC0415 - half of the time of importing the library

        return await uncancelled(ensure_future(self.call(work)))


class AsyncFace(Generic[S_co]):
    """Base of the async classes: the sync object and the thread that its methods run on."""

    def __init__(self, plain: S_co, off_loop: OffLoop) -> None:
        self._face = (plain, off_loop)

    def __repr__(self) -> str:
        """Return the repr of the sync object."""
        return repr(self._plain).replace("<", "<Async", 1)

    @property
    def _plain(self) -> S_co:
        return self._face[0]

    @property
    def _off_loop(self) -> OffLoop:
        return self._face[1]


Method = Callable[Concatenate[S, P], R]
AsyncMethod = Callable[Concatenate[AsyncFace[S], P], Coroutine[Any, Any, R]]


def awaitable(method: Method[S, P, R]) -> AsyncMethod[S, P, R]:
    """Return *method* as a coroutine function that runs it off the loop."""

    @wraps(method)
    async def call(self: AsyncFace[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._off_loop.call(lambda: method(self._plain, *args, **kwargs))

    return call


def awaitable_write(method: Method[S, P, R]) -> AsyncMethod[S, P, R]:
    """Return *method*, which writes once, as one that shares its commit with other tasks."""

    @wraps(method)
    async def call(self: AsyncFace[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._off_loop.write(lambda: method(self._plain, *args, **kwargs))

    return call


def awaitable_on_thread(method: Method[S, P, R]) -> AsyncMethod[S, P, R]:
    """Return *method*, which may take long, as one that runs on its own thread."""

    @wraps(method)
    async def call(self: AsyncFace[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await on_thread(lambda: method(self._plain, *args, **kwargs))

    return call


def awaitable_as(face: Callable[[R, Any], A], method: Method[S, P, R]) -> AsyncMethod[S, P, A]:
    """Return *method* as a coroutine function whose result is wrapped in the async class *face*."""

    @wraps(method)
    async def call(self: AsyncFace[S], /, *args: P.args, **kwargs: P.kwargs) -> A:
        off_loop = self._off_loop
        return face(await off_loop.call(lambda: method(self._plain, *args, **kwargs)), off_loop)

    return call


async def uncancelled(future: asyncio.Future[T]) -> T:
    """Await *future* to its end; then raise the first cancellation that came in between."""
    cancelled = await until_ended(future)
    if cancelled is None:
        return future.result()
    try:
        raise cancelled
    finally:
        del cancelled  # its traceback holds this frame


async def until_ended(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """
    Await *future* to its end; return the first cancellation that came in between, or None.

    The caller raises that very object: a cancel scope knows its own cancellation by the text.
    """
    import asyncio  # noqa: PLC0415 - half of the time of importing the library

    cancelled = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if not future.cancelled():
                cancelled = cancelled or error
        except BaseException:
            if not future.done():  # an interrupt of this thread
                raise
    if not future.cancelled():
        future.exception()  # it counts as retrieved
    return cancelled


def carried(work: Callable[[], T]) -> Callable[[], T]:
    """
    Return *work* with the context variables of the caller, for a thread that runs it.

    It raises RuntimeError in place of StopIteration, as a coroutine does: no future of asyncio can
    hold that one, so the task that awaits it would wait forever.
    """
    return partial(copy_context().run, _never_stopping, work)


async def on_thread(work: Callable[[], T]) -> T:
    """Run *work* on a default thread of the loop; see ``carried``."""
    from asyncio import get_running_loop  # noqa: PLC0415 - half of the time of importing the library

    try:
        loop = get_running_loop()
    except RuntimeError:  # a coroutine runs without a loop in a forked child only
        raise ForkedProcess(forks.FORKED) from None
    return await loop.run_in_executor(None, carried(work))


def _never_stopping(work: Callable[[], T]) -> T:
    before = forks.count
    try:
        found = work()
    except StopIteration as error:
        forks.leave_if_forked(before, error)
        msg = "the call raised StopIteration"
        raise RuntimeError(msg) from error
    except BaseException as error:
        forks.leave_if_forked(before, error)
        raise
    if forks.count != before:  # this thread works for the parent, whose loop the child lacks
        forks.leave()
    return found
