"""Define the options of a send, of a handler and of a step, each listed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from onceward.errors import HandlerSignal, InvalidArgument, InvalidMessage, LeaseLost, Paused
from onceward.message.clock import Millis
from onceward.message.error_text import members
from onceward.message.frame import (
    EPHEMERAL,
    INT32,
    RESERVED_ATTRIBUTES,
    Frame,
    check_extension,
)
from onceward.message.names import (
    PriorityName,
    agent_name,
    plain_text,
    quoted,
    rank,
    refuse_options,
    same_names,
)
from onceward.message.retry import RetryPolicy, policy
from onceward.message.times import GivenRate, Point, Span, millis, point, seconds
from onceward.message.validators import check_type, reply_schema
from onceward.message.vocabulary import ANSWER, QUESTION

if TYPE_CHECKING:
    from onceward.message.group_key import GroupKey
    from onceward.message.times import Rate


class PublishOptions(TypedDict, total=False):
    """The keyword arguments of every ``publish``; all are optional."""

    type: str | None
    """Wire name of the message type; default: the one that its class declares."""
    key: str | None
    """
    The same message under the same key returns the first id; another message raises Conflict.

    It is known until ``retention`` after the end of the message.
    """
    priority: PriorityName
    """critical, urgent (high), normal, low or background."""
    ttl: Span | None
    """Time after which the message expires instead of being handled."""
    delay: Span | None
    """Delay before it may leave: seconds, a timedelta, or text such as 2h."""
    at: Point | None
    """Earliest moment at which it leaves: a datetime, milliseconds, or a date as text."""
    reply_to: str | None
    """Agent that gets the reply; default: the sender."""
    correlation_id: str | None
    """Id of the conversation's first message; replies inherit it."""
    causation_id: str | None
    """Id of the message that this one answers or follows from."""
    hops: int
    """Number of messages that led to this one; default: one more than the message being handled."""
    in_reply_to: str | None
    """Id of the request that this message answers."""
    headers: Mapping[str, str | int | bool] | None
    """Extension attributes of the frame: 1 to 20 lower-case letters and digits."""
    ordering_key: str | None
    """The unit of order; default: the session."""
    ephemeral: bool
    """Whether a restart of the recipient may drop the message before a reader takes it."""
    message_id: str | None
    """The caller's own id, under which sending again is safe."""


class SendOptions(PublishOptions, total=False):
    """The keyword arguments of every ``send``."""

    topic: str | None
    """Topic of the message; handlers can be selected by it."""


class ScheduleOptions(TypedDict, total=False):
    """The keyword arguments of a scheduled message: those of a send that apply to each of many."""

    type: str | None
    priority: PriorityName
    ttl: Span | None
    topic: str | None
    reply_to: str | None
    correlation_id: str | None
    headers: Mapping[str, str | int | bool] | None
    ordering_key: str | None
    ephemeral: bool


class MessageOptions(SendOptions, total=False):
    """
    The options of a message including internal ones; checked by ``parse_options``.

    ``Composer.compose`` turns them into ``FrameHeaders``, which is frozen.
    """

    channel: str | None
    """The channel that the message belongs to."""
    kind: str | None
    """The kind of a channel's message."""
    answer_by: int | None
    """When the query that the message answers ends, in milliseconds."""
    mailbox: str | None
    """The mailbox that the message is for."""
    mailbox_key: str | None
    """Key for which that mailbox keeps the newest message."""
    reply_schema: str | None
    """The JSON schema of the expected reply."""
    ends_at: int | None
    """When that mailbox expires, in milliseconds: the message does not outlive it."""
    system: bool
    """Whether a reserved topic may be published."""
    max_size: int | None
    """Maximum bytes of the body, if a channel allows fewer than the file."""
    ids: Callable[[str, str], str] | None
    """Returns the id of a message to a recipient, of a type; None for new ones."""


PLAIN: Final = MessageOptions()
"""No options."""
Read = Callable[[MessageOptions, Millis], Any]
"""Reads one of the given options, checked; a span counts from the given time."""


def _text(name: str) -> Read:
    def read(given: MessageOptions, _: Millis) -> str | None:
        value = cast("Mapping[str, str | None]", given)[name]
        return None if value is None else plain_text(name, value)

    return read


def _plain(name: str) -> Read:
    return lambda given, _: cast("Mapping[str, Any]", given)[name]


def _reply_to(given: MessageOptions, _: Millis) -> str | None:
    name = given["reply_to"]
    return None if name is None else agent_name(name)


def _hops(given: MessageOptions, _: Millis) -> int:
    hops = given["hops"]
    if isinstance(hops, bool) or not isinstance(hops, int) or not 0 <= hops < INT32:
        raise InvalidMessage(f"hops {quoted(hops)} must be a number of messages")
    return hops


def _due(given: MessageOptions, now: Millis) -> Millis | None:
    """Return when a message may leave; None for at once."""
    delay, at = given.get("delay"), given.get("at")
    if at is not None:
        if delay is not None:
            msg = "at and delay both say when the message may leave: give one of them"
            raise InvalidMessage(msg)
        due_at = point("at", at, error=InvalidMessage)
        return due_at if due_at > now else None
    wait = 0 if delay is None else millis("delay", delay, error=InvalidMessage)
    return now + wait if wait else None


def _expiry(given: MessageOptions, now: Millis) -> Millis | None:
    """Return when a message expires: after its time to live, or earlier with its mailbox."""
    ttl, ends_at = given.get("ttl"), given.get("ends_at")
    expires_at = None if ttl is None else now + millis("ttl", ttl, error=InvalidMessage)
    if ends_at is None or expires_at is None:
        return ends_at if expires_at is None else expires_at
    return min(expires_at, ends_at)


def given_headers(options: MessageOptions | SendOptions) -> Mapping[str, Any]:
    """Return the caller's extension attributes; raise InvalidMessage unless it is a mapping."""
    headers = options.get("headers")
    if headers is None:
        return {}
    if not isinstance(headers, dict) and not isinstance(headers, Mapping):
        msg = f"headers={quoted(headers)} must be a mapping of names to values"
        raise InvalidMessage(msg)
    return headers


def _extensions(given: MessageOptions, _: Millis) -> dict[str, Any] | None:
    """Return the checked extension attributes of a message, or None."""
    ephemeral = given.get("ephemeral")
    headers: dict[str, Any] = dict(given_headers(given))
    if ephemeral is True:
        headers[EPHEMERAL] = True
    elif ephemeral is not None and ephemeral is not False:
        msg = f"ephemeral={quoted(ephemeral)} must be True or False"
        raise InvalidMessage(msg)
    for name, value in headers.items():
        if name in RESERVED_ATTRIBUTES:
            msg = f"header {name!r} is an attribute of the frame: use send's argument"
            raise InvalidMessage(msg)
        check_extension(name, value)
    return headers or None


READ: Final[Mapping[str, tuple[str, Read]]] = {
    "topic": ("topic", _plain("topic")),  # checked by the rules of its session
    "priority": ("rank", lambda given, _: rank(given["priority"])),
    "ordering_key": ("ordering_key", _text("ordering_key")),
    "correlation_id": ("correlation_id", _text("correlation_id")),
    "causation_id": ("causation_id", _text("causation_id")),
    "in_reply_to": ("in_reply_to", _text("in_reply_to")),
    "reply_to": ("reply_to", _reply_to),
    "ttl": ("expires_at", _expiry),
    "ends_at": ("expires_at", _expiry),
    "delay": ("due_at", _due),
    "at": ("due_at", _due),
    "key": ("key", _text("key")),
    "message_id": ("chosen_id", lambda given, _: given["message_id"] is not None),
    "hops": ("hops", _hops),
    "headers": ("headers", _extensions),
    "ephemeral": ("headers", _extensions),
    "channel": ("channel", _text("channel")),
    "kind": ("kind", _text("kind")),
    "mailbox": ("mailbox", _text("mailbox")),
    "mailbox_key": ("mailbox_key", _text("mailbox_key")),
    "reply_schema": ("reply_schema", _plain("reply_schema")),
    "answer_by": ("answer_by", _plain("answer_by")),
}
"""For each option the field of ``FrameHeaders`` that it sets, and its reader."""
NO_FIELD: Final = frozenset({"type", "system", "max_size", "ids"})
"""Options that the composer reads: they set no field, or choose the message's template."""


same_names("a message", MessageOptions.__annotations__, READ.keys() | NO_FIELD)


def read_options(given: MessageOptions, now: Millis) -> dict[str, Any]:
    """Return the fields of a message's headers that its options set, checked."""
    fields: dict[str, Any] = {}
    for name in given:
        if name not in NO_FIELD:
            field, read = READ[name]
            fields[field] = read(given, now)
    return fields


def parse_options(given: SendOptions | PublishOptions) -> MessageOptions:
    """Return the keyword arguments of a send; raises TypeError for a name that is not an option."""
    unknown = given.keys() - SendOptions.__annotations__.keys()
    if unknown:
        more = "; a session has its own send"
        refuse_options("a send", unknown, SendOptions.__annotations__, more)
    return cast("MessageOptions", given)


def asking_options(given: SendOptions, reply: object) -> MessageOptions:
    """Return the options of a request whose reply is read at once; see ``request_options``."""
    if reply is None:
        check_type("reply", reply)
    return request_options(given, reply)


def request_options(given: SendOptions, reply: object) -> MessageOptions:
    """
    Return the options of a request, with the schema of the *reply* that it expects.

    Raises:
        InvalidArgument: no reply can be read as *reply*.

    """
    schema, named = reply_schema(reply), parse_options(given)
    return named if schema is None else {**named, "reply_schema": schema}


def reply_options(frame: Frame, options: SendOptions) -> tuple[str, MessageOptions]:
    """Return the recipient of a reply and the options that tie it to its message."""
    tied: SendOptions = {
        "in_reply_to": frame.id,
        "causation_id": frame.id,
        "hops": frame.hops + 1,
        "correlation_id": frame.correlationid or frame.id,
    }
    named: SendOptions = tied | options
    if frame.priority_name != "normal":
        named.setdefault("priority", frame.priority_name)
    given = parse_options(named)
    if _may_be_asked_again(frame):
        given.setdefault("kind", ANSWER)
    return frame.replyto or frame.sender, given


def _may_be_asked_again(frame: Frame) -> bool:
    """Return whether a restored sender makes this request under the same id again."""
    same_id = frame.kind == QUESTION or frame.idempotencykey is not None or frame.chosenid
    return same_id and frame.replyto == frame.sender


MOST: Final = 2**62
"""The largest number of an option; SQLite holds it."""
WITHIN: Final = 0.2
"""Default seconds that a message waits for others of its batch."""
ALONE: Final = (
    "concurrency", "rate", "key", "debounce", "throttle", "unique_for", "keep_result",
)  # fmt: skip
"""Options that a batch handler does not have."""
Errors = type[Exception] | tuple[type[Exception], ...]
"""A class of exceptions, or several."""


class HandlerOptions(TypedDict, total=False):
    """The keyword arguments of ``on``, ``every`` and ``cron``; all are optional."""

    attempts: int | None
    """Attempts before the message becomes a dead letter; default: as in *retry*."""
    retry: RetryPolicy | str | None
    """When to retry, and when to give up; default: the postbox's policy."""
    retry_on: Errors | None
    """Exceptions that are retried; any other makes the message a dead letter at once."""
    no_retry: Errors | None
    """Exceptions that make the message a dead letter at once."""
    timeout: Span | None
    """Maximum time of one call; default: the setting ``handler_timeout``."""
    unique_for: Span | None
    """Time during which messages with the same type and body as an earlier one are dropped."""
    concurrency: int | None
    """Maximum simultaneous calls in all processes on the file; default: as many as workers."""
    rate: GivenRate | None
    """Maximum rate of calls in all processes on the file: ``10/m``, or a number per second."""
    key: str | Callable[[Any], object] | None
    """
    By which *rate* and *concurrency* apply to each group of messages, and groups take turns: an
    attribute such as ``session``, ``body.FIELD``, ``headers.NAME``, or a function of the body.
    """
    debounce: Span | None
    """Quiet time after which the last message (of a *key*) is handled; earlier ones are dropped."""
    throttle: Span | None
    """Time after a message (of a *key*) was handled in which others are dropped."""
    batch: int | None
    """Maximum messages of one call, which gets a list of bodies; for an exact type or topic."""
    within: Span | None
    """Maximum time that a message waits for others of its batch; default: 0.2 s."""
    keep_result: bool | None
    """
    Keep what it returns for messages that ask for no reply, for ``box.result``.

    By default any value but None is kept, if it can be stored; True also keeps None, and fails a
    call whose value cannot be stored; False keeps none.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRules:
    """The options of a handler, checked."""

    attempts: int | None = None
    retry: RetryPolicy | None = None
    retry_on: tuple[type[Exception], ...] | None = None
    no_retry: tuple[type[Exception], ...] = ()
    timeout: float | None = None
    unique_for: Millis | None = None
    concurrency: int | None = None
    rate: Rate | None = None
    key: GroupKey | None = None
    debounce: Millis | None = None
    throttle: Millis | None = None
    batch: int | None = None
    within: float = WITHIN
    keep_result: bool | None = None

    @property
    def is_grouped(self) -> bool:
        """Whether its messages wait for the turns of their groups."""
        return self.key is not None or self.debounce is not None

    def forbids_retry_after(self, error: BaseException) -> bool:
        """Return whether *error* ends a message, however many attempts are left."""
        if isinstance(error, HandlerSignal | Paused | LeaseLost):
            return False
        try:
            return self._excludes(error)
        except Exception:  # noqa: BLE001 - the user's classes decide what an instance of them is
            return True

    def _excludes(self, error: BaseException) -> bool:
        single = _single(error)
        if any(isinstance(each, self.no_retry) for each in (error, *single)):
            return True
        if self.retry_on is None or isinstance(error, self.retry_on):
            return False
        return not all(isinstance(each, self.retry_on) for each in single)


def _single(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group and its nested groups; any other exception alone."""
    found, left = [], [error]
    while left:
        each = left.pop()
        left += members(each)[::-1]
        if not issubclass(type(each), BaseExceptionGroup):
            found.append(each)
    return found


PLAIN_RULES: Final = HandlerRules()


def _check_batch(options: HandlerOptions) -> None:
    """Refuse options that work only without, or only with ``batch``."""
    if options.get("batch") is None:
        if "within" in options:
            msg = f"within={quoted(options['within'])} is how long a batch waits: also give batch"
            raise InvalidArgument(msg)
        return
    for name in ALONE:
        if options.get(name) is not None:
            raise InvalidArgument(f"{name}={quoted(options[name])}: a batch handler has no {name}")


def flag(field: str, given: object) -> bool:
    """Return a switch; raise InvalidArgument for any other value."""
    if isinstance(given, bool):
        return given
    raise InvalidArgument(f"{field}={quoted(given)} must be True or False")


def _policy(field: str, given: RetryPolicy | str) -> RetryPolicy:
    if isinstance(given, RetryPolicy | str):
        return policy(given)
    raise InvalidArgument(
        f"{field}={quoted(given)} must be a RetryPolicy, or text such as 10x 1s..60s ±10%; "
        "retry_on and no_retry choose by exception"
    )


def _rate(field: str, given: GivenRate) -> Rate:
    from onceward.message.times import read_rate  # noqa: PLC0415 - rarely needed

    return read_rate(field, given)


def _key(field: str, given: object) -> GroupKey:
    from onceward.message.group_key import read_key  # noqa: PLC0415 - rarely needed

    return read_key(field, given)


def whole_number(field: str, given: int | None, why: str) -> int | None:
    """Return a number from 1, or None; raises InvalidArgument for any other."""
    if given is None or (type(given) is int and 0 < given <= MOST):
        return given
    raise InvalidArgument(f"{field}={quoted(given)}: {why}")


def _some_time(field: str, span: Span) -> Millis:
    found = millis(field, span)
    if not found:
        raise InvalidArgument(f"{field}={quoted(span)}: must be more than 0")
    return found


def positive_span(field: str, span: Span) -> float:
    """Return the seconds of a call's time limit; raise InvalidArgument for 0."""
    found = seconds(field, span)
    if not found:
        raise InvalidArgument(f"{field}={quoted(span)}: must be more than 0")
    return found


def _classes(field: str, given: Errors) -> tuple[type[Exception], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(each, type) and issubclass(each, Exception) for each in classes):
        msg = f"{field}={quoted(given)} must be a class of Exception, or several of them"
        raise InvalidArgument(msg)
    return classes


READ_HANDLER: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "attempts": lambda name, given: whole_number(name, given, "a handler runs at least once"),
    "retry": _policy,
    "retry_on": _classes,
    "no_retry": _classes,
    "timeout": positive_span,
    "unique_for": _some_time,
    "concurrency": lambda name, given: whole_number(name, given, "at least one call runs"),
    "rate": _rate,
    "key": _key,
    "debounce": _some_time,
    "throttle": _some_time,
    "batch": lambda name, given: whole_number(name, given, "a call has at least one message"),
    "within": seconds,
    "keep_result": flag,
}
"""A reader for each option of a handler, called with its name and its value, which is not None."""
same_names("a handler", HandlerOptions.__annotations__, HandlerRules.__annotations__, READ_HANDLER)


def handler_rules(options: HandlerOptions) -> HandlerRules:
    """Return the options of a handler, checked; raises InvalidArgument or TypeError."""
    unknown = options.keys() - HandlerOptions.__annotations__.keys()
    if unknown:
        refuse_options("a handler", unknown, HandlerOptions.__annotations__)
    _check_batch(options)
    if options.get("throttle") is not None and options.get("unique_for") is not None:
        raise InvalidArgument("throttle and unique_for drop messages by different rules: give one")
    return HandlerRules(**_read(READ_HANDLER, options))


def _read(
    readers: Mapping[str, Callable[[str, Any], Any]], options: Mapping[str, object]
) -> dict[str, Any]:
    """Return the given options as their readers return them; None means not given."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: readers[name](name, value) for name, value in given.items()}


class StepOptions(TypedDict, total=False):
    """The keyword arguments of ``ctx.step`` and ``@step``; all are optional."""

    name: str
    """Name of the step; default: the function's. Concurrent steps need distinct names."""
    version: str
    """Marks a changed step, so that it is called again."""
    attempts: int | None
    """Calls of the function before its error reaches the handler; default 1, or as in *retry*."""
    retry: RetryPolicy | str | None
    """When to call the function again, and when to give up; default: the postbox's policy."""
    retry_on: Errors | None
    """Exceptions that are retried; any other reaches the handler at once."""
    no_retry: Errors | None
    """Exceptions that are not retried."""
    keep_failure: bool | None
    """Store the last error: later calls of the handler get it, and the function is not called."""
    tx: bool | None
    """Commit the function's writes, its messages and its result in one commit."""
    timeout: Span | None
    """
    Maximum time of one call of the function, after which it fails with TimeoutError.

    A coroutine is cancelled; a plain function fails once it returns. ``step.extend`` prolongs it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """The options of a step, checked."""

    name: str | None = None
    version: str = ""
    retried: HandlerRules | None = None
    """When the function is called again; None for never."""
    keep_failure: bool = False
    tx: bool = False
    timeout: float | None = None
    """Seconds."""


PLAIN_STEP: Final = StepRules()
RETRIES: Final = ("attempts", "retry", "retry_on", "no_retry")
READ_STEP: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "name": plain_text,
    "version": lambda name, given: given if given == "" else plain_text(name, given),
    "keep_failure": flag,
    "tx": flag,
    "timeout": positive_span,
}
"""A reader for each option of a step, besides those of ``RETRIES``."""
same_names("a step", StepOptions.__annotations__, [*READ_STEP, *RETRIES])
same_names("a step", StepRules.__annotations__, [*READ_STEP, "retried"])


def step_rules(options: StepOptions) -> StepRules:
    """Return the options of a step, checked; raises InvalidArgument or TypeError."""
    if not options:
        return PLAIN_STEP
    unknown = options.keys() - StepOptions.__annotations__.keys()
    if unknown:
        refuse_options("a step", unknown, StepOptions.__annotations__)
    retries = {name: given for name, given in options.items() if name in RETRIES}
    own = {name: given for name, given in options.items() if name not in RETRIES}
    retried = HandlerRules(**_read(READ_HANDLER, retries)) if retries else None
    return StepRules(retried=retried, **_read(READ_STEP, own))
