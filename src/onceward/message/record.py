"""Define the filters of readers, the records that they get, and the ticket of a reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict, TypeVar

from onceward.errors import InvalidArgument, InvalidMessage, StoreFault
from onceward.message.body import decode
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.names import PriorityName, quoted
from onceward.message.times import Moment
from onceward.message.vocabulary import (
    CancelOutcome,
    HistoryBox,
    Kind,
    MessageState,
    Priority,
    StatusState,
)


class CommonFilters(TypedDict, total=False):
    """The keyword arguments of every ``history``; None means no filter."""

    limit: int
    """Maximum messages of the page; default 100."""
    offset: int
    """Messages to skip first."""
    after: str | None
    """``Page.next`` of the previous page; continues there, whatever arrived since."""
    count: bool
    """Whether ``total_count`` is counted; default True."""
    sender: str | None
    """Agent that sent it."""
    recipient: str | None
    """Agent that it was sent to."""
    type: str | None
    """Wire name of its type."""
    topic: str | None
    """Its topic, or a pattern of topics."""
    state: MessageState | None
    """Its state now."""
    since: Moment | None
    """Sent or received since then: a datetime, milliseconds, a date, or a duration ago (2h)."""
    until: Moment | None
    """Sent or received before then."""
    kind: Kind | Sequence[Kind] | None
    """Its kind in a channel, or one of several."""
    priority: PriorityName | Sequence[PriorityName] | None
    """Its priority, or one of several."""
    correlation_id: str | None
    """Id of its conversation's first message."""
    content: str | None
    """A regular expression that matches in the body's text."""


class SessionHistoryFilters(CommonFilters, total=False):
    """The keyword arguments of ``Session.history``."""

    channel: str | None
    """Channel that it was sent to."""


class ChannelHistoryFilters(CommonFilters, total=False):
    """The keyword arguments of ``Channel.history``."""

    session: str | None
    """Conversation that it belongs to."""


class HistoryFilters(SessionHistoryFilters, total=False):
    """The keyword arguments of ``Postbox.history``."""

    session: str | None
    """Conversation that it belongs to."""


class MailboxFilters(TypedDict, total=False):
    """The filters of ``Mailbox.query`` and ``Mailbox.cursor``; None means no filter."""

    topics: str | Sequence[str] | None
    """Its topic, or patterns of which one must match."""
    sender: str | None
    """Agent that sent it."""
    session: str | None
    """Conversation that it was sent in."""
    tags: str | Sequence[str] | None
    """A tag of its header ``tags``, or several of which one must match."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """An awaited reply; keep its ``id`` to ask again after a restart."""

    id: str
    recipient: str


def ticket_id(ticket: Ticket | str) -> str:
    """Return the id of a ticket; a text is an id; raise InvalidArgument for any other value."""
    if isinstance(ticket, str):
        return ticket
    if isinstance(ticket, Ticket):
        return ticket.id
    msg = f"ticket={quoted(ticket)} must be a ticket of a request, or the id of a message"
    raise InvalidArgument(msg)


@dataclass(frozen=True, slots=True)
class Status:
    """How far a message is, at the moment when it was read."""

    id: str
    recipient: str
    state: StatusState
    """``waiting`` (``waits_for`` may say for what), ``running``, ``done`` or ``failed``."""
    waits_for: str | None = None
    """A reply, a message, the end of a sleep …, in the words of the view ``onceward_inbox``."""
    reason: str | None = None
    """Why it failed, or why its last attempt did."""
    attempts: int = 0
    """Calls of its handler that have begun and count."""
    progress: Any = None
    """The last ``ctx.progress`` of its handler."""
    children: tuple[Status, ...] = ()
    """Of the requests that its handler has made, in their order."""
    last_error: str | None = None
    """Text of the error with which it became a dead letter."""

    @property
    def ended(self) -> bool:
        """Return whether the message is done or has failed."""
        return self.state in {"done", "failed"}

    def __str__(self) -> str:
        """Return the state, and what it waits for."""
        return self.state if self.waits_for is None else f"waiting for {self.waits_for}"


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group of messages; ``box.groups`` returns it."""

    id: str
    session: str
    recipient: str
    """Agent that gets a message when all of them have ended."""
    type: str
    """Type of the message that tells it."""
    sent: int
    """Messages of the group."""
    open: int
    """Those that have not ended."""
    failed: int
    """Those that have ended and were not handled."""
    created_at: Millis
    ended_at: Millis | None
    """When the message of its end was sent."""
    message_id: str | None
    """That message."""
    last_error: str | None
    """Why that message could not be sent yet; it is tried again."""
    data: Any


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A member of a pool, as the file of a sender has it."""

    agent: str
    credits: int
    """Maximum messages of this sender that it may have, unless it has told another number."""
    home: int
    """Whether the home of the sender tells that it is a member."""
    works: int
    """Whether a process of the home handles its messages; 1 for a member of another machine."""
    failures: int
    """Failed pushes to it since the last one that succeeded."""
    in_flight: int
    """Messages that it has, and that have not ended."""
    takes: int
    """Maximum of them now, by its last answer, or else its credits."""


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """A pool to which this agent sends; ``box.pools`` returns it."""

    pool: str
    waiting: int
    """Messages that no member has."""
    waiting_since_at: Millis | None
    in_flight: int
    """Messages that a member has, and that have not ended."""
    in_doubt: int
    """Those of the waiting ones that wait for ``release``, because the file was restored."""
    members: tuple[PoolMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The outcome of cancelling a message; true only if it certainly takes no effect."""

    id: str
    outcome: CancelOutcome
    state: str
    """State of the message as this file knows it, or as its recipient reported it."""

    def __bool__(self) -> bool:
        """Return whether the message is cancelled."""
        return self.outcome == "cancelled"


@dataclass(frozen=True, slots=True)
class Cancellations:
    """The ids of the messages that ``cancel_all`` covered, by outcome."""

    cancelled: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    too_late: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MessageRecord:
    """
    A message as stored in a file; its fields have the same names as in ``Message``.

    ``body`` is None if there is a ``body_error``. Fields without a column are read from the frame
    on access.
    """

    id: str
    """Id of the message, the same in every file."""
    sender: str
    """Agent that sent it."""
    recipient: str
    """Agent that it was sent to."""
    session: str
    """Conversation that it belongs to."""
    type: str
    """Wire name of its type."""
    topic: str | None
    """Topic that it was published under."""
    priority: Priority
    state: MessageState
    """State at the time of reading."""
    attempts: int
    """Attempts to deliver or handle it."""
    at: Millis
    """When this file committed it, as sent or as received."""
    reason: str | None
    """Why it ended, unless it succeeded."""
    text: str = field(repr=False)
    """The stored frame."""
    box: HistoryBox
    """``out`` or ``in``; of a dead letter where it ended: ``outbox``, ``inbox`` or ``queue``."""
    channel: str | None = None
    """Channel that it was sent to."""
    kind: str | None = None
    """Kind of a channel's message: text, command, query …."""
    correlation_id: str | None = None
    """Id of the conversation's first message."""
    wanted: Any = field(default=None, repr=False, metadata={"column": False})
    """Type as which the body is read; None for plain values."""
    sound: bool = field(default=True, metadata={"column": False})
    """Whether the stored message matches its digest, if that was compared."""

    def __repr__(self) -> str:
        """Name the record without its body, which may be secret or large."""
        return f"<{type(self).__name__} {self.id} {self.type} from {self.sender}, {self.state}>"

    @cached_property
    def frame(self) -> Frame:
        """The message as it travelled, with all attributes; raises InvalidMessage if damaged."""
        return Frame.parse(self.text)

    @cached_property
    def body(self) -> Any:
        """The body, as an instance of the requested type, else as plain values."""
        return self._read.value

    @property
    def body_error(self) -> str | None:
        """Why the body cannot be read: lost, damaged, or not of the requested type."""
        return self._read.error

    @cached_property
    def _read(self) -> _ReadBody:
        if not self.sound:
            return _ReadBody(error="the stored message does not match its digest")
        frame = self.frame
        if frame.body_error is not None:
            return _ReadBody(error=frame.body_error)
        try:
            frame = frame.with_stored_body()
            return _ReadBody(
                value=decode(frame.data, frame.data_base64, self.wanted, frame.datacontenttype)
            )
        except (InvalidMessage, StoreFault) as error:
            return _ReadBody(error=str(error))

    @property
    def created_at(self) -> Millis:
        """When it was sent, by the sender's clock, or else when this file committed it."""
        sent = self.frame.time
        return self.at if sent is None else round(sent.timestamp() * 1000)

    @property
    def received_at(self) -> Millis | None:
        """When it was committed into this inbox; None for a sent message."""
        return None if self.box in {"out", "outbox"} else self.at

    @property
    def causation_id(self) -> str | None:
        """Id of the message that caused it."""
        return self.frame.causationid

    @property
    def in_reply_to(self) -> str | None:
        """Id of the request that it answers."""
        return self.frame.inreplyto

    @property
    def expires_at(self) -> Millis | None:
        """The moment at which it expires; None: never."""
        return self.frame.expires_at

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, from the header ``tags``."""
        return self.frame.tags

    @property
    def late(self) -> bool:
        """Whether it answers a channel's query and arrived after the query's time to live."""
        return self.box == "in" and self.frame.is_late(self.at)

    @property
    def headers(self) -> dict[str, str | int | bool]:
        """The extension attributes that the sender added."""
        return self.frame.headers


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a longer answer."""

    messages: list[MessageRecord]
    total_count: int | None
    """Number of items on all pages; None if not counted."""
    has_more: bool
    next: str | None = None
    """Start of the next page, for ``after``; None on the last page."""


@dataclass(frozen=True, slots=True)
class _ReadBody:
    """A body, or the reason why it cannot be read."""

    value: Any = None
    error: str | None = None


def read_record(
    text: str,
    received_at: Millis,
    wanted: Any = None,
    *,
    state: MessageState = "pending",
    attempts: int = 0,
    sound: bool = True,
) -> MessageRecord:
    """
    Return a received message from its frame alone, its body read as *wanted*.

    A body that cannot be read is reported as ``body_error`` and blocks no other message.

    Raises:
        InvalidMessage: the text is not a frame.

    """
    frame = Frame.parse(text)
    record = MessageRecord(
        id=frame.id,
        sender=frame.sender,
        recipient=frame.recipient,
        session=frame.session,
        type=frame.type,
        topic=frame.topic,
        priority=frame.priority_name,
        state=state,
        attempts=attempts,
        at=received_at,
        reason=None,
        text=text,
        box="in",
        channel=frame.channel,
        kind=frame.kind,
        correlation_id=frame.correlationid,
        wanted=wanted,
        sound=sound,
    )
    vars(record)["frame"] = frame  # parsed once
    return record


T = TypeVar("T")


def after_causes(
    items: Sequence[T], id_of: Callable[[T], str], causes_of: Callable[[T], Iterable[str]]
) -> Iterator[T]:
    """
    Yield *items* in order, but each after the first item of the ids that caused it.

    Equal times, or times of two clocks, do not order a question and its answer.
    """
    first: dict[str, int] = {}
    for place, item in enumerate(items):
        first.setdefault(id_of(item), place)
    told: set[int] = set()
    for place in range(len(items)):
        waiting, held = [place], {place}  # the item, its cause, the cause of that
        while waiting:
            causes = (first[each] for each in causes_of(items[waiting[-1]]) if each in first)
            cause = next((each for each in causes if each not in told and each not in held), None)
            if cause is not None:
                waiting.append(cause)
                held.add(cause)
                continue
            last = waiting.pop()
            if last not in told:
                yield items[last]
            told.add(last)
