"""Define the run that a session's handler gets, sync and async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, Literal, Protocol, TypeVar, Unpack, cast

from onceward.core.handle.call import CallParts
from onceward.core.handle.context import AsyncTransaction
from onceward.core.handle.invoke import run_coroutine
from onceward.core.handle.message import AsyncMessage, Message, ReceivedMessage
from onceward.core.handle.signatures import (
    check_given,
    is_coroutine,
    name_of,
    parameters_of,
    refuse_handler,
    required,
)
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.run.async_face import AsyncFace, OnWorker, WorkerThread, awaitable
from onceward.core.send.add import Outbox
from onceward.core.send.block import Transaction
from onceward.core.send.fanout import to_subscribers
from onceward.core.send.tasks import task
from onceward.errors import RunLost
from onceward.features.runs.runs import EarlierRun, Summary
from onceward.features.runs.scheduler import ReadMessage, StartedRun
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import checked
from onceward.message.body import encode
from onceward.message.handler_work import StoredStep
from onceward.message.ids import RepeatableIds
from onceward.message.options import (
    MessageOptions,
    PublishOptions,
    SendOptions,
    parse_options,
    reply_options,
)
from onceward.message.record import Ticket
from onceward.message.times import Span
from onceward.message.vocabulary import QUESTION, QueueMode

T = TypeVar("T")
M = TypeVar("M", bound=ReceivedMessage[Any])


class Holder(Protocol):
    """Holds the run's lease and commits for it."""

    def checkpoint(self, partial: Any) -> None:
        """Commit partial output and the messages sent so far."""
        ...

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Commit work of the run at once."""
        ...

    def more(self) -> list[ReadMessage]:
        """Add the waiting messages to the run."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the run was ended from outside."""
        ...

    def make(self, name: str) -> Any:
        """Make the part of that name, for the run's messages."""
        ...

    def earlier_steps(self, before: EarlierRun) -> tuple[StoredStep, ...]:
        """Return the steps of the run before this one."""
        ...


@dataclass(frozen=True)
class PreviousRun(Generic[M]):
    """The previous run of this session, if it did not succeed."""

    id: str
    state: Literal["aborted", "waiting", "failed"]
    """Whether it was ended from outside, has waited, or failed and is retried."""
    cause: str
    partial: Any
    """Newest output of ``checkpoint`` since the last run that succeeded or failed permanently."""
    event_ids: tuple[str, ...]
    """The ids of its messages, in order."""
    messages: tuple[M, ...]
    """Those of them that are also in this run; they are the first ones."""
    delivered: bool
    """Whether its messages count as delivered and are therefore not in this run."""
    _read_steps: Callable[[], tuple[StoredStep, ...]] = field(repr=False, compare=False)

    @cached_property
    def steps(self) -> tuple[StoredStep, ...]:
        """
        Return its steps in order, including those that it found.

        A run with other messages starts new steps: it decides which of these it can use.
        """
        return self._read_steps()


class RunFields(Generic[M]):
    """The fields of a run; ``Run`` and ``AsyncRun`` add the methods."""

    def __init__(self, started: StartedRun, messages: list[M], holder: Holder) -> None:
        self.id: str = started.run.id
        """Id of the run; another attempt at the same messages is another run."""
        self.session: str = started.run.session
        """Session that is served."""
        self.mode: QueueMode = started.run.mode
        """The mode that selected its messages."""
        self.messages: list[M] = messages
        """Distinct messages in order; the last one is the current one."""
        self.metadata: dict[str, Any] = started.metadata
        """``collect_batch`` or ``queue_batch``: count, event_ids, strategy."""
        self.summary: Summary | None = started.summary
        """Summary of messages that a full queue dropped since the last run; they come first."""
        self.previous: PreviousRun[M] | None = _previous(started.before, messages, holder)
        """The previous run, if it was aborted, has waited, or failed and is retried."""

    def __repr__(self) -> str:
        """Return the repr without the messages."""
        count = len(self.messages)
        return f"<{type(self).__name__} {self.id} of {self.session}: {self.mode}, {count} messages>"

    @property
    def message(self) -> M:
        """Return the current message."""
        return self.messages[-1]


def _previous(
    before: EarlierRun | None, messages: list[M], holder: Holder
) -> PreviousRun[M] | None:
    if before is None:
        return None
    return PreviousRun(
        before.id,
        cast("Literal['aborted', 'waiting', 'failed']", before.state),
        before.cause,
        before.partial,
        before.event_ids,
        tuple(each for each in messages if each.id in before.event_ids),
        before.consumed,
        partial(holder.earlier_steps, before),
    )


class Run(RunFields[Message[Any]], CallParts):
    """
    One call of a session's handler.

    Messages that it sends are committed with the next ``checkpoint`` or with its end, never after
    the run was ended from outside. Slow work holds no lock.
    """

    _closes = False  # its commits close it, before its end is committed
    _requests: Any
    _steps: Any
    """Parts of the call; a run sends its requests as steps."""

    def __init__(self, started: StartedRun, *, outbox: Outbox, holder: Holder) -> None:
        super().__init__(started, _messages(started.messages), holder)
        self._started, self._outbox, self._holder = started, outbox, holder
        self._drafts: list[OutgoingMessage] = []
        self._answered: set[str] = set()
        self._at_end_work: list[Callable[[Transaction], object]] = []

    @property
    def cancelled(self) -> bool:
        """
        Return whether the run was ended from outside: its effects are not committed.

        Then return from the handler at once. Under ``run_until_idle``, without a thread that checks
        this, each access reads the file.
        """
        return self._holder.cancelled

    def raise_if_cancelled(self) -> None:
        """Raise RunLost once the run was ended from outside; call it in long work."""
        if self.cancelled:
            raise RunLost(
                f"run {self.id} of session {self.session!r} was ended from outside: return at once"
            )

    def checkpoint(self, partial: object) -> None:
        """
        Commit partial output, together with all messages sent so far.

        An aborted run leaves this behind.

        Raises:
            RunLost: the run was ended from outside; nothing was written.
            InvalidMessage: the output cannot be written as JSON; nothing was written.

        """
        self._holder.checkpoint(partial)

    @checked
    def write(self, work: Callable[[Transaction], T]) -> T:
        """
        Run *work* on a transaction and commit it at once; it may be run again.

        Raises:
            RunLost: the run was ended from outside; nothing was written.

        """
        return self._holder.write(work)

    @checked
    def at_end(self, work: Callable[[Transaction], object]) -> None:
        """Run *work* in the transaction that ends the run successfully; it may be run again."""
        self._at_end_work.append(work)

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Send a message with the next checkpoint or the run's end; return its id.

        The same message under the same *key* returns the id of the first, in this run or before;
        another one raises Conflict, or fails the run if both are sent in it.
        """
        named = self._named(options)
        return self._add(self._outbox.compose(self.session, to, body, named))

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """
        Send to every peer that subscribed to *topic*, as ``send`` does; return the ids.

        The options are those of ``Session.publish``.
        """
        named, composer = self._named(options), self._outbox.composer
        copies = to_subscribers(composer, self.session, topic, body, named)
        return self._add_all(copies.messages)

    @checked
    def reply(
        self,
        body: object,
        *,
        to: ReceivedMessage[Any] | None = None,
        **options: Unpack[SendOptions],
    ) -> str:
        """Answer the current message, or *to*, as ``send`` does; return the id."""
        name, named = reply_options((to or self.message).frame, options)
        named["ids"] = self._ids
        return self._add(self._outbox.compose(self.session, name, body, named))

    def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """
        Give another agent a task in a separate session, as ``send`` does; return the dispatch id.

        However it ends there, one ``worker_result`` with that id arrives in this session.
        """
        named = self._named(options)
        return self._add(task(self._outbox, self.session, to, body, session=session, options=named))

    def _request(
        self,
        to: str,
        body: object,
        timeout: Span | None,
        options: MessageOptions,
        *,
        keep: bool = False,
    ) -> Ticket:
        self._follow(options)
        options.setdefault("reply_to", self._outbox.db.agent)
        named: MessageOptions = {**options, "kind": QUESTION, "ids": self._ids}
        message = self._outbox.compose(self.session, to, body, named)

        def work(tx: StoreTransaction) -> str:
            ticket: Ticket = self._requests.add_now(tx, message, timeout, keep=keep)
            return ticket.id

        return Ticket(self._steps.once(f"request {to}", (body,), work), to)

    _question = _request  # a run commits it at once

    def inbox(self) -> list[Message[Any]]:
        """
        Add the messages that arrived since the run began to this run; they end with it.

        ``steer`` with ``inject`` leaves new messages to this call instead of ending
        the run. Raises RunLost.
        """
        fresh = _messages(self._holder.more())
        self.messages += fresh
        return fresh

    def _follow(self, options: PublishOptions) -> None:
        options.setdefault("causation_id", self.message.id)
        options.setdefault("correlation_id", self.message.correlation_id or self.message.id)
        options.setdefault("hops", self._hops)

    def _named(self, options: PublishOptions) -> MessageOptions:
        """Check the options of a message that the run sends, and add its cause and its ids."""
        self._follow(options)
        named = parse_options(options)
        named["ids"] = self._ids
        return named

    @cached_property
    def _ids(self) -> RepeatableIds | None:
        """
        The ids of what the run sends; None for new ones.

        A run that goes on after a checkpoint sends other messages than the one that made it.
        """
        frames = [each.frame for each in self._started.messages]
        ids = self._outbox.composer.ids_of(frames, self._outbox.db.now())
        partial = None if self.previous is None else self.previous.partial
        place = ["run"] if partial is None else ["run", encode(partial).text]
        return None if ids is None else ids.within(*place)

    @property
    def _hops(self) -> int:
        return self.message.frame.hops + 1

    def _make(self, name: str) -> Any:
        return self._holder.make(name)

    def _at_end(self, work: Callable[[StoreTransaction], None]) -> None:
        self.at_end(lambda yours: work(yours._tx))

    def _close(self) -> None:
        """Refuse further steps."""
        self._close_parts()

    def _add(self, draft: OutgoingMessage) -> str:
        """Keep a message until it is committed; return its id, or that of the same one before."""
        [message_id] = self._add_all((draft,))
        return message_id

    def _add_all(self, drafts: Sequence[OutgoingMessage]) -> list[str]:
        """Keep all of some messages, or none if one of them raises Conflict; see ``_add``."""
        first = [self._known(draft) for draft in drafts]
        self._drafts += drafts
        replies = (draft.headers.in_reply_to for draft in drafts)
        self._answered.update(each for each in replies if each is not None)
        return [known or draft.id for known, draft in zip(first, drafts, strict=True)]

    def _known(self, draft: OutgoingMessage) -> str | None:
        """Return the id that a message under the same key has; raise Conflict for another one."""
        if draft.headers.key is None:
            return None
        if (stored := self._outbox.known_id(draft)) is not None:
            return stored
        named = draft.recipient, draft.headers.key
        same = (each.id for each in self._drafts if (each.recipient, each.headers.key) == named)
        return next(same, None)


def _messages(found: Sequence[ReadMessage]) -> list[Message[Any]]:
    return [Message(leased, frame, body, None) for leased, frame, body in found]


class AsyncRun(RunFields[AsyncMessage[Any]], AsyncFace[Run]):
    """
    One call of a session's ``async def`` handler; see ``Run``.

    If a run is ended from outside, its handler is cancelled.
    """

    def __init__(self, run: Run, on_worker: OnWorker) -> None:
        worker = WorkerThread(on_worker)
        AsyncFace.__init__(self, run, worker)
        messages = [AsyncMessage(message, worker) for message in run.messages]
        RunFields.__init__(self, run._started, messages, run._holder)

    @property
    def postbox(self) -> Any:
        """Return the postbox of the run, to read; see ``Context.postbox``."""
        return self._plain.postbox._face(self._off_loop)

    @property
    def cancelled(self) -> bool:
        """Return whether the run was ended from outside."""
        return self._plain.cancelled

    def raise_if_cancelled(self) -> None:
        """Raise RunLost once the run was ended from outside."""
        self._plain.raise_if_cancelled()

    query = awaitable(CallParts.query)
    checkpoint = awaitable(Run.checkpoint)
    send = awaitable(Run.send)
    publish = awaitable(Run.publish)
    reply = awaitable(Run.reply)
    dispatch = awaitable(Run.dispatch)

    async def write(self, work: Callable[[AsyncTransaction], Awaitable[T]]) -> T:
        """
        Run the coroutine function *work* on a transaction and commit it at once.

        It may run again, and holds the file's write lock: await only its transaction, nothing else
        of this file.

        Raises:
            RunLost: the run was ended from outside; nothing was written.

        """
        on_thread = _on_loop(work)
        return await self._off_loop.call(lambda: self._plain.write(on_thread))

    def at_end(self, work: Callable[[AsyncTransaction], Awaitable[object]]) -> None:
        """
        Run the coroutine function *work* in the transaction that ends the run successfully.

        It may run again, and holds the file's write lock: await only its transaction, nothing else
        of this file.
        """
        self._plain.at_end(_on_loop(work))

    async def inbox(self) -> list[AsyncMessage[Any]]:
        """Add the messages that arrived since the run began to this run; see ``Run.inbox``."""
        off_loop = self._off_loop
        fresh = [AsyncMessage(each, off_loop) for each in await off_loop.call(self._plain.inbox)]
        self.messages += fresh
        return fresh


def _on_loop(work: Callable[[AsyncTransaction], Awaitable[T]]) -> Callable[[Transaction], T]:
    """Return *work* as a function for the committing thread; its coroutine runs on this loop."""
    from asyncio import get_running_loop  # noqa: PLC0415 - async handlers only

    loop = get_running_loop()

    def on_thread(tx: Transaction) -> T:
        def start(on_worker: OnWorker) -> Awaitable[T]:
            return work(AsyncTransaction(tx, WorkerThread(on_worker)))

        found: T = run_coroutine(start, loop, lambda _: None)
        return found

    return on_thread


def check_session_signature(call: Callable[..., Any]) -> bool:
    """
    Check the signature of a session's handler; return whether it is a coroutine function.

    Raises:
        InvalidArgument: it cannot be called with the run alone; the error shows a valid signature.

    """
    is_async = is_coroutine(call)
    given = AsyncRun if is_async else Run
    shown = f"{'async ' * is_async}def {name_of(call)}(run: {given.__name__})"
    refuse = partial(refuse_handler, call, shown)
    parameters, needs = parameters_of(call, refuse)
    if needs:
        refuse(
            f"parameter {needs[0].name} depends on a function, but runs do not support dependencies"
        )
    if not parameters or len(required(parameters)) > 1:
        refuse("it must take only the run")
    check_given(parameters[0], call, given, refuse, (Run, AsyncRun))
    return is_async
