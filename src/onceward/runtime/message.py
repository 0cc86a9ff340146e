"""A received message, as handlers and readers see it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from onceward.db.transaction import StoreTransaction
from onceward.errors import Drop, InvalidArgument, Reject, Retry
from onceward.model.clock import Millis
from onceward.model.frame import BODY_ERROR, Frame

T_co = TypeVar("T_co", covariant=True)


class LeaseInfo(Protocol):
    """The part of a lease that a message shows."""

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        ...

    @property
    def received_at(self) -> Millis:
        """When the message was committed into the inbox."""
        ...


class Settler(Protocol):
    """Where a pulled message is settled; what a lease is, is the desk's own affair."""

    def ack(self, leased: Any) -> StoreTransaction:
        """Commit the processed mark."""
        ...

    def retry(self, leased: Any, reason: str, after: float | None) -> StoreTransaction:
        """Put the message back."""
        ...

    def reject(self, leased: Any, reason: str) -> StoreTransaction:
        """Bury the message."""
        ...

    def drop(self, leased: Any) -> StoreTransaction:
        """End the message without effects."""
        ...

    def extend(self, leased: Any, seconds: float) -> None:
        """Keep the lease longer."""
        ...

    def reply(self, message: Message[Any], body: object) -> str:
        """Answer the message's sender."""
        ...


class Message(Generic[T_co]):
    """
    A message in your hands until its lease ends.

    ``with message:`` settles it: done on success, tried again on an exception,
    buried on ``Reject``. Effects in the same file belong into the same
    transaction: ``with session.begin() as tx: tx.execute(…); message.ack()``.
    """

    def __init__(self, leased: LeaseInfo, frame: Frame, body: Any, desk: Settler | None) -> None:
        self._lease, self._settler = leased, desk
        self.frame = frame
        """The message as it travelled, with every attribute."""
        self.body: T_co = body
        self._end: StoreTransaction | None = None
        self.id: str = frame.id
        """Names the message everywhere: the idempotency key for effects outside the file."""
        self.sender: str = frame.sender
        self.session: str = frame.session
        self.type: str = frame.type
        self.topic: str | None = frame.topic
        self.priority: str = frame.priority_name
        self.correlation_id: str | None = frame.correlationid
        self.causation_id: str | None = frame.causationid
        self.in_reply_to: str | None = frame.inreplyto
        self.channel: str | None = frame.channel
        self.kind: str | None = frame.kind
        self.headers: dict[str, str | int | bool] = frame.headers
        said = self.headers.pop(BODY_ERROR, None)
        self.body_error: str | None = None if said is None else str(said)
        """Why the body is missing, None where it is not: the sender's file had lost it."""

    def __repr__(self) -> str:
        """Name the message without its body, which may be secret or large."""
        return f"<Message {self.id} {self.type} from {self.sender}, attempt {self.attempt}>"

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; counts attempts that died with their process."""
        return self._lease.attempt

    @property
    def leased(self) -> Any:
        """What proves that it is in our hands; only the desk that made it knows how to read it."""
        return self._lease

    @property
    def created_at(self) -> Millis:
        """When it was sent, by the sender's clock; when it was received, if the frame does not say."""
        return (
            self._lease.received_at
            if self.frame.time is None
            else round(self.frame.time.timestamp() * 1000)
        )

    @property
    def received_at(self) -> Millis:
        """When it was committed into this inbox."""
        return self._lease.received_at

    @property
    def settled(self) -> bool:
        """Whether its lease was ended, in a commit or in a transaction that is still open; a rollback gives it back."""
        return self._end is not None and not self._end.rolled_back

    def _settle(self, how: Callable[[Settler], StoreTransaction]) -> None:
        if self._settler is None:
            msg = "in a handler, returning settles the message: raise Retry, Reject or Drop for anything else"
            raise InvalidArgument(msg)
        if self.settled:
            msg = f"message {self.id} is settled already"
            raise InvalidArgument(msg)
        self._end = how(self._settler)

    def ack(self) -> None:
        """Commit the processed mark, in the open transaction of this thread if there is one; raises LeaseLost."""
        self._settle(lambda desk: desk.ack(self._lease))

    def retry(self, after: float | None = None, reason: str = "retry asked by reader") -> None:
        """Put the message back, to be had again after *after* seconds, by policy when None; raises LeaseLost."""
        self._settle(lambda desk: desk.retry(self._lease, reason, after))

    def reject(self, reason: str = "rejected by reader") -> None:
        """Make the message a dead letter; raises LeaseLost."""
        self._settle(lambda desk: desk.reject(self._lease, reason))

    def drop(self) -> None:
        """End the message without effects and without a dead letter; counted as dropped; raises LeaseLost."""
        self._settle(lambda desk: desk.drop(self._lease))

    def extend(self, seconds: float) -> None:
        """Keep the message for *seconds* from now; raises LeaseLost."""
        if self._settler is not None:
            self._settler.extend(self._lease, seconds)

    def reply(self, body: object) -> str:
        """Answer the sender; joins this thread's open transaction; returns the id of the reply."""
        if self._settler is None:
            msg = "in a handler, return the reply or call ctx.reply"
            raise InvalidArgument(msg)
        return self._settler.reply(self, body)

    def __enter__(self) -> Self:
        """Work on the message."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Settle what is not settled yet; Retry, Reject and Drop end here, other exceptions go on."""
        if self.settled:
            return False
        match error:
            case None:
                self.ack()
            case Retry():
                self.retry(error.after, str(error))
            case Reject():
                self.reject(str(error))
            case Drop():
                self.drop()
            case _:
                self.retry(reason=f"{type(error).__name__}: {error}")
        return isinstance(error, Retry | Reject | Drop)
