"""Define the context that a handler gets with its message, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from onceward.core.end import sent
from onceward.core.handle.call import CallHome, CallParts, HandlerDeps, Suspended
from onceward.core.handle.message import AsyncMessage, Message
from onceward.core.rows import tickets
from onceward.core.rows.inbox import is_cancelled
from onceward.core.rows.lanes import LeasedMessage
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.run.async_face import AsyncFace, OffLoop, OnWorker, WorkerThread, awaitable
from onceward.core.send import tasks
from onceward.core.send.block import Transaction
from onceward.errors import InvalidArgument
from onceward.file.transaction import StoreTransaction
from onceward.message.body import encode
from onceward.message.frame import Frame
from onceward.message.options import MessageOptions, PublishOptions, SendOptions, reply_options
from onceward.message.times import Span
from onceward.message.vocabulary import PROGRESS

if TYPE_CHECKING:
    from onceward.core.handle.commit_batch import HandlerCommitBatch

T = TypeVar("T")


class Context(CallParts):
    """
    Writes and messages of a handler: committed with the dedup record, or not at all.

    ``tx`` opens a transaction on first use, so earlier work holds no lock.
    """

    _closes = False
    """Whether there is something to close."""

    def __init__(
        self,
        leased: LeasedMessage,
        frame: Frame,
        body: Any,
        *,
        group: HandlerCommitBatch,
        deps: HandlerDeps,
    ) -> None:
        self.session: str = leased.session
        """Conversation of the message; messages that the context sends stay in it."""
        self._leased, self._frame, self._body = leased, frame, body
        self._group, self._outbox, self._deps = group, deps.outbox, deps
        self._transaction: Transaction | None = None
        self._end_work: list[Callable[[StoreTransaction], None]] = []
        self._told: str | None = None
        """Id of the last progress message."""

    @cached_property
    def message(self) -> Message[Any]:
        """Return the message: id, sender, session, type, topic, attempt, headers, frame …."""
        return Message(self._leased, self._frame, self._body, None)

    @property
    def tx(self) -> Transaction:
        """Return the transaction of the processed mark, opened on first use."""
        if self._transaction is None:
            self._closes = True
            tx, outbox = self._group.join(), self._outbox
            ids = outbox.composer.ids_of((self._frame,), tx.now)
            hops = self._frame.hops + 1
            self._transaction = Transaction(tx, outbox, self.session, hops=hops, ids=ids)
        return self._transaction

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """Send a message with the processed mark and return its id; see ``Transaction.send``."""
        self._follow(options)
        return self.tx.send(to, body, **options)

    def broadcast(self, body: object, **options: Unpack[SendOptions]) -> str:
        """Send to every agent with the processed mark; see ``Transaction.broadcast``."""
        self._follow(options)
        return self.tx.broadcast(body, **options)

    def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """
        Give another agent a task with the processed mark, and return the dispatch id.

        The task's end comes back as a ``worker_result``; see ``Transaction.dispatch``.
        """
        self._follow(options)
        return self.tx.dispatch(to, body, session=session, **options)

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """Publish with the processed mark and return the ids; see ``Transaction.publish``."""
        self._follow(options)
        return self.tx.publish(topic, body, **options)

    def _follow(self, options: PublishOptions) -> None:
        """Set the cause and the conversation of a message in its options."""
        options.setdefault("causation_id", self._frame.id)
        options.setdefault("correlation_id", self._frame.correlationid or self._frame.id)

    def reply(self, body: object, **options: Unpack[SendOptions]) -> str:
        """Answer the sender, or its reply address, with the processed mark; return the id."""
        to, named = reply_options(self._frame, options)
        return self.tx._add(to, body, named)

    def _report(self, answer: object) -> None:
        """Report to the caller of a dispatched task, with the processed mark, that it is done."""
        result = None if answer is None else encode(answer).text
        tasks.tell(
            self._group.join(),
            self._outbox,
            self._leased,
            tasks.TaskOutcome("done", None, result),
        )

    @property
    def _hops(self) -> int:
        return self._frame.hops + 1

    def _join(self) -> StoreTransaction:
        return self._group.join()

    def _written(self) -> StoreTransaction | None:
        return self._group.before_query()

    def _make(self, name: str) -> Any:
        self._closes = True
        ids = self._outbox.composer.ids_of((self._frame,), self._outbox.db.now())
        home = CallHome(leased=self._leased, lease=self._leased.lane, commits=_Alone(self), ids=ids)
        return self._deps.make(name, home)

    def progress(self, value: object) -> None:
        """
        Report progress at once; ``box.progress_of(id)`` returns the last value.

        It is kept in this file, for ``result_retention``, and sent to the sender of a message that
        asked for a reply; values that have not left yet are replaced by later ones of the same
        call. It is committed separately, before the processed mark, and stays if the call fails;
        if the call has already written, it is committed together with those writes.

        Raises:
            InvalidMessage, TooLarge: the value cannot be written as JSON, or is too large.

        """
        payload = encode(value)
        size = self._outbox.composer.check_size(value, payload)
        message = None if self._frame.replyto is None else self._progress_message(value)
        self._group.write_outside(
            partial(self._tell, progress=payload.text, size=size, message=message)
        )
        self._told = None if message is None else message.id

    def _tell(
        self, tx: StoreTransaction, *, progress: str, size: int, message: OutgoingMessage | None
    ) -> None:
        """Keep progress, send it where it was asked for, and withdraw what has not left."""
        if keep_for := round(1000 * self._deps.settings.result_retention):
            until_at = tx.now + keep_for
            tickets.keep_progress(tx, self._leased.seq, progress, size=size, until_at=until_at)
        if self._told is not None:
            sent.cancel(tx, self._told)
        if message is not None:
            self._outbox.add(tx, message)

    def _progress_message(self, value: object) -> OutgoingMessage:
        """Return the message that tells the sender of the progress."""
        to, _ = reply_options(self._frame, {})
        options = MessageOptions(
            type=PROGRESS,
            kind=PROGRESS,
            causation_id=self._frame.id,
            ordering_key=f"progress:{self._frame.id}"[:256],
        )
        return self._outbox.compose(self.session, to, value, options)

    @property
    def cancelled(self) -> bool:
        """
        Return whether the message was cancelled, by its sender or here.

        Then no effect of the handler is kept, so it should return. This reads the file, so it works
        in any process that has the file open.
        """
        return is_cancelled(self._outbox.db.read, [self._leased.seq])

    def extend(self, seconds: Span) -> None:
        """
        Keep the lease for *seconds* from now.

        The heartbeat does this automatically, up to the maximum runtime.
        """
        self._group.extend(self._leased.lane, seconds)

    def _window(self, on_worker: OnWorker) -> AsyncContext:
        self._face = face = self._deps.complete(AsyncContext)(self, on_worker)
        return face

    def _at_end(self, work: Callable[[StoreTransaction], None]) -> None:
        self._end_work.append(work)

    def _end_call(self) -> None:
        """End a call that returned although it waits for a reply or a time."""
        super()._end_call()
        for work in self._end_work:
            work(self._group.join())

    def _close(self) -> None:
        """Make the transaction object, and the parts of the call, unusable."""
        if self._transaction is not None:
            self._transaction._finish()
        if self._parts:
            self._close_parts()


class _Alone:
    """Commits the steps of a handler separately; see ``Committer``."""

    def __init__(self, context: Context) -> None:
        self._context, self._group = context, context._group
        self.free = context._group.free
        self.write = context._group.write_alone

    def beside(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* at once, together with the handler's writes if there are any."""
        if self._group.inside:
            work(self._group.join())
        else:
            self._group.write_alone(work)

    def at_end(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* with the end of the call, which has returned."""
        work(self._group.join())

    @contextmanager
    def block(self, place: str) -> Iterator[tuple[Transaction, StoreTransaction]]:
        """Commit the writes of a block; ``ctx.tx`` is its transaction."""
        if not self.on_own_thread:
            msg = "a step with tx=True runs on the handler's own thread: call it there"
            raise InvalidArgument(msg)
        with self._group.alone() as tx:
            yours = self._context.tx
            yours._begin_part(place)
            try:
                yield yours, tx
            finally:
                yours._finish()
                self._context._transaction = None

    def wait(self, suspended: Suspended) -> None:
        """End the call; the handler is called again when it can continue."""
        raise suspended

    @property
    def on_own_thread(self) -> bool:
        """Whether the calling thread runs the handler."""
        return self._context._outbox.db.writer.thread_transactions.is_bound


class AsyncTransaction(AsyncFace[Transaction]):
    """Your statements and messages, committed together or not at all; see ``Transaction``."""

    execute = awaitable(Transaction.execute)
    executemany = awaitable(Transaction.executemany)
    send = awaitable(Transaction.send)
    request = awaitable(Transaction.request)
    dispatch = awaitable(Transaction.dispatch)
    broadcast = awaitable(Transaction.broadcast)
    publish = awaitable(Transaction.publish)


class _HandlerTransaction(AsyncTransaction):
    """The transaction of a coroutine's context, opened on first use."""

    def __init__(self, context: Context, off_loop: OffLoop) -> None:
        self._context, self._worker = context, off_loop

    @property
    def _plain(self) -> Transaction:
        return self._context.tx

    @property
    def _off_loop(self) -> OffLoop:
        return self._worker


class AsyncContext(AsyncFace[Context]):
    """Writes and messages of an ``async def`` handler; see ``Context``."""

    def __init__(self, context: Context, on_worker: OnWorker) -> None:
        worker = WorkerThread(on_worker)
        super().__init__(context, worker)
        self.message: AsyncMessage[Any] = AsyncMessage(context.message, worker)
        """The message: id, sender, session, type, topic, priority, attempt, headers, frame."""
        self.session: str = context.session
        """Conversation of the message; messages that the context sends stay in it."""
        self.tx: AsyncTransaction = _HandlerTransaction(context, worker)
        """The transaction of the processed mark; opened on first use."""

    @property
    def postbox(self) -> Any:
        """Return the postbox of the handler, to read; see ``Context.postbox``."""
        return self._plain.postbox._face(self._off_loop)

    @property
    def cancelled(self) -> bool:
        """Return whether the message was cancelled; the coroutine is then cancelled soon."""
        return self._plain.cancelled

    query = awaitable(CallParts.query)
    send = awaitable(Context.send)
    dispatch = awaitable(Context.dispatch)
    broadcast = awaitable(Context.broadcast)
    publish = awaitable(Context.publish)
    reply = awaitable(Context.reply)
    progress = awaitable(Context.progress)
    extend = awaitable(Context.extend)
