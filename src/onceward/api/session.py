"""Send, receive, ask and look back inside one named conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from typing_extensions import TypeForm

from onceward.core.handle.consumer import Taken
from onceward.core.handle.message import Message
from onceward.core.handle.readers import InboxConsumer, OneMessage
from onceward.core.rows.lanes import LeasedMessage
from onceward.core.run import recovery
from onceward.core.run.engine_loop import at_least_each, until_found
from onceward.core.send.add import Outbox, add_request
from onceward.core.send.block import Transaction
from onceward.core.send.compose import EVERY_AGENT
from onceward.errors import InvalidArgument, InvalidMessage, OncewardError
from onceward.file.database import Database
from onceward.file.group_commit import Block
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import check_given, checked
from onceward.message.body import Body
from onceward.message.names import plain_text
from onceward.message.options import (
    PLAIN,
    MessageOptions,
    PublishOptions,
    SendOptions,
    asking_options,
    parse_options,
    request_options,
)
from onceward.message.record import (
    MessageRecord,
    Page,
    SessionHistoryFilters,
    Status,
    Ticket,
    ticket_id,
)
from onceward.message.settings import Settings
from onceward.message.times import Span

if TYPE_CHECKING:
    from onceward.core.send.fanout import Fanout, SendResult
    from onceward.features.requests.replies import AwaitedReplies
    from onceward.features.requests.status import StatusReader
    from onceward.file.directory import OpenAgentFiles

T = TypeVar("T")


class Session:
    """
    One named conversation of an agent.

    Everything sent through it bears its name. Messages of one session to
    one recipient arrive in the order of their commits.
    """

    def __init__(
        self,
        name: str,
        *,
        db: Database,
        outbox: Outbox,
        consumer: InboxConsumer,
        files: OpenAgentFiles,
        settings: Settings,
    ) -> None:
        self.name = plain_text("session", name)
        """Name of the conversation."""
        self._db, self._outbox, self._consumer, self._settings = db, outbox, consumer, settings
        self._files = files

    @property
    def _received(self) -> str | None:
        """Return the session whose messages ``receive`` leases; None for all."""
        return self.name

    def __repr__(self) -> str:
        """Name the session."""
        return f"<Session {self.name} of {self._db.agent}>"

    def begin(self) -> AbstractContextManager[Transaction]:
        """
        Open a transaction for your statements and messages.

        Leaving the block commits, an exception rolls back.

        Used inside another ``begin`` of the same thread it joins it by savepoint.

        Raises:
            Busy: others held the file for the whole deadline; nothing was written.
            OutcomeUnknown: COMMIT raised; ask ``state`` for the ids it names.

        """
        return UserBlock(self._db.transaction(), self._is_over)

    def _is_over(self, tx: StoreTransaction) -> Transaction:
        """Return the user's view of an open transaction."""
        return Transaction(tx, self._outbox, self.name)

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Commit one message into the outbox and return its id; joins this thread's open transaction.

        Spans are seconds. The same message under the same *key* (or *message_id*) returns the id of
        the first; with another body, session, priority … it raises Conflict, which names the
        differences. Sent to ``"all"`` it is a ``broadcast``.

        Raises:
            SendError: see its subclasses; nothing was written.
            Busy, DiskFull: nothing was written.
            OutcomeUnknown: ask ``state``, or send again with the same key or id.

        """
        if to in EVERY_AGENT:
            return self._send_to_everyone(body, parse_options(options)).id
        named = parse_options(options) if options else PLAIN
        message = self._outbox.compose(self.name, to, body, named)
        add = self._outbox.add_own if to == self._db.agent else self._outbox.add
        return self._db.write(partial(add, message=message))

    def _compose(self, to: str, body: object, options: SendOptions) -> Callable[[], str]:
        """Check and serialise a message now; return a function that commits it."""
        named = parse_options(options)
        if to in EVERY_AGENT:
            return lambda: self._send_to_everyone(body, named).id
        message = self._outbox.compose(self.name, to, body, named)
        return partial(self._db.write, partial(self._outbox.add, message=message))

    def send_many(
        self, messages: Iterable[tuple[str, object]], **options: Unpack[SendOptions]
    ) -> list[str]:
        """
        Commit many (recipient, body) at once, in order, all or none; return their ids.

        The options apply to each; a key or message id is refused.
        """
        named = parse_options(options)
        if named.get("key") is not None or named.get("message_id") is not None:
            msg = "send_many gives each message its own id: use send for one with a key or id"
            raise InvalidMessage(msg)
        composed = self._outbox.composer.compose_many(self.name, messages, named)
        return self._db.write(partial(self._outbox.add_many, messages=composed))

    def broadcast(self, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Send *body* to every other registered agent of the home, in one commit.

        Returns the correlation id of all copies; the options are those of ``send``.

        Raises:
            UnknownRecipient: no other agent is registered.

        """
        return self._send_to_everyone(body, parse_options(options)).id

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """
        Send *body* to every agent that is subscribed to *topic*, in one commit.

        Returns the ids; an empty list if no agent is subscribed.
        """
        from onceward.core.send import fanout  # noqa: PLC0415 - rarely needed

        named = parse_options(options)
        copies = fanout.to_subscribers(self._outbox.composer, self.name, topic, body, named)
        return [message_id for _, message_id in self._send_fanout(copies).copies]

    def _send_to_everyone(self, body: object, options: MessageOptions) -> SendResult:
        from onceward.core.send import fanout  # noqa: PLC0415 - rarely needed

        copies = fanout.to_everyone(self._outbox.composer, self.name, body, options)
        return self._send_fanout(copies)

    def _send_fanout(self, copies: Fanout) -> SendResult:
        """Commit a message to many recipients: all copies or none."""
        if not copies.messages:
            return copies.result
        return self._db.write(partial(self._outbox.add_fanout, fanout=copies))

    # -- asking -----------------------------------------------------------------------------

    @checked
    def request(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[object] | None = None,
        timeout: Span | None = None,
        **options: Unpack[SendOptions],
    ) -> Ticket:
        """
        Send a request and return the ticket of its reply, which survives a restart.

        A reply that arrives after *timeout* seconds is kept as late. With *reply* the request
        carries the schema of the expected reply.
        """
        named = request_options(options, reply)
        return self._db.write(self._requesting(to, body, timeout, named))

    def _requesting(
        self, to: str, body: object, timeout: Span | None, options: MessageOptions
    ) -> Callable[[StoreTransaction], Ticket]:
        options.setdefault("reply_to", self._db.agent)
        message = self._outbox.compose(self.name, to, body, options)
        return partial(add_request, outbox=self._outbox, message=message, timeout=timeout)

    @checked
    def ask(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[T],
        timeout: Span = 30.0,
        **options: Unpack[SendOptions],
    ) -> T:
        """
        Send a request and wait for its reply, read as *reply*.

        Raises:
            AnswerTimeout: no reply in time; ``result`` may still get it.
            RequestFailed: the request became a dead letter at the peer, or ended without a reply.
            InvalidMessage: the reply does not fit.
            InvalidArgument: this thread has a transaction open; the reply would wait for its
                commit.

        """
        if self._db.writer.held:
            raise InvalidArgument(
                "ask inside an open transaction would wait for a message "
                "that is not committed: ask outside of it"
            )
        work = self._requesting(to, body, timeout, asking_options(options, reply))
        with self._db.outside_handler():
            ticket = self._db.write(work)
        return self.result(ticket, reply=reply, timeout=timeout)

    @checked
    def result(self, ticket: Ticket | str, *, reply: TypeForm[T], timeout: Span = 0.0) -> T:
        """
        Return the reply to a ticket, waiting at most *timeout* seconds.

        May be called again, also after a restart. It also takes the id of a message that was sent
        or received here without asking for a reply, and returns what its handler returned, until
        ``result_retention`` has passed. That is in the file of the recipient: in another file it
        can be asked for if both are in one folder.

        Raises:
            AnswerTimeout: the message has not ended; a later call may get the result.
            RequestFailed: it ended without a result, or was not handled; ``reason`` says why.
            InvalidMessage: the result does not fit.
            InvalidArgument: no such message is known here, or its recipient's file is elsewhere.

        """
        return self.gather([ticket], reply=reply, timeout=timeout)[0]

    @overload
    def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        timeout: Span = 0.0,
        return_exceptions: Literal[False] = False,
    ) -> list[T]: ...

    @overload
    def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        timeout: Span = 0.0,
        return_exceptions: bool,
    ) -> list[T | OncewardError]: ...

    @checked
    def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        timeout: Span = 0.0,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """
        Return the replies to tickets, in their order, waiting at most *timeout* seconds for all.

        If requests failed, the error of the first one, in the order of the tickets, is raised after
        all have ended; ``result`` returns the others. With *return_exceptions* the list has each
        error in the place of its reply, and an ``AnswerTimeout`` where none came in time.

        Raises:
            AnswerTimeout, RequestFailed, InvalidMessage, InvalidArgument: as for ``ask``.

        """
        awaited = self._awaited(tickets)
        in_time = self._await(awaited.look, timeout) is not None
        if return_exceptions:
            return awaited.read_each(reply, timeout)
        if not in_time:
            raise awaited.overdue(timeout)
        return awaited.read(reply)

    @checked
    def progress_of(self, ticket: Ticket | str) -> Any:
        """
        Return the last ``ctx.progress`` of a message's handler; None if there is none yet.

        *ticket* is that of a request, or the id of a message that was sent or received here.

        Raises:
            InvalidArgument: no such message is known here, or its recipient's file is elsewhere.

        """
        from onceward.features.requests.results import progress  # noqa: PLC0415 - rarely needed

        return progress(self._db, self._files.file, ticket_id(ticket))

    @checked
    def status(
        self,
        ticket: Ticket | str,
        *,
        depth: int = 1,
        after: Status | None = None,
        timeout: Span | None = 0.0,
    ) -> Status:
        """
        Return how far a message is: waiting, running, done or failed, with its progress.

        *ticket* is that of a request, or the id of a message that was sent or received here. A
        request is done when its reply is here. The status has those of the requests that the
        handler of the message has made, and with a larger *depth* those of theirs. It is read in
        the recipient's file; for a recipient in another folder it has only what receipts say.

        With the status that you have as *after*, wait until it has changed, or the message has
        ended, or *timeout* seconds have passed (None: forever).

        Raises:
            InvalidArgument: no such message is known here.

        """
        reader = self._status_reader(ticket, depth, after)
        poll = self._settings.tuning.poll_interval
        due = partial(at_least_each, poll)
        return until_found(reader.file, reader.look, timeout, poll=poll, due=due) or reader.last

    def _status_reader(
        self, ticket: Ticket | str, depth: int, after: Status | None
    ) -> StatusReader:
        from onceward.features.requests.status import StatusReader  # noqa: PLC0415 - rarely needed

        wanted = ticket_id(ticket)
        return StatusReader(self._db, self._files.file, wanted, depth=depth, after=after)

    def _awaited(self, tickets: Iterable[Ticket | str]) -> AwaitedReplies:
        from onceward.features.requests.replies import AwaitedReplies  # noqa: PLC0415 - rarely needed

        return AwaitedReplies(self._db, self._files.file, tickets)

    # -- receiving --------------------------------------------------------------------------

    def receive(
        self, type: TypeForm[Body] | str | None = None, timeout: Span = 0.0
    ) -> Message[Body] | None:
        """
        Lease the next message, waiting up to *timeout* seconds; return None if there is none.

        A session leases its own messages, a postbox those of all sessions. With a *type* only
        messages of that type are leased, and their bodies are read as it.
        """
        check_given(Session.receive, {"type": type, "timeout": timeout})
        taken = Taken[LeasedMessage]()
        try:
            found = self._take(type, self._received, timeout, taken)
        except BaseException:
            self._consumer.give_back(taken)
            raise
        return found

    def receive_one(
        self, message_id: str, type: TypeForm[Body] | str | None = None, timeout: Span = 0.0
    ) -> Message[Body] | None:
        """
        Lease the message of an id, even if others of its lane are before it.

        People answer in any order. Returns None if it cannot be leased within *timeout* seconds.
        """
        given = {"message_id": message_id, "type": type, "timeout": timeout}
        check_given(Session.receive_one, given)
        which = OneMessage(plain_text("message_id", message_id))
        taken = Taken[LeasedMessage]()
        try:
            found = self._take(type, which, timeout, taken)
        except BaseException:
            self._consumer.give_back(taken)
            raise
        return found

    @checked
    def attach(self, handle: str, type: TypeForm[Body] | str | None = None) -> Message[Body]:
        """
        Return the message of a handle from ``Message.detach``, in any process of this agent.

        Raises:
            LeaseLost: the message was settled, or its lease has ended.

        """
        return self._consumer.attach(handle, type)

    def _take(
        self,
        type: Any,
        search: str | OneMessage | None,
        timeout: Span | None,
        taken: Taken[LeasedMessage],
    ) -> Message[Any] | None:
        """Wait for a message and lease it; the caller, with the last frame, can give it back."""
        return self._await(partial(self._consumer.take, type, search, taken), timeout)

    @checked
    def receive_each(
        self, type: TypeForm[Body] | str | None = None, timeout: Span | None = None
    ) -> Iterator[Message[Body]]:
        """
        Yield messages as they come, leased as by ``receive``.

        Ends when none came for *timeout* seconds (None: never).
        """
        while True:
            taken = Taken[LeasedMessage]()
            try:
                message = self._take(type, self._received, timeout, taken)
                if message is None:
                    return
            except BaseException:
                self._consumer.give_back(taken)
                raise
            yield message

    def _await(self, look: Callable[[], T | None], timeout: Span | None) -> T | None:
        """Call *look* after every commit until it finds something or *timeout* seconds pass."""
        db = self._db
        return until_found(
            db,
            look,
            timeout,
            poll=self._settings.tuning.poll_interval,
            due=partial(recovery.next_wakeup, db),
        )

    # -- looking back -----------------------------------------------------------------------

    @checked
    def thread(self, message_id: str) -> list[MessageRecord]:
        """
        Return the conversation that a message belongs to, oldest first; consumes nothing.

        An answer never precedes its question, even if the clocks of both agents differ.
        """
        from onceward.features.history import history  # noqa: PLC0415 - rarely needed

        return history.thread(self._db, message_id)

    @checked
    def history(self, **filters: Unpack[SessionHistoryFilters]) -> Page:
        """
        Return past messages of this session, newest first; consumes nothing.

        Raises:
            InvalidArgument: a filter of that name does not exist, or its value is none.

        """
        from onceward.features.history import history  # noqa: PLC0415 - rarely needed

        return history.find(self._db, session=self.name, **filters)


class UserBlock(AbstractContextManager[Transaction]):
    """A block of a file's transaction, with the user's view of it."""

    __slots__ = ("_block", "_view", "_yours")

    def __init__(self, block: Block, view: Callable[[StoreTransaction], Transaction]) -> None:
        self._block, self._view = block, view

    def __enter__(self) -> Transaction:
        """Open the transaction; see ``Session.begin``."""
        try:
            self._yours = yours = self._view(self._block.__enter__())
        except BaseException as error:
            self._block.__exit__(type(error), error, error.__traceback__)
            raise
        return yours

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or undo the block if it failed."""
        try:
            self._yours._finish()
        except BaseException as failed:
            self._block.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._block.__exit__(kind, error, trace)
