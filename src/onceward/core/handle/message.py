"""Define a received message for handlers and readers, sync and async."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from onceward.core.run.async_face import AsyncFace, OffLoop, awaitable
from onceward.errors import Drop, InvalidArgument, Reject, Retry
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Attempt, Hooks
from onceward.message.arguments import checked
from onceward.message.clock import Millis
from onceward.message.error_text import error_text, is_honest, message_of
from onceward.message.frame import Frame
from onceward.message.times import Span
from onceward.message.vocabulary import LeaseInfo, Priority

if TYPE_CHECKING:
    from onceward.observed import ObservedAttempt


T_co = TypeVar("T_co", covariant=True)


class Settler(Protocol):
    """Settles the leases of messages for their readers."""

    agent: str
    hooks: Hooks

    def ack(self, leased: Any) -> StoreTransaction:
        """End the lease of a message that its reader has handled."""
        ...

    def drop(self, leased: Any) -> StoreTransaction:
        """End the message without effects."""
        ...

    def reject(self, leased: Any, reason: str) -> StoreTransaction:
        """Make the message a dead letter."""
        ...

    def retry(self, leased: Any, reason: str, after: Span | None) -> StoreTransaction:
        """Put the message back, or make it a dead letter if its retries are used up."""
        ...

    def put_back(self, leased: Any) -> StoreTransaction:
        """Put the message back as if it had not been leased."""
        ...

    def extend(self, leased: Any, seconds: Span) -> None:
        """Keep the lease for *seconds* from now; raises LeaseLost."""
        ...

    def detach(self, leased: Any) -> str:
        """Detach a lease from this process; return its handle."""
        ...

    def reply(self, message: Message[Any], body: object) -> str:
        """Answer the message's sender; return the reply's id."""
        ...


class ReceivedMessage(Generic[T_co]):
    """The fields of a received message; ``Message`` and ``AsyncMessage`` add the methods."""

    def __init__(self, lease: LeaseInfo, frame: Frame, body: Any) -> None:
        self._lease: Any = lease  # the consumer that made it knows more than LeaseInfo
        self.frame = frame
        """The message as it travelled, with all attributes."""
        self.body: T_co = body
        """The body, as an instance of the requested type."""
        self.id: str = frame.id
        """Id of the message in every file: the idempotency key for effects outside the file."""
        self.session: str = frame.session
        """Conversation that it belongs to."""
        self.type: str = frame.type
        """Wire name of its type."""
        self.topic: str | None = frame.topic
        """Topic that it was published under."""
        self.correlation_id: str | None = frame.correlationid
        """Id of the conversation's first message."""
        self.causation_id: str | None = frame.causationid
        """Id of the message that caused it."""
        self.in_reply_to: str | None = frame.inreplyto
        """Id of the request that it answers."""
        self.channel: str | None = frame.channel
        """Channel that it was sent to."""
        self.kind: str | None = frame.kind
        """Kind of a channel's message: text, command, query …."""

    def __repr__(self) -> str:
        """Return the repr without the body, which may be secret or large."""
        kind = type(self).__name__
        return f"<{kind} {self.id} {self.type} from {self.sender}, attempt {self.attempt}>"

    @property
    def sender(self) -> str:
        """Return the name of the agent that sent it."""
        return self.frame.sender

    @property
    def priority(self) -> Priority:
        """Return critical, urgent, normal, low or background."""
        return self.frame.priority_name

    @cached_property
    def headers(self) -> dict[str, str | int | bool]:
        """Return the extension attributes of the frame."""
        return self.frame.headers

    @property
    def body_error(self) -> str | None:
        """Return why the body is missing (the sender's file had lost it), or None."""
        return self.frame.body_error

    @property
    def attempt(self) -> int:
        """Return the number of this attempt, from 1; attempts that a dying process ended count."""
        return int(self._lease.attempt)

    @property
    def created_at(self) -> Millis:
        """Return when it was sent, by the sender's clock, or else when it was received."""
        if self.frame.time is None:
            return int(self._lease.received_at)
        return round(self.frame.time.timestamp() * 1000)

    @property
    def received_at(self) -> Millis:
        """Return when it was committed into this inbox."""
        return int(self._lease.received_at)

    @property
    def tags(self) -> tuple[str, ...]:
        """Return its tags, from the header ``tags``."""
        return self.frame.tags

    @property
    def late(self) -> bool:
        """Return whether it answers a channel's query after the query's time to live."""
        return self.frame.is_late(self.received_at)

    @property
    def _message(self) -> Message[T_co]:
        """Return the message with its sync methods."""
        raise NotImplementedError


class Message(ReceivedMessage[T_co]):
    """
    A message that is leased to you until its lease ends.

    ``with message:`` settles it: done on success, retried on an exception, a dead letter on
    ``Reject``. Put effects in the same file into the same transaction: ``with session.begin() as
    tx: tx.execute(…); message.ack()``.
    """

    def __init__(
        self, leased: LeaseInfo, frame: Frame, body: Any, consumer: Settler | None
    ) -> None:
        super().__init__(leased, frame, body)
        self._consumer = consumer
        self._end: StoreTransaction | None = None
        self._observed: ObservedAttempt | None = None

    @property
    def _message(self) -> Message[T_co]:
        return self

    @property
    def settled(self) -> bool:
        """
        Return whether it was settled, in a commit or in a transaction that is still open.

        A rollback of that transaction restores the lease.
        """
        return self._end is not None and not self._end.rolled_back

    def _settle(self, how: Callable[[Settler], StoreTransaction]) -> None:
        if self._consumer is None:
            msg = (
                "in a handler, returning settles the message: "
                "raise Retry, Reject or Drop for anything else"
            )
            raise InvalidArgument(msg)
        if self.settled:
            msg = f"message {self.id} is already settled"
            raise InvalidArgument(msg)
        self._end = how(self._consumer)

    def ack(self) -> None:
        """
        Commit the processed mark, in the open transaction of this thread if there is one.

        Raises:
            LeaseLost: the lease has ended; nothing was written.

        """
        self._settle(lambda consumer: consumer.ack(self._lease))

    @checked
    def retry(
        self, after: Span | None = None, reason: str = "the reader asked for a retry"
    ) -> None:
        """
        Put the message back for another attempt after *after* seconds (None: by policy).

        Raises:
            LeaseLost: the lease has ended; nothing was written.

        """
        self._settle(lambda consumer: consumer.retry(self._lease, reason, after))

    @checked
    def reject(self, reason: str = "the reader rejected it") -> None:
        """Make the message a dead letter; raises LeaseLost."""
        self._settle(lambda consumer: consumer.reject(self._lease, reason))

    def drop(self) -> None:
        """
        End the message without effects and without a dead letter, counted as dropped.

        Raises:
            LeaseLost: the lease has ended; nothing was written.

        """
        self._settle(lambda consumer: consumer.drop(self._lease))

    def _put_back(self) -> None:
        """Put it back at once, uncounted, because its reader never got it; raises LeaseLost."""
        if not self.settled:
            self._settle(lambda consumer: consumer.put_back(self._lease))

    @checked
    def extend(self, seconds: Span) -> None:
        """Keep the message for *seconds* from now; raises LeaseLost."""
        if self._consumer is not None:
            self._consumer.extend(self._lease, seconds)

    def detach(self) -> str:
        """
        Keep the message leased beyond this process, until its lease ends; return a handle.

        ``attach(handle)`` returns it in any process of this agent; this object no longer holds
        it.

        Raises:
            LeaseLost: the lease has ended.

        """
        if self._consumer is None:
            msg = "a handler's message cannot be detached: it ends when the handler returns"
            raise InvalidArgument(msg)
        return self._consumer.detach(self._lease)

    def reply(self, body: object) -> str:
        """Answer the sender, in this thread's open transaction if any; return the reply's id."""
        if self._consumer is None:
            msg = "in a handler, return the reply or call ctx.reply"
            raise InvalidArgument(msg)
        return self._consumer.reply(self, body)

    def __enter__(self) -> Self:
        """Work on the message."""
        self._observed = _observed(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Settle it if needed; catch Retry, Reject and Drop, pass on other exceptions."""
        try:
            return self._end_block(error)
        finally:
            if self._observed is not None:
                self._observed.__exit__(kind, error, trace)

    def _end_block(self, error: BaseException | None) -> bool:
        if self.settled:
            return False
        if error is not None and not is_honest(error):
            self.retry(reason=error_text(error))
            return False
        match error:
            case None:
                self.ack()
            case Retry():
                self.retry(error.after, message_of(error))
            case Reject():
                self.reject(message_of(error))
            case Drop():
                self.drop()
            case _:
                self.retry(reason=error_text(error))
        return isinstance(error, Retry | Reject | Drop)


class AsyncMessage(ReceivedMessage[T_co], AsyncFace[Message[T_co]]):
    """A message that is leased to you; ``async with message:`` settles it."""

    def __init__(self, message: Message[T_co], off_loop: OffLoop) -> None:
        ReceivedMessage.__init__(self, message._lease, message.frame, message.body)
        AsyncFace.__init__(self, message, off_loop)
        self._observed: ObservedAttempt | None = None

    @property
    def _message(self) -> Message[T_co]:
        return self._plain

    @property
    def settled(self) -> bool:
        """Return whether its lease was ended; see ``Message.settled``."""
        return self._plain.settled

    ack = awaitable(Message.ack)
    retry = awaitable(Message.retry)
    reject = awaitable(Message.reject)
    drop = awaitable(Message.drop)
    extend = awaitable(Message.extend)
    detach = awaitable(Message.detach)
    reply = awaitable(Message.reply)

    async def __aenter__(self) -> Self:
        """Work on the message."""
        self._observed = _observed(self._plain)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Settle it if it is not settled yet, as ``with message:`` does."""
        try:
            await self._off_loop.call(lambda: self._plain.__exit__(kind, error, trace))
        finally:
            if self._observed is not None:
                self._observed.__exit__(kind, error, trace)
        return isinstance(error, Retry | Reject | Drop)


def _observed(message: Message[Any]) -> ObservedAttempt | None:
    """Start an attempt of a reader for its observers; None without observers."""
    consumer = message._consumer
    if consumer is None or not consumer.hooks.observers:
        return None
    from onceward.observed import ObservedAttempt  # noqa: PLC0415 - rarely needed

    attempt = Attempt(
        agent=consumer.agent,
        session=message.session,
        frames=(message.frame,),
        number=message.attempt,
    )
    return ObservedAttempt(consumer.hooks.observers, attempt).__enter__()
