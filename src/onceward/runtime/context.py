"""What a handler is given besides the message: a transaction on first use, and mail that commits with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from typing import Any, TypeVar, Unpack

from onceward.model.body import encode
from onceward.model.frame import Frame
from onceward.model.send_options import ParsedOptions, PublishOptions, SendOptions, parse_options
from onceward.runtime import results
from onceward.runtime.commit_batch import HandlerCommitBatch
from onceward.runtime.fanout import Publisher
from onceward.runtime.message import Message
from onceward.runtime.transaction import Bindings, Transaction
from onceward.store.inbox import LeasedMessage

T = TypeVar("T")


class Context:
    """
    The handler's own window on its agent.

    ``tx`` opens a transaction on first use, so work done before it holds no
    lock. What is written and sent through the context is committed together
    with the processed mark, or not at all.
    """

    def __init__(
        self,
        leased: LeasedMessage,
        frame: Frame,
        body: Any,
        *,
        group: HandlerCommitBatch,
        sender: Publisher,
        extend: Callable[[LeasedMessage, float], None],
    ) -> None:
        self.session: str = leased.session
        """The conversation that the message belongs to; mail sent through the context stays in it."""
        self._leased, self._frame, self._body = leased, frame, body
        self._group, self._sender, self._extend = group, sender, extend
        self._transaction: Transaction | None = None
        self.cancel: Callable[[], object] | None = None
        """Stops the handler where that is possible: only coroutines can be stopped."""

    @cached_property
    def message(self) -> Message[Any]:
        """The message: id, sender, session, type, topic, priority, attempt, headers, frame."""
        return Message(self._leased, self._frame, self._body, None)

    @property
    def tx(self) -> Transaction:
        """The transaction that the processed mark commits with; opened on first use."""
        if self._transaction is None:
            self._transaction = Transaction(self._group.join(), self._sender, self.session)
        return self._transaction

    def send(self, to: str | None, body: object, **options: Unpack[SendOptions]) -> str:
        """Promise a message with the processed mark; takes what ``Transaction.send`` takes; returns its id."""
        self._follow(options)
        return self.tx.send(to, body, **options)

    def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """Give another agent a task with the processed mark; its end comes back as a ``worker_result``; see ``Transaction.dispatch``."""
        options.setdefault("causation_id", self._frame.id)
        return self.tx.dispatch(to, body, session=session, **options)

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """Send to every peer that subscribed to *topic*, with the processed mark; returns the ids."""
        self._follow(options)
        return self.tx.publish(topic, body, **options)

    def _follow(self, options: PublishOptions) -> None:
        """Let a message say which one it follows from, and to whose conversation it belongs."""
        options.setdefault("causation_id", self._frame.id)
        options.setdefault("correlation_id", self._frame.correlationid or self._frame.id)

    def reply(self, body: object, **options: Unpack[SendOptions]) -> str:
        """Answer the sender, or whom it named as reply address, with the processed mark; returns the id."""
        to, named = reply_options(self._frame, options)
        return self.tx._add(to, body, named)

    def report(self, answer: object) -> None:
        """Let the caller of a dispatched task know, with the processed mark, that it is done; the worker calls this itself."""
        result = None if answer is None else encode(answer).text
        results.tell(
            self._group.join(),
            self._sender,
            self._leased,
            results.TaskOutcome("done", None, result),
        )

    def extend(self, seconds: float) -> None:
        """Keep the lease for *seconds* from now; the heartbeat does this by itself up to the maximum runtime."""
        self._extend(self._leased, seconds)

    def close(self) -> None:
        """End the window; the transaction object cannot be used any more."""
        if self._transaction is not None:
            self._transaction._finish()


def reply_options(frame: Frame, options: SendOptions) -> tuple[str, ParsedOptions]:
    """Return whom a reply goes to and the options that tie it to its message."""
    tied: SendOptions = {
        "in_reply_to": frame.id,
        "causation_id": frame.id,
        "correlation_id": frame.correlationid or frame.id,
    }
    named: SendOptions = tied | options
    if frame.priority_name != "normal":
        named.setdefault("priority", frame.priority_name)
    return frame.replyto or frame.sender, parse_options(named)


OnWorker = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call on the worker's thread, where the transaction lives, and awaits its result."""


class AsyncContext:
    """The same window for ``async def`` handlers: the same names, awaitable."""

    def __init__(self, context: Context, on_worker: OnWorker) -> None:
        self.message = context.message
        self.session: str = context.session
        self._context, self._on_worker = context, on_worker
        self.tx = AsyncEffects(context, on_worker)
        """The transaction that the processed mark commits with; opened on first use."""

    async def send(self, to: str | None, body: object, **options: Unpack[SendOptions]) -> str:
        """Promise a message with the processed mark; returns its id."""
        return str(await self._on_worker(lambda: self._context.send(to, body, **options)))

    async def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """Give another agent a task with the processed mark; returns the dispatch id."""
        return str(
            await self._on_worker(
                lambda: self._context.dispatch(to, body, session=session, **options)
            )
        )

    async def publish(
        self, topic: str, body: object, **options: Unpack[PublishOptions]
    ) -> list[str]:
        """Send to every peer that subscribed to *topic*, with the processed mark; returns the ids."""
        return list(await self._on_worker(lambda: self._context.publish(topic, body, **options)))

    async def reply(self, body: object, **options: Unpack[SendOptions]) -> str:
        """Answer the sender with the processed mark; returns the id."""
        return str(await self._on_worker(lambda: self._context.reply(body, **options)))

    async def extend(self, seconds: float) -> None:
        """Keep the lease for *seconds* from now."""
        await self._on_worker(lambda: self._context.extend(seconds))


class AsyncEffects:
    """The transaction of an ``async def`` handler."""

    def __init__(self, context: Context, on_worker: OnWorker) -> None:
        self._context, self._on_worker = context, on_worker

    async def execute(self, sql: str, bindings: Bindings = None) -> list[tuple[Any, ...]]:
        """Run *sql* and return all its rows."""
        return list(await self._on_worker(lambda: self._context.tx.execute(sql, bindings)))

    async def executemany(self, sql: str, bindings: Iterable[Any]) -> None:
        """Run *sql* once for each of *bindings*."""
        await self._on_worker(lambda: self._context.tx.executemany(sql, bindings))

    async def send(self, to: str | None, body: object, **options: Unpack[SendOptions]) -> str:
        """Promise a message with this transaction; returns its id."""
        return str(await self._on_worker(lambda: self._context.send(to, body, **options)))
