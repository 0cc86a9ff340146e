"""A mailbox in your hands: send to it, and read it in one of four modes. Whoever has the name or the id may do both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Literal, Unpack

from onceward.api.session import Session
from onceward.db.file_checks import owner_name
from onceward.errors import InvalidArgument, LeaseLost
from onceward.model.log import Log, log
from onceward.model.names import plain_text, rank
from onceward.model.record import MessageRecord
from onceward.model.send_options import MessageOptions, SendOptions, parse_options
from onceward.model.topics import TopicPolicy
from onceward.model.vocabulary import PRIORITIES
from onceward.runtime.agent import type_names
from onceward.runtime.consumer import Consumer
from onceward.runtime.deps import RuntimeDeps
from onceward.runtime.engine import until_found
from onceward.runtime.mailbox_leases import ExactlyOnceLeases, MailboxConsumer, MailboxLeases
from onceward.runtime.mailbox_reader import MailboxReader
from onceward.runtime.message import Message
from onceward.runtime.transaction import Transaction
from onceward.store import mailboxes
from onceward.store.directory.mailboxes import MailboxInfo
from onceward.store.mailbox_readers import EARLIEST, RANKS, Start
from onceward.store.mailboxes import Claim, CursorRead, MessageFilter, limit_of

Where = Start | Literal["earliest", "latest"]
Handler = Callable[[Message[Any], "HandlerTransaction"], object]
BATCH = 100


class HandlerTransaction:
    """What a handler of a mailbox writes and sends: one transaction, opened on first use, committed with the mark."""

    def __init__(self, session: Session, stack: ExitStack) -> None:
        self._session, self._stack = session, stack

    @cached_property
    def tx(self) -> Transaction:
        """The transaction that the mark commits with; work done before the first use holds no lock."""
        return self._stack.enter_context(self._session.begin())

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """Promise a message with the mark; takes what ``Transaction.send`` takes; returns its id."""
        return self.tx.send(to, body, **options)


class Mailbox:
    """
    One mailbox of the home, until it expires.

    The reader says at each call how it reads: ``replay`` stores nothing,
    ``cursor`` moves a named position before it returns, ``lease`` shares the
    messages out among the members of a group, ``exactly_once`` commits a
    handler's writes together with its mark. Reading never takes a message
    away from another reader; ``delete`` does.

    Raises:
        NoMailbox: from every call, once the mailbox has expired.

    """

    def __init__(
        self,
        address: MailboxInfo,
        reader: MailboxReader,
        deps: RuntimeDeps,
        session: Session,
        *,
        id: str,
        created: bool,
        ours: bool,
    ) -> None:
        self.id = id
        """The name of a public mailbox. The id of a private one, which is the right to it: keep it secret."""
        self.created = created
        """Whether the call that returned this made the mailbox."""
        self._address, self._session, self._ours = address, session, ours
        self._reader, self._deps = reader, deps
        self._consumer: MailboxConsumer = Consumer(deps, MailboxLeases(deps, reader))
        self.public = address.public
        self.owner = address.owner
        """Agent in whose file the messages are kept."""
        self.ttl = None if address.ttl is None else address.ttl / 1000
        """Seconds that it lives, counted from its creation, as fixed by the first who made it; None is for ever."""
        self.expires_at = address.expires_at
        """When it ends, in milliseconds; None is never."""
        self.description = address.description

    def __repr__(self) -> str:
        """Name the mailbox; a private one not by its id."""
        return f"<Mailbox {self._address.key if self.public else 'private'} of {self.owner}>"

    # -- writing --------------------------------------------------------------------------------

    def send(self, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Commit one message for this mailbox into our outbox; joins this thread's open transaction; returns its id.

        It expires with the mailbox, or earlier by its own *ttl*. With
        *ephemeral* a restart of the mailbox's owner drops it, if no reader has
        it in hand by then.

        Raises:
            NoMailbox: the mailbox has expired.
            SendError: see its subclasses; nothing was written.

        """
        self._reader.check_alive()
        if options.get("ephemeral") is None:
            options["ephemeral"] = (
                PRIORITIES[rank(options.get("priority", "normal"))]
                in self._deps.settings.ephemeral_priorities
            )
        named: MessageOptions = {
            **parse_options(options),
            "mailbox": self._address.key,
            "ends_at": self.expires_at,
        }
        return self._deps.sender.commit(self._session.name, self.owner, body, named)

    def delete(self, message_id: str) -> bool:
        """Take a message away from all readers; say whether it was there. Joins this thread's open transaction."""
        return self._reader.delete(message_id)

    # -- reading without owning -------------------------------------------------------------------

    def replay(self, type: Any = None, *, timeout: float | None = 0.0) -> Iterator[MessageRecord]:
        """
        Yield everything that has not expired, from the oldest in delivery order; stores nothing, so each replay begins anew.

        Goes on with what comes, until nothing came for *timeout* seconds; never ends when that is None.
        """
        walk = self.walk(type)
        while letters := self._wait(walk, timeout):
            yield from letters

    def walk(self, wanted: Any) -> Callable[[], list[MessageRecord]]:
        """Return the call that reads on from where it stopped the last time, position in memory."""
        passed, kinds = [0] * RANKS, type_names(wanted)

        def step() -> list[MessageRecord]:
            while rows := self._reader.replay(tuple(passed), BATCH):
                for row in rows:
                    passed[row.rank] = row.seq
                letters = [
                    row.record(_model(wanted)) for row in rows if kinds is None or row.type in kinds
                ]
                if letters:
                    return letters
            return []

        return step

    def query(self, type: Any = None, *, limit: int = 100, **filters: Any) -> list[MessageRecord]:
        """Return messages, newest first; filters: topics, sender, session. Changes nothing."""
        return self._reader.newest(self._filter(type, filters), limit_of(limit))

    def tail(self, limit: int = 10) -> list[MessageRecord]:
        """Return the newest messages, the oldest of them first. Changes nothing."""
        return self._reader.newest(mailboxes.ALL, limit_of(limit))[::-1]

    def count(self) -> int:
        """Return how many messages are there. Changes nothing."""
        return self._reader.count()

    # -- reading on -------------------------------------------------------------------------------

    def cursor(
        self,
        reader: str,
        type: Any = None,
        *,
        limit: int = 100,
        timeout: float | None = 0.0,
        start: Where = EARLIEST,
        consume_skipped: bool = True,
        **filters: Any,
    ) -> list[MessageRecord]:
        """
        Move the named position and return what it passed: at most once, because the position is committed first.

        What a filter (type, topics, sender, session) excludes is passed too, for good; with *consume_skipped* False
        it is kept for a later call. *start* holds for a position that is new.
        """
        how = CursorRead(
            name=plain_text("reader", reader),
            start=_start(start),
            wanted=self._filter(type, filters),
            limit=limit_of(limit),
            consume_skipped=consume_skipped,
        )
        return self._wait(lambda: self._reader.read_on(how, _model(type)), timeout) or []

    def lease(
        self,
        group: str,
        type: Any = None,
        *,
        limit: int = 1,
        timeout: float | None = 0.0,
        lease: float | None = None,
        start: Where = EARLIEST,
    ) -> list[Message[Any]]:
        """
        Lease the next messages of the group to us, each to one member at a time.

        ``with message:`` settles it. What is not settled within *lease* seconds
        (by default the setting of that name) goes to the next member, and our
        own settling then raises LeaseLost. *start* holds for a group that is new.
        """
        claim = self._claim(group, limit, lease, start)
        return self._wait(lambda: self._consumer.take_many(type, claim), timeout) or []

    def receive(
        self,
        group: str,
        type: Any = None,
        *,
        timeout: float | None = 0.0,
        start: Where = EARLIEST,
    ) -> Message[Any] | None:
        """Lease the next message of the group, waiting at most *timeout* seconds; None where there is none; see ``lease``."""
        found = self.lease(group, type, timeout=timeout, start=start)
        return found[0] if found else None

    def _claim(self, group: str, limit: int, lease: float | None, start: Where) -> Claim:
        seconds = self._deps.settings.lease if lease is None else lease
        return Claim(
            group=plain_text("group", group),
            start=_start(start),
            limit=limit_of(limit),
            owner=owner_name(),
            lease_for=round(1000 * seconds),
        )

    def exactly_once(
        self,
        group: str,
        handler: Handler,
        type: Any = None,
        *,
        limit: int = 1,
        timeout: float | None = 0.0,
        start: Where = EARLIEST,
    ) -> int:
        """
        Lease, handle and mark the next messages: what *handler* writes commits with the mark that the group is done with it.

        Retry, Reject and Drop mean what they mean in an agent's handlers, any other exception is a retry by policy.
        Returns how many were handled; a message is handled once by a group for ever.

        Raises:
            InvalidArgument: the mailbox is another agent's: our file cannot commit together with its.

        """
        if not self._ours:
            msg = f"the mailbox is kept by {self.owner}: exactly once needs a handler in the same file, so run it there, or use lease"
            raise InvalidArgument(msg)
        claim = self._claim(group, limit, None, start)
        leases = ExactlyOnceLeases(self._deps, self._reader, claim.group)
        consumer: MailboxConsumer = Consumer(self._deps, leases)
        held = self._wait(lambda: consumer.take_many(type, claim), timeout)
        return sum(self._handle(message, handler) for message in held or [])

    def _handle(self, message: Message[Any], handler: Handler) -> bool:
        """Run a handler and settle its message; a lease that was lost meanwhile undoes what the handler wrote."""
        try:
            with message, ExitStack() as stack:
                handler(message, HandlerTransaction(self._session, stack))
                message.ack()
        except LeaseLost as error:
            _log_of(message, self._reader.db.agent).failure("warning", "mailbox lease lost", error)
            return False
        except Exception as error:  # noqa: BLE001 - every exception is a verdict about this message, and it was settled so
            _log_of(message, self._reader.db.agent).failure("warning", "handler failed", error)
        return True

    def _filter(self, wanted: Any, filters: dict[str, Any]) -> MessageFilter:
        """Return the filter that the caller's words mean, by the topics that its session knows."""
        return _filter(
            wanted,
            filters,
            self._deps.sender.topics.of(filters.get("session") or self._session.name),
        )

    # -- waiting ----------------------------------------------------------------------------------

    def _wait(self, look: Callable[[], list[Any]], timeout: float | None) -> list[Any] | None:
        db = self._reader.db
        return until_found(
            db,
            lambda: look() or None,
            timeout,
            poll=self._deps.settings.poll_interval,
            due=self._reader.until_due,
        )


def _log_of(message: Message[Any], agent: str) -> Log:
    return log.bind(
        agent=agent,
        session=message.session,
        message_id=message.id,
        type=message.type,
        attempt=message.attempt,
    )


def _start(start: Where) -> Start:
    return start if isinstance(start, Start) else Start(start)


def _model(wanted: Any) -> Any:
    """Return the class that bodies are read as; a type given by its name alone leaves them plain."""
    return None if isinstance(wanted, str) else wanted


def _filter(wanted: Any, filters: dict[str, Any], known: TopicPolicy) -> MessageFilter:
    """Return the filter that the caller's words mean; raises InvalidArgument for words there are not."""
    unknown = set(filters) - {"topics", "sender", "session"}
    if unknown:
        msg = f"filters of a mailbox are type, topics, sender and session, not {sorted(unknown)}"
        raise InvalidArgument(msg)
    topics = filters.get("topics")
    patterns = None if topics is None else known.check_filter(topics)
    return MessageFilter(
        types=type_names(wanted),
        topics=patterns,
        sender=filters.get("sender"),
        session=filters.get("session"),
    )
