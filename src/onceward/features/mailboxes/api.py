"""Create and find mailboxes of a home, send to them, and read them in four modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Literal, Protocol, TypeVar, Unpack

from typing_extensions import TypeForm

from onceward.core.contract import Opening
from onceward.core.handle.consumer import Consumer, Taken
from onceward.core.handle.message import Message
from onceward.core.handle.readers import type_names
from onceward.core.run.engine_loop import RuntimeDeps, until_found
from onceward.core.send.block import BlockOpener, Transaction
from onceward.errors import InvalidArgument, LeaseLost, UnknownMailbox
from onceward.features.mailboxes import directory as mailboxes
from onceward.features.mailboxes.mailbox_leases import (
    ExactlyOnceLeases,
    MailboxConsumer,
    MailboxLeases,
    MailboxReader,
)
from onceward.features.mailboxes.mailbox_readers import (
    EARLIEST,
    RANKS,
    MailboxLease,
    MailboxRef,
    Start,
)
from onceward.features.mailboxes.mailboxes import Claim, CursorRead, MessageFilter, limit_of
from onceward.file.directory import DirectoryHandle, OpenAgentFiles
from onceward.file.file_checks import owner_name
from onceward.message.arguments import check_given, checks_arguments
from onceward.message.body import Body
from onceward.message.clock import Millis
from onceward.message.error_text import Hint
from onceward.message.frame import split_tags
from onceward.message.log import Log, log
from onceward.message.mailbox import MailboxInfo
from onceward.message.names import checked_description, plain_text, quoted, rank
from onceward.message.options import MessageOptions, SendOptions, parse_options
from onceward.message.record import MailboxFilters, MessageRecord
from onceward.message.settings import DAY
from onceward.message.times import Span, millis, seconds
from onceward.message.topics import TopicPolicy
from onceward.message.vocabulary import PRIORITIES, READER_MODES, ReaderMode

T = TypeVar("T")
Where = Start | Literal["earliest", "latest"]
Handler = Callable[[Message[Any], "HandlerTransaction"], object]
BATCH: Final = 100
TTL_MIN: Final = 0.001
TTL_MAX: Final = 1e9


class Announcer(Protocol):
    """Announces changes of the directory to the agents of the home."""

    def begin(self) -> None:
        """Record that a change begins, so that a crash does not lose its consequences."""

    def run(self) -> None:
        """Send the announcements of changes."""


class HandlerTransaction:
    """Transaction of a mailbox's handler: its writes and messages commit with the dedup record."""

    def __init__(self, session: BlockOpener, stack: ExitStack) -> None:
        self._session, self._stack = session, stack

    @cached_property
    def tx(self) -> Transaction:
        """Return the transaction of the mark, opened on first use."""
        return self._stack.enter_context(self._session.begin())

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """Send a message with the mark and return its id; see ``Transaction.send``."""
        return self.tx.send(to, body, **options)


class MailboxFields:
    """The fields of a mailbox; ``Mailbox`` and ``AsyncMailbox`` add the methods."""

    def __init__(self, address: MailboxInfo, *, id: str, created: bool) -> None:
        self._address = address
        self.id = id
        """Name of a public mailbox; secret id of a private one, which gives access to it."""
        self.created = created
        """Whether the call that returned this created the mailbox."""
        self.public = address.public
        """Whether every agent of the home can find it."""
        self.owner = address.owner
        """Agent in whose file the messages are kept."""
        self.ttl = None if address.ttl is None else address.ttl / 1000
        """Seconds that it lives from its creation, fixed at creation; None: forever."""
        self.expires_at = address.expires_at
        """When it ends, in milliseconds; None: never."""
        self.description = address.description
        """Purpose, as the creator described it."""
        self.newest_per_key = address.newest_per_key
        """Whether a newer message replaces an older one of the same ordering key."""

    def __repr__(self) -> str:
        """Return the repr, without the id of a private mailbox."""
        name = self._address.key if self.public else "private"
        return f"<{type(self).__name__} {name} of {self.owner}>"


@checks_arguments(but=("send", "receive", "lease"))
class Mailbox(MailboxFields):
    """
    One mailbox of the home, until it expires.

    The reader chooses the mode at each call: ``scan`` stores nothing, ``read`` moves a named
    position before it returns, ``lease`` distributes the messages among the members of a group,
    ``handle`` commits a handler's writes together with its mark. Reading never takes a
    message away from another reader; ``discard`` does.

    Raises:
        UnknownMailbox: from every call, once the mailbox has expired.

    """

    def __init__(
        self,
        address: MailboxInfo,
        reader: MailboxReader,
        deps: RuntimeDeps,
        session: BlockOpener,
        *,
        id: str,
        created: bool,
        ours: bool,
    ) -> None:
        super().__init__(address, id=id, created=created)
        self._session, self._ours = session, ours
        self._reader, self._deps = reader, deps
        self._consumer: MailboxConsumer = Consumer(deps, MailboxLeases(deps, reader))

    # -- writing --------------------------------------------------------------------------------

    def send(self, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Commit one message for this mailbox into our outbox and return its id.

        Joins this thread's open transaction. The message expires with the
        mailbox, or earlier by its own *ttl*. With *ephemeral* a restart of the
        mailbox's owner drops it, if no reader holds a lease on it by then.

        Raises:
            UnknownMailbox: the mailbox has expired.
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
        if self.newest_per_key:
            named["mailbox_key"] = options.get("ordering_key")
        return self._deps.outbox.commit(self._session.name, self.owner, body, named)

    def discard(self, message_id: str) -> bool:
        """
        Discard a message for all readers; return whether it existed.

        Joins this thread's open transaction.
        """
        return self._reader.delete(message_id)

    # -- reading without owning -------------------------------------------------------------------

    def scan(self, type: Any = None, *, timeout: Span | None = 0.0) -> Iterator[MessageRecord]:
        """
        Yield all unexpired messages, oldest first, in delivery order.

        Stores nothing, so each scan starts from the beginning. Continues with new messages until
        none arrived for *timeout* seconds (None: never ends).
        """
        read_on = self._reading(type)
        while records := self._wait(read_on, timeout):
            yield from records

    def _reading(self, wanted: Any) -> Callable[[], list[MessageRecord]]:
        """Return a function that continues where it last stopped; the position is in memory."""
        passed, kinds = [0] * RANKS, type_names(wanted)

        def step() -> list[MessageRecord]:
            while found := self._reader.scan(tuple(passed), BATCH):
                for row in found:
                    passed[row.rank] = row.seq
                records = [
                    row.record(_model(wanted))
                    for row in found
                    if kinds is None or row.type in kinds
                ]
                if records:
                    return records
            return []

        return step

    def query(
        self, type: Any = None, *, limit: int = 100, **filters: Unpack[MailboxFilters]
    ) -> list[MessageRecord]:
        """Return the messages that match all filters, newest first; changes nothing."""
        return self._reader.newest(self._filter(type, filters), limit_of(limit))

    def count(self) -> int:
        """Return the number of messages; changes nothing."""
        return self._reader.count()

    # -- reading on -------------------------------------------------------------------------------

    def read(
        self,
        reader: str,
        type: Any = None,
        *,
        limit: int = 100,
        timeout: Span | None = 0.0,
        start: Where = EARLIEST,
        consume_skipped: bool = True,
        **filters: Unpack[MailboxFilters],
    ) -> list[MessageRecord]:
        """
        Move the named position and return the messages that it moved past.

        At most once, because the position is committed first. The position also moves past messages
        that a filter (type, topics, sender, session, tags) excludes; with *consume_skipped* False
        they are kept for a later call. *start* applies to a new position; ``reset`` moves an
        existing one.
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
        type: TypeForm[Body] | str | None = None,
        *,
        limit: int = 1,
        timeout: Span | None = 0.0,
        lease: Span | None = None,
        start: Where = EARLIEST,
    ) -> list[Message[Body]]:
        """
        Lease the next messages of the group to us, each to one member at a time.

        ``with message:`` settles it. A message that is not settled within *lease* seconds (by
        default the setting of that name) goes to the next member, and settling it here then raises
        LeaseLost. *start* applies to a new group.
        """
        given: dict[str, object] = {"group": group, "type": type, "limit": limit, "start": start}
        check_given(Mailbox.lease, given | {"timeout": timeout, "lease": lease})
        claim, taken = self._claim(group, limit, lease, start), Taken[MailboxLease]()
        try:
            found = self._lease(type, claim, timeout, taken)
        except BaseException:
            self._consumer.give_back(taken)
            raise
        return found

    def _lease(
        self,
        type: TypeForm[Body] | str | None,
        claim: Claim,
        timeout: Span | None,
        taken: Taken[MailboxLease],
    ) -> list[Message[Body]]:
        return self._wait(lambda: self._consumer.take_many(type, claim, taken), timeout) or []

    def receive(
        self,
        group: str,
        type: TypeForm[Body] | str | None = None,
        *,
        timeout: Span | None = 0.0,
        start: Where = EARLIEST,
    ) -> Message[Body] | None:
        """
        Lease the next message of the group; return None if there is none.

        Waits up to *timeout* seconds (None: forever); see ``lease``.
        """
        given = {"group": group, "type": type, "timeout": timeout, "start": start}
        check_given(Mailbox.receive, given)
        claim, taken = self._claim(group, 1, None, start), Taken[MailboxLease]()
        try:
            found = self._lease(type, claim, timeout, taken)
        except BaseException:
            self._consumer.give_back(taken)
            raise
        return found[0] if found else None

    def reset(self, reader: str, start: Where = EARLIEST, *, mode: ReaderMode = "cursor") -> None:
        """
        Set the position of a cursor, or of a group (*mode* ``lease``), back or forward.

        Joins this thread's open transaction. Leases of the reader, and messages that it kept, are
        deleted: a member's late settling raises LeaseLost. Messages that a group handled exactly
        once stay handled. A name without a position gets one.

        Raises:
            InvalidArgument: *start* is a message that does not exist; nothing was changed.

        """
        if mode not in READER_MODES:
            msg = f"mode {mode!r} has no position: reset a cursor, or a group with mode='lease'"
            raise InvalidArgument(msg)
        self._reader.reset(mode, plain_text("reader", reader), _start(start))

    def _claim(self, group: str, limit: int, lease: Span | None, start: Where) -> Claim:
        lease = self._deps.settings.lease if lease is None else lease
        return Claim(
            group=plain_text("group", group),
            start=_start(start),
            limit=limit_of(limit),
            owner=owner_name(),
            lease_for=millis("lease", lease),
        )

    def handle(
        self,
        group: str,
        handler: Handler,
        type: TypeForm[object] | str | None = None,
        *,
        limit: int = 1,
        timeout: Span | None = 0.0,
        start: Where = EARLIEST,
    ) -> int:
        """
        Lease and handle the next messages; return how many were handled.

        The writes of *handler* commit with the record that the group is done with the message: a
        group handles it only once. Retry, Reject and Drop work as in an agent's handlers, any other
        exception is a retry by policy.

        Raises:
            InvalidArgument: the mailbox is in another agent's file: no commit spans two files.

        """
        if not self._ours:
            raise InvalidArgument(
                f"the mailbox is kept by {self.owner}: exactly once needs a handler "
                "in the same file, so run it there, or use lease"
            )
        claim = self._claim(group, limit, None, start)
        leases = ExactlyOnceLeases(self._deps, self._reader, claim.group)
        consumer: MailboxConsumer = Consumer(self._deps, leases)
        taken = Taken[MailboxLease]()
        try:
            held = self._wait(lambda: consumer.take_many(type, claim, taken), timeout)
            return sum(self._handle(message, handler) for message in held or [])
        except BaseException:  # those that were not handled
            consumer.give_back(taken)
            raise

    def _handle(self, message: Message[Any], handler: Handler) -> bool:
        """Run a handler and settle its message; a lost lease rolls back the handler's writes."""
        try:
            with message, ExitStack() as stack:
                handler(message, HandlerTransaction(self._session, stack))
                message.ack()
        except LeaseLost as error:
            _log_of(message, self._reader.db.agent).failure("warning", "mailbox lease lost", error)
            return False
        except Exception as error:  # noqa: BLE001 - the message was settled by it
            _log_of(message, self._reader.db.agent).failure("warning", "handler failed", error)
        return True

    def _filter(self, wanted: Any, filters: MailboxFilters) -> MessageFilter:
        """Return the filter, its topics checked against those of its session."""
        return _filter(
            wanted,
            filters,
            self._deps.outbox.composer.topics.of(filters.get("session") or self._session.name),
        )

    # -- waiting ----------------------------------------------------------------------------------

    def _wait(self, look: Callable[[], list[Any]], timeout: Span | None) -> list[Any] | None:
        db = self._reader.db
        return until_found(
            db,
            lambda: look() or None,
            timeout,
            poll=self._deps.settings.tuning.poll_interval,
            due=self._reader.until_due,
        )


@checks_arguments()
class Mailboxes:
    """
    The mailboxes of the home.

    A public mailbox has a name, and every agent may find it. A private one has an id that cannot be
    guessed: an agent with the id may send and read, others cannot detect it. Both end only by their
    time to live.
    """

    def __init__(
        self,
        home: DirectoryHandle,
        deps: RuntimeDeps,
        session: BlockOpener,
        files: OpenAgentFiles,
        announcer: Callable[[], Announcer] | None,
    ) -> None:
        self._db, self._home, self._deps = deps.db, home, deps
        self._session, self._files, self._announcer = session, files, announcer

    def ensure(
        self,
        name: str | None = None,
        *,
        ttl: Span | None = DAY,
        public: bool = False,
        description: str = "",
        newest_per_key: bool = False,
    ) -> Mailbox:
        """
        Return a mailbox; create it in our file if there is none.

        With *public* it has the *name*: lower-case letters and digits in dotted segments. Without a
        name a private one is created; only its ``id`` leads to it. With *newest_per_key* a message
        with an ``ordering_key`` ends the older one of that key; others stay. The first creation
        fixes *ttl* (seconds; None: forever) and *newest_per_key*: a later call returns the mailbox
        unchanged.

        Raises:
            UnknownMailbox: *name* is the id of a private mailbox that does not exist.
            InvalidArgument: the name or the time to live breaks its rule.

        """
        if name is not None and not public:
            return self._ours(name)
        secret, wanted = self._wanted(name, ttl, public=public, description=description)
        wanted = replace(wanted, newest_per_key=newest_per_key)
        made, created = self._announced(
            wanted, lambda: mailboxes.ensure(self._home.directory, wanted)
        )
        return self._mailbox(made, secret, created=created)

    def _ours(self, name: str) -> Mailbox:
        """Return the mailbox of that id or name; the error says how to create one."""
        try:
            return self.get(name)
        except UnknownMailbox as error:
            raise UnknownMailbox(
                "no mailbox has this name or id, or it has expired: to create a public one "
                f"{Hint.SET_PUBLIC}, to create a private one omit the name"
            ) from error

    def create(
        self,
        name: str | None = None,
        *,
        ttl: Span | None = DAY,
        public: bool = False,
        description: str = "",
        newest_per_key: bool = False,
    ) -> Mailbox:
        """
        Create a mailbox in our file, like ``ensure``, but fail if it exists.

        Raises:
            DuplicateMailbox: one of that name exists; nothing was changed.

        """
        if name is not None and not public:
            msg = f"a private mailbox gets its own id: omit the name, or {Hint.SET_PUBLIC}"
            raise InvalidArgument(msg)
        secret, wanted = self._wanted(name, ttl, public=public, description=description)
        wanted = replace(wanted, newest_per_key=newest_per_key)
        made = self._announced(wanted, lambda: mailboxes.create(self._home.directory, wanted))
        return self._mailbox(made, secret, created=True)

    def _announced(self, wanted: MailboxInfo, work: Callable[[], T]) -> T:
        """Change the directory and announce a public mailbox to the home."""
        if self._announcer is None or not wanted.public:
            return work()
        announcer = self._announcer()
        announcer.begin()
        made = work()
        announcer.run()
        return made

    def get(self, name: str) -> Mailbox:
        """
        Return a mailbox by its public name or its private id.

        Raises:
            UnknownMailbox: there is none; an expired one and one that never existed look the same.

        """
        if not self._home.known:
            raise UnknownMailbox
        return self._mailbox(mailboxes.find(self._home.directory, name), name, created=False)

    def list(self) -> list[MailboxInfo]:
        """Return the public mailboxes by name; private ones are never listed."""
        return mailboxes.listed(self._home.directory) if self._home.known else []

    def _wanted(
        self, name: str | None, ttl: Span | None, *, public: bool, description: str
    ) -> tuple[str, MailboxInfo]:
        secret = mailboxes.public_name(name or "") if public else mailboxes.new_secret()
        stored = secret if public else mailboxes.secret_name(secret)
        about = checked_description(description)
        return secret, MailboxInfo(public, stored, self._db.agent, _millis(ttl), 0, None, about)

    def _mailbox(self, address: MailboxInfo, name: str, *, created: bool) -> Mailbox:
        ours = address.owner == self._db.agent
        db = self._files.file(address.owner)
        if db is None:
            raise UnknownMailbox
        reader = MailboxReader(db, MailboxRef(mailbox=address.key, expires_at=address.expires_at))
        deps = replace(self._deps, db=db)
        return Mailbox(address, reader, deps, self._session, id=name, created=created, ours=ours)

    def _sweep(self, limit: int) -> int:
        """Delete up to *limit* expired mailboxes of the home; return how many."""
        return mailboxes.sweep(self._home.directory, limit) if self._home.known else 0


def _millis(ttl: Span | None) -> Millis | None:
    if ttl is None:
        return None
    span = seconds("ttl", ttl)
    if not TTL_MIN <= span <= TTL_MAX:
        msg = f"ttl {quoted(ttl)} must be at least a millisecond, {Hint.NO_EXPIRY}"
        raise InvalidArgument(msg)
    return round(1000 * span)


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
    """Return the class for reading bodies; None for a type given by its name."""
    return None if isinstance(wanted, str) else wanted


def _filter(wanted: Any, filters: MailboxFilters, known: TopicPolicy) -> MessageFilter:
    """Return the checked filter; raise InvalidArgument for an unknown one."""
    unknown = set(filters) - MailboxFilters.__annotations__.keys()
    if unknown:
        known_names = "type, topics, sender, session and tags"
        raise InvalidArgument(f"filters of a mailbox are {known_names}, not {sorted(unknown)}")
    topics = filters.get("topics")
    patterns = None if topics is None else known.check_filter(topics)
    return MessageFilter(
        types=type_names(wanted),
        topics=patterns,
        sender=filters.get("sender"),
        session=filters.get("session"),
        tags=_tags(filters.get("tags")),
    )


def _tags(asked: str | Sequence[str] | None) -> frozenset[str] | None:
    """Return the requested tags; raise InvalidArgument for an invalid tag."""
    if asked is None:
        return None
    tags = [asked] if isinstance(asked, str) else list(asked)
    for tag in tags:
        if split_tags(plain_text("tag", tag)) != (tag,):
            msg = f"tag {tag!r} has a comma, or spaces around it: name one tag at a time"
            raise InvalidArgument(msg)
    return frozenset(tags)


def mailboxes_of(opening: Opening) -> Mailboxes:
    """Return the mailboxes of an opening."""
    return Mailboxes(
        opening.home, opening.deps, opening.session, opening.files, opening.offers.get("announcer")
    )


def sweep(opening: Opening, limit: int) -> int:
    """Forget up to *limit* mailboxes of the home that have expired; return how many."""
    return opening.once(mailboxes_of)._sweep(limit)
