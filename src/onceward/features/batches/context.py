"""Define the context of a batch handler, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack, overload

from onceward.core.handle.call import CallParts
from onceward.core.handle.commit_batch import HandlerCommitBatch
from onceward.core.handle.context import AsyncTransaction, Context
from onceward.core.handle.message import Message
from onceward.core.handle.output import AsyncOutputStream, OutputStream
from onceward.core.run.async_face import AsyncFace, OnWorker, WorkerThread, awaitable
from onceward.core.send.add import Outbox
from onceward.core.send.block import Transaction
from onceward.errors import InvalidArgument
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.handler_options import StepOptions
from onceward.message.names import DEFAULT_SESSION
from onceward.message.options import SendOptions
from onceward.message.times import Span, millis

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
Key = tuple[str, str]
"""Sender and id: two senders may choose the same id."""


class BatchContext(CallParts):
    """
    Messages, outcomes and writes of one call: committed together, or not at all.

    ``messages`` are in the order of the bodies. A message without an explicit outcome is processed
    when the call returns; an exception fails all of them.
    """

    _closes = True

    def __init__(
        self, contexts: Sequence[Context], *, group: HandlerCommitBatch, outbox: Outbox
    ) -> None:
        self._contexts: dict[Key, Any] = {
            (each._leased.sender, each._leased.id): each for each in contexts
        }
        """By message: its own context, with the verbs of features."""
        self._group, self._outbox = group, outbox
        self._rejected: dict[Key, str] = {}
        self._retried: dict[Key, Millis | None] = {}
        self._transaction: Transaction | None = None

    @property
    def messages(self) -> list[Message[Any]]:
        """Return the messages: id, sender, session, type, topic, attempt, headers, frame …."""
        return [each.message for each in self._contexts.values()]

    @property
    def tx(self) -> Transaction:
        """Return the transaction of all processed marks, opened on first use."""
        if self._transaction is None:
            frames = [each._frame for each in self._contexts.values()]
            tx = self._group.join()
            ids = self._outbox.composer.ids_of(frames, tx.now)
            self._transaction = Transaction(
                tx,
                self._outbox,
                DEFAULT_SESSION,
                hops=max(each.hops for each in frames) + 1,
                ids=None if ids is None else ids.within("batch"),
            )
        return self._transaction

    def _written(self) -> StoreTransaction | None:
        return self._group.before_query()

    def reject(self, message: Message[Any], reason: str) -> None:
        """Make one message a dead letter; the others are unchanged."""
        key = self._known(message)
        self._retried.pop(key, None)
        self._rejected[key] = reason

    def retry(self, message: Message[Any], *, after: Span | None = None) -> None:
        """
        Retry one message alone, *after* a span; by default as in the policy.

        Later messages of its lane in this batch do not wait for it.
        """
        key, delay = self._known(message), None if after is None else millis("after", after)
        self._rejected.pop(key, None)
        self._retried[key] = delay

    def send(
        self, message: Message[Any], to: str, body: object, **options: Unpack[SendOptions]
    ) -> str:
        """
        Send what follows from one message, with its processed mark; return the id.

        The id is derived from that message: handled again after a restore, in any batch, it is
        the same. ``tx.send`` sends for all messages: the id is the same in a batch of the same
        ones only.
        """
        context: Context = self._contexts[self._known(message)]
        return context.send(to, body, **options)

    def reply(self, message: Message[Any], body: object, **options: Unpack[SendOptions]) -> str:
        """Answer the sender of one message, with its processed mark; return the reply's id."""
        context: Context = self._contexts[self._known(message)]
        return context.reply(body, **options)

    def step(
        self,
        message: Message[Any],
        function: Callable[[*Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> R:
        """Call a function once for one message; see ``Context.step``."""
        found: R = self._contexts[self._known(message)].step(function, *args, **options)
        return found

    def stream(self, message: Message[Any], name: str | None = None) -> OutputStream:
        """Return an output stream of one message; see ``Context.stream``."""
        found: OutputStream = self._contexts[self._known(message)].stream(name)
        return found

    @property
    def postbox(self) -> Any:
        """The postbox of the handler, to read; see ``Context.postbox``."""
        return next(iter(self._contexts.values())).postbox

    def _make(self, name: str) -> NoReturn:
        del name
        msg = "a step in a batch belongs to one message: ctx.step(message, function, …)"
        raise InvalidArgument(msg)

    def _known(self, message: Message[Any]) -> Key:
        key = (message.sender, message.id)
        if key not in self._contexts:
            raise InvalidArgument(f"message {message.id} is not in this batch")
        return key

    def _window(self, on_worker: OnWorker) -> AsyncBatchContext:
        self._face = face = AsyncBatchContext(self, on_worker)
        return face

    def _end_call(self) -> None:
        """End a call that has returned: commit its messages' output with it."""
        for each in self._contexts.values():
            each._end_call()

    def _close(self) -> None:
        """Make the transaction objects unusable."""
        for each in self._contexts.values():
            each._close()
        if self._transaction is not None:
            self._transaction._finish()


class _BatchTransaction(AsyncTransaction):
    """The transaction of a coroutine's batch, opened on first use."""

    def __init__(self, context: BatchContext, off_loop: WorkerThread) -> None:
        self._context, self._worker = context, off_loop

    @property
    def _plain(self) -> Transaction:
        return self._context.tx

    @property
    def _off_loop(self) -> WorkerThread:
        return self._worker


class AsyncBatchContext(AsyncFace[BatchContext]):
    """Messages, outcomes and writes of an ``async def`` batch handler; see ``BatchContext``."""

    def __init__(self, context: BatchContext, on_worker: OnWorker) -> None:
        worker = WorkerThread(on_worker)
        super().__init__(context, worker)
        self._on_worker = on_worker
        self.messages: list[Message[Any]] = context.messages
        """The messages, in the order of the bodies."""
        self.tx: AsyncTransaction = _BatchTransaction(context, worker)
        """The transaction of all processed marks; opened on first use."""

    @property
    def postbox(self) -> Any:
        """Return the postbox of the handler, to read; see ``Context.postbox``."""
        return self._plain.postbox._face(self._off_loop)

    query = awaitable(CallParts.query)
    send = awaitable(BatchContext.send)
    reply = awaitable(BatchContext.reply)

    @overload
    async def step(
        self,
        message: Message[Any],
        function: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> R: ...

    @overload
    async def step(
        self,
        message: Message[Any],
        function: Callable[[*Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> R: ...

    async def step(
        self,
        message: Message[Any],
        function: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> Any:
        """Call a function, or await a coroutine, once for one message; see ``Context.step``."""
        window = self._plain._contexts[self._plain._known(message)]._window(self._on_worker)
        return await window.step(function, *args, **options)

    def stream(self, message: Message[Any], name: str | None = None) -> AsyncOutputStream:
        """Return an output stream of one message; see ``Context.stream``."""
        return AsyncOutputStream(self._plain.stream(message, name), self._off_loop)

    def reject(self, message: Message[Any], reason: str) -> None:
        """Make one message a dead letter; the others are unchanged."""
        self._plain.reject(message, reason)

    def retry(self, message: Message[Any], *, after: Span | None = None) -> None:
        """Retry one message alone; see ``BatchContext.retry``."""
        self._plain.retry(message, after=after)
