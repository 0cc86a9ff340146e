"""Define a received message for handlers and readers, sync and async."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cached_property, lru_cache, partial
from types import NoneType, TracebackType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import BaseModel
from typing_extensions import is_typeddict

from onceward.core.end import received
from onceward.core.end.received import SettledMessage
from onceward.core.handle import claim
from onceward.core.handle.claim import ClaimRequest
from onceward.core.rows import inbox, lanes
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run.async_face import AsyncFace, OffLoop, awaitable
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.run.event_emitter import EventEmitter
from onceward.core.send import requests
from onceward.errors import (
    Drop,
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    OncewardError,
    Reject,
    Retry,
)
from onceward.file import file_checks
from onceward.file.connection import UNTYPED, raise_meant
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Attempt, Hooks
from onceward.message.arguments import checked
from onceward.message.body import decode, message_type
from onceward.message.clock import Millis
from onceward.message.error_text import Hint, error_text, is_honest, message_of
from onceward.message.frame import Frame
from onceward.message.ids import new_token
from onceward.message.names import plain_text
from onceward.message.options import reply_options
from onceward.message.retry import RetryPolicy
from onceward.message.times import Span, millis
from onceward.message.validators import check_type
from onceward.message.vocabulary import (
    HANDLED,
    Dead,
    Done,
    LeaseInfo,
    Priority,
    RetryAt,
    Settlement,
)

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


L = TypeVar("L", bound=LeaseInfo)
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Leases(Protocol[L, S_contra]):
    """How the messages of one source are leased and settled."""

    policy: RetryPolicy
    """Retries of messages that readers put back or never settled."""
    at_most_once: bool
    """Whether a message is acknowledged before its reader gets it."""

    def claim(self, wanted: Any, search: S_contra, taken: Taken[L]) -> Sequence[L]:
        """Lease the next messages that *search* selects, and keep them in *taken*; maybe none."""
        ...

    def problem(self, leased: L) -> Settlement | None:
        """Return the settlement of a message that no reader may see; None for all others."""
        ...

    def settle(self, tx: StoreTransaction, leased: L, settlement: Settlement) -> None:
        """End a lease; raise LeaseLost if it is no longer held."""
        ...

    def mark(self, tx: StoreTransaction, leased: L) -> None:
        """Record that the reader's group handled a message; raise LeaseLost if it already had."""
        ...

    def extend(self, tx: StoreTransaction, leased: L, until: Millis) -> None:
        """Keep a lease until a moment; raise LeaseLost if it is no longer held."""
        ...


UNREAD: Final = "its reader was cancelled before it got the message"


class Taken(Generic[L]):
    """
    The leases of one call for a caller that may never get them.

    They are kept with the commit, which may be known to no one else: a signal's exception can come
    between any two instructions.
    """

    __slots__ = ("leases",)

    def __init__(self) -> None:
        self.leases: Sequence[L] = ()

    def keep(self, tx: StoreTransaction, leases: Sequence[L]) -> Sequence[L]:
        """Remember leases once the transaction is committed; return them."""
        if leases:
            tx.wake(partial(setattr, self, "leases", leases))  # also if an interrupt is deferred
        return leases

    def keep_one(self, tx: StoreTransaction, lease: L | None) -> Sequence[L]:
        """Remember a lease once the transaction is committed; return it, if there is one."""
        return self.keep(tx, () if lease is None else (lease,))


class Consumer(Generic[L, S]):
    """The readers' side of one source: an inbox, a channel or a mailbox."""

    def __init__(self, deps: RuntimeDeps, leases: Leases[L, S]) -> None:
        self.agent, self.hooks = deps.outbox.db.agent, deps.hooks
        self.deps = deps
        self._db, self._leases = deps.db, leases
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)

    # -- leasing ----------------------------------------------------------------------------

    def take(self, wanted: Any, search: S, taken: Taken[L]) -> Message[Any] | None:
        """Lease the next readable message and return it; None if there is none."""
        found = self.take_many(wanted, search, taken)
        return found[0] if found else None

    def give_back(self, taken: Taken[L]) -> None:
        """Put back what a call has leased that an exception ended, as if it had not been leased."""
        for leased in taken.leases:
            with suppress(OncewardError):  # settled; or the file failed, and the lease runs out
                self.put_back(leased)

    def take_many(self, wanted: Any, search: S, taken: Taken[L]) -> list[Message[Any]]:
        """
        Lease the next messages and return the readable ones; empty if there are none.

        A message that can never be read as *wanted* becomes a dead letter, and an expired one ends.
        """
        try:
            while claimed := self._leases.claim(wanted, search, taken):
                opened = [self._open(leased, wanted) for leased in claimed]
                if messages := [message for message in opened if message is not None]:
                    return messages
        except UNTYPED as error:
            raise_meant(self._db.explain(error), error)
            raise
        return []

    def message(self, leased: L, wanted: Any) -> Message[Any]:
        """Return a leased message with its body read; raises InvalidMessage."""
        frame = Frame.accepted(leased.frame)
        model = None if isinstance(wanted, str) else wanted
        return Message(leased, frame, decode(frame.data, frame.data_base64, model), self)

    def _open(self, leased: L, wanted: Any) -> Message[Any] | None:
        """Return a leased message; None if it was settled instead."""
        try:
            problem = self._leases.problem(leased)
            message = None if problem else self.message(leased, wanted)
        except InvalidMessage as error:
            problem, message = Dead("rejected", str(error), tried=False), None
        if problem is not None:
            self._end(leased, problem)
        elif message is not None and self._leases.at_most_once:
            message.ack()
        return message

    def detach(self, leased: Any) -> str:
        """Detach a lease from this process; return the handle for ``attach``."""
        return self._lanes.detach(leased)

    def attach(self, handle: str, wanted: Any) -> Message[Any]:
        """Return a message that was detached, with its body read."""
        return self.message(cast("L", self._lanes.attach(handle)), wanted)

    @property
    def _lanes(self) -> LaneLeases:
        if isinstance(self._leases, LaneLeases):
            return self._leases
        msg = "a mailbox's message is leased by its position: give the position, and read again"
        raise InvalidArgument(msg)

    # -- settling ---------------------------------------------------------------------------

    def ack(self, leased: L) -> StoreTransaction:
        """End the lease of a message that its reader has handled."""
        return self._db.write(partial(self._acknowledge, leased=leased))

    def drop(self, leased: L) -> StoreTransaction:
        """End the message without effects."""
        return self._end(leased, Done("dropped"))

    def reject(self, leased: L, reason: str) -> StoreTransaction:
        """Make the message a dead letter."""
        return self._end(leased, Dead("rejected", reason))

    def retry(self, leased: L, reason: str, after: Span | None) -> StoreTransaction:
        """Put the message back, or make it a dead letter if its retries are used up."""
        policy = self._leases.policy
        if policy.exhausted(leased.attempt):
            return self._end(leased, Dead("attempts_spent", reason))
        delay = (
            policy.delay(leased.attempt, self.deps.rng) if after is None else millis("after", after)
        )
        return self._end(leased, RetryAt(self._db.now() + delay, reason))

    def put_back(self, leased: L) -> StoreTransaction:
        """Put the message back as if it had not been leased."""
        return self._end(leased, RetryAt(self._db.now(), UNREAD, counted=False))

    def extend(self, leased: L, seconds: Span) -> None:
        """Keep the lease for *seconds* from now; raises LeaseLost."""
        wanted = millis("seconds", seconds)
        self._db.write(lambda tx: self._leases.extend(tx, leased, tx.now + wanted))

    def reply(self, message: Message[Any], body: object) -> str:
        """Answer the message's sender from the agent's own outbox; return the reply's id."""
        to, options = reply_options(message.frame, {})
        return self.deps.outbox.commit(message.session, to, body, options)

    def _end(self, leased: L, settlement: Settlement) -> StoreTransaction:
        return self._db.write(partial(self._settle, leased=leased, settlement=settlement))

    def _acknowledge(self, tx: StoreTransaction, leased: L) -> StoreTransaction:
        self._settle(tx, leased, HANDLED)
        self._leases.mark(tx, leased)
        return tx

    def _settle(self, tx: StoreTransaction, leased: L, settlement: Settlement) -> StoreTransaction:
        """End a lease; return the transaction, this thread's open one if there is one."""
        self._leases.settle(tx, leased, settlement)
        self._emitter.lease_ended(tx, [(leased, settlement)])
        return tx


HANDLE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]+)")


def never_settled(leased: LeaseInfo, policy: RetryPolicy) -> Dead | None:
    """Return the end of a message whose retries are used up without a reader settling it."""
    if leased.attempt > 1 and policy.exhausted(leased.attempt - 1):
        return Dead("attempts_spent", "no reader settled it", tried=False)
    return None


class LaneLeases:
    """Settle inbox messages by the leases of their lanes."""

    at_most_once = False

    def __init__(self, deps: RuntimeDeps, policy: RetryPolicy) -> None:
        self._db, self._deps, self.policy = deps.db, deps, policy
        self._owner, self._entered = file_checks.owner_name(), False

    def enter(self) -> None:
        """Let other processes know whether this one lives, before its first lease."""
        if not self._entered:
            self._entered = True
            lease = round(1000 * self._deps.settings.lease)
            self._db.in_flight.enter(self._owner, "reader", lease)

    def problem(self, leased: LeasedMessage) -> Settlement | None:
        """Return the settlement of an expired, damaged or exhausted message; else None."""
        now = 0 if leased.expires_at is None else self._db.now()
        return leased.undeliverable(now) or never_settled(leased, self.policy)

    def settle(self, tx: StoreTransaction, leased: LeasedMessage, settlement: Settlement) -> None:
        """End the lease, and report to the caller of a dispatched task; raises LeaseLost."""
        if settlement is HANDLED and received.ASKS not in leased.frame:
            received.settle_handled(tx, leased)
        else:
            received.settle(tx, [SettledMessage(leased, settlement)], {})
        if requests.NAMES_CALLER in leased.frame and not isinstance(settlement, RetryAt):
            requests.tell(tx, self._deps.outbox, leased, requests.outcome_of(settlement))
        tx.after_commit(partial(self._notify_freed, leased.lane.lane_id))

    def _notify_freed(self, lane_id: int) -> None:
        """Notify other readers of a lane that is free again and in which more messages wait."""
        notifier = self._db.notifier
        if notifier.is_heard("in"):
            with suppress(OncewardError):  # the lease has ended, and its reader need not know
                if lanes.has_more(self._db.read, lane_id):
                    notifier.notify("in")

    def mark(self, tx: StoreTransaction, leased: LeasedMessage) -> None:
        """Do nothing: settling an inbox message has recorded it."""

    def extend(self, tx: StoreTransaction, leased: LeasedMessage, until: Millis) -> None:
        """Keep the lease of the message's lane; raises LeaseLost."""
        if not lanes.extend(tx, leased.lane, until=until):
            raise lease_lost(leased)

    # -- leases that outlive a process ------------------------------------------------------

    def detach(self, leased: LeasedMessage) -> str:
        """Detach a lease from this process; return the handle for ``attach``."""
        secret = new_token()
        if not self._db.write(
            lambda tx: lanes.transfer(tx, leased.lane, f"{lanes.DETACHED}/{secret}")
        ):
            raise lease_lost(leased)
        return f"{leased.seq}.{leased.lane.lane_id}.{leased.lane.token}.{leased.attempt}.{secret}"

    def attach(self, handle: str) -> LeasedMessage:
        """
        Return the lease of a handle; settling it proves that it is still held.

        Raises:
            InvalidArgument: *handle* is not what ``detach`` returned.
            LeaseLost: the message was settled, or its lease ran out.

        """
        parts = HANDLE.fullmatch(handle) if isinstance(handle, str) else None
        if parts is None:
            msg = f"this is not a handle: {Hint.DETACHED}"
            raise InvalidArgument(msg)
        seq, lane_id, token, attempt = map(int, parts.groups()[:4])
        lane = Lease(lane_id, token, f"{lanes.DETACHED}/{parts[5]}", isolate=False)
        found = claim.find_held(self._db.read, seq, lane, attempt)
        if found is None:
            msg = (
                "that message is no longer leased: it was settled, or its lease ran out and "
                "another reader has it"
            )
            raise LeaseLost(msg)
        return found


class OneMessage(NamedTuple):
    """The search for one message of an inbox."""

    id: str


class InboxLeases(LaneLeases):
    """Lease the messages of an inbox: of a session, None for any, or one by its id."""

    def __init__(self, deps: RuntimeDeps) -> None:
        super().__init__(deps, deps.policy)
        self._lease_for = round(1000 * deps.settings.lease)
        self._arrivals = 0
        """Those of this process that were known at the last look."""

    def claim(
        self, wanted: Any, search: str | OneMessage | None, taken: Taken[LeasedMessage]
    ) -> Sequence[LeasedMessage]:
        """Lease the next message of the types that *wanted* names, or the one of an id."""
        if isinstance(search, OneMessage):
            return self._claim_one(search.id, taken)
        types = type_names(wanted)
        if disabled_by_environment() or not (self._has_arrival() or self._is_due()):
            return ()
        self.enter()
        request = ClaimRequest(messages=1, lanes=-1 if types else 8, session=search, types=types)
        with self._db.outside_handler():
            # A claim that a power cut undoes is repeated: it has no consequences.
            return self._db.write(partial(self._claim, request=request, taken=taken), synced=False)

    def _claim(
        self, tx: StoreTransaction, request: ClaimRequest, taken: Taken[LeasedMessage]
    ) -> Sequence[LeasedMessage]:
        claimed = claim.claim(tx, request, owner=self._owner, until=tx.now + self._lease_for)
        return taken.keep(tx, claimed[0] if claimed else ())

    def _has_arrival(self) -> bool:
        """Return whether this process has stored messages since the last call."""
        before, self._arrivals = self._arrivals, self._db.notifier.arrivals
        return before != self._arrivals

    def _is_due(self) -> bool:
        """Return whether a lane may be claimed now."""
        paused_at, ready, due_at = lanes.agenda(self._db.read)
        due = ready or (due_at is not None and due_at <= self._db.now())
        return paused_at is None and bool(due or self._db.in_flight.dead())

    def _claim_one(self, message_id: str, taken: Taken[LeasedMessage]) -> Sequence[LeasedMessage]:
        """Lease a waiting message, even after others of its lane."""
        seq = inbox.find_received(self._db.read, message_id)
        paused = lanes.agenda(self._db.read).paused_at is not None
        if seq is None or paused or disabled_by_environment():
            return ()
        self.enter()
        with self._db.outside_handler():
            return self._db.write(
                lambda tx: taken.keep_one(
                    tx,
                    claim.claim_one(
                        tx, seq, owner=self._owner, lease_for=lambda _: self._lease_for
                    ),
                )
            )


InboxConsumer = Consumer[LeasedMessage, str | OneMessage | None]


def lease_lost(leased: LeasedMessage) -> LeaseLost:
    """Return the error for a lease that ran out or was taken over."""
    return LeaseLost(f"the lease on message {leased.id} ran out; another reader has it")


def type_names(wanted: Any) -> tuple[str, ...] | None:
    """
    Return the wire names for ``receive(wanted)``; None for any.

    Raises:
        InvalidArgument: *wanted* is not a type, the name of one, or None.

    """
    try:
        return _cached_names(wanted)
    except TypeError:  # metadata of Annotated that cannot be hashed
        return _read_names(wanted)


def _read_names(wanted: Any) -> tuple[str, ...] | None:
    if wanted is None or wanted is Any:
        return None
    if isinstance(wanted, str):
        return (plain_text("type", wanted),)
    check_type("type", wanted)
    if isinstance(wanted, type) and PLAIN.get(wanted) == "json" and wanted not in (dict, list):
        return (message_type(wanted),)  # a program that sends numbers names their type
    return tuple(dict.fromkeys(_names_of(wanted)))


_cached_names = lru_cache(maxsize=1024)(_read_names)


def _names_of(wanted: Any) -> Iterator[str]:
    """Yield the wire names of the bodies that fit a type."""
    origin, parts = get_origin(wanted), get_args(wanted)
    kind = origin or wanted
    if origin is Annotated:
        yield from _names_of(parts[0])
    elif origin in {Union, UnionType}:
        for part in parts:
            yield from _names_of(part)
    elif origin is Literal:
        for value in parts:
            yield from _names_of(type(value))
    elif isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind)):
        yield message_type(wanted)
    elif kind in PLAIN or origin is not None or is_typeddict(kind):
        yield PLAIN.get(kind, "json")
    else:
        yield message_type(wanted)


PLAIN: Final[dict[Any, str]] = {
    str: "text",
    bytes: "bytes",
    **dict.fromkeys((dict, list, tuple, set, frozenset, int, float, bool, NoneType), "json"),
}
"""The wire names of bodies without a class of their own."""
