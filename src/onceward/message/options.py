"""Define the options of a send, of a handler and of a step, each listed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict, cast

from onceward.errors import HandlerSignal, InvalidArgument, LeaseLost, Paused
from onceward.message.body import reply_schema
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.names import PriorityName, plain_text, quoted, refuse_options
from onceward.message.times import GivenRate, Point, Span, millis, seconds

if TYPE_CHECKING:
    from onceward.message.retry import RetryPolicy
    from onceward.message.times import Rate


class PublishOptions(TypedDict, total=False):
    """The keyword arguments of every ``publish``; all may be left out."""

    type: str | None
    """Wire name of the message type; by default the one its class declares."""
    key: str | None
    """The same message under the same key returns the first id; another one raises Conflict."""
    priority: PriorityName
    """critical, urgent (high), normal, low or background."""
    ttl: Span | None
    """Span after which the message expires instead of being handled."""
    delay: Span | None
    """Span before it may leave: seconds, a timedelta, or text such as 2h."""
    at: Point | None
    """Moment before which it does not leave: a datetime, milliseconds, or a date as text."""
    reply_to: str | None
    """Agent that the reply goes to; by default the sender."""
    correlation_id: str | None
    """Id of the conversation's first message; replies carry it on."""
    causation_id: str | None
    """Id of the message that this one answers or follows from."""
    hops: int
    """Messages that led to this one; by default one more than of the message being handled."""
    in_reply_to: str | None
    """Id of the request that this message answers."""
    headers: Mapping[str, str | int | bool] | None
    """Extension attributes of the frame: 1 to 20 lower-case letters and digits."""
    ordering_key: str | None
    """The unit of order; by default the session."""
    ephemeral: bool
    """Whether a restart of the recipient may drop the message while no reader has taken it."""
    message_id: str | None
    """An id of the caller's own, under which sending again is safe."""


class SendOptions(PublishOptions, total=False):
    """The keyword arguments of every ``send``."""

    topic: str | None
    """Topic that it is published under; handlers may be chosen by it."""


class ScheduleOptions(TypedDict, total=False):
    """The keyword arguments of a scheduled message; those of a send that hold for each of many."""

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
    The options of a message with those that only the library sets; checked by ``parse_options``.

    ``Composer.compose`` turns them into ``FrameHeaders``, which is frozen.
    """

    channel: str | None
    """The channel that the message belongs to."""
    kind: str | None
    """The kind of a channel's message."""
    answer_by: int | None
    """When the query ends that the message answers, in milliseconds."""
    mailbox: str | None
    """The mailbox that the message is for."""
    mailbox_key: str | None
    """Key of which that mailbox keeps the newest message."""
    reply_schema: str | None
    """The JSON schema that the reply of a request is to fit."""
    ends_at: int | None
    """When that mailbox expires, in milliseconds: the message does not outlive it."""
    system: bool
    """Whether a reserved topic may be published."""
    max_size: int | None
    """Most bytes of the body, where a channel allows fewer than the file."""


PLAIN: Final = MessageOptions()
"""No options at all: what all messages of one type to one recipient share is then remembered."""


def parse_options(given: SendOptions | PublishOptions) -> MessageOptions:
    """Return the keyword arguments of a send; raises TypeError for a name that is not an option."""
    unknown = given.keys() - SendOptions.__annotations__.keys()
    if unknown:
        more = "; a session has a send of its own"
        refuse_options("a send", unknown, SendOptions.__annotations__, more)
    return cast("MessageOptions", given)


def request_options(given: SendOptions, reply: object) -> MessageOptions:
    """Return the options of a request, with the schema of the *reply* that it expects."""
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
    return frame.replyto or frame.sender, parse_options(named)


WITHIN: Final = 0.2
"""Seconds that a message waits for others of its batch where nothing is said."""
ALONE: Final = ("concurrency", "rate", "unique_for")
"""Options that a batch handler does not have."""
Errors = type[Exception] | tuple[type[Exception], ...]
"""A class of exceptions, or several."""


class HandlerOptions(TypedDict, total=False):
    """The keyword arguments of ``on``, ``every`` and ``cron``; all may be left out."""

    attempts: int | None
    """Attempts before the message is a dead letter; by default as *retry* says."""
    retry: RetryPolicy | None
    """When to try again, and when to give up; by default the postbox's policy."""
    retry_on: Errors | None
    """Exceptions that are tried again; any other makes the message a dead letter at once."""
    no_retry: Errors | None
    """Exceptions that make the message a dead letter at once."""
    timeout: Span | None
    """Time that one call may take; by default the setting ``handler_timeout``."""
    unique_for: Span | None
    """Span in which a message is dropped that has the type and body of one before it."""
    concurrency: int | None
    """Calls that all processes on the file make at once; by default as many as have workers."""
    rate: GivenRate | None
    """Calls that all processes on the file begin: ``10/m``, or a number a second; others wait."""
    batch: int | None
    """Most messages of one call, which takes a list of bodies; for an exact type or topic."""
    within: Span
    """Time that a message may wait for others of its batch; a fifth of a second by default."""


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
    batch: int | None = None
    within: float = WITHIN

    def forbids_retry_after(self, error: BaseException) -> bool:
        """Return whether a message ends with *error*, however many attempts are left."""
        if isinstance(error, HandlerSignal | Paused | LeaseLost):
            return False
        single = _single(error)
        if any(isinstance(each, self.no_retry) for each in (error, *single)):
            return True
        if self.retry_on is None or isinstance(error, self.retry_on):
            return False
        return not all(isinstance(each, self.retry_on) for each in single)


def _single(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group and of the groups in it; any other one by itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [one for each in error.exceptions for one in _single(each)]


PLAIN_RULES: Final = HandlerRules()


def handler_rules(options: HandlerOptions) -> HandlerRules:
    """Return the options of a handler, checked; raises InvalidArgument or TypeError."""
    unknown = options.keys() - HandlerOptions.__annotations__.keys()
    if unknown:
        refuse_options("a handler", unknown, HandlerOptions.__annotations__)
    _check_batch(options)
    retry_on, rate = options.get("retry_on"), options.get("rate")
    timeout, unique_for = options.get("timeout"), options.get("unique_for")
    return HandlerRules(
        attempts=whole_number("attempts", options.get("attempts"), "a handler runs at least once"),
        retry=options.get("retry"),
        retry_on=None if retry_on is None else _classes("retry_on", retry_on),
        no_retry=_classes("no_retry", options.get("no_retry") or ()),
        timeout=None if timeout is None else positive_span("timeout", timeout),
        unique_for=None if unique_for is None else _unique_for(unique_for),
        concurrency=whole_number(
            "concurrency", options.get("concurrency"), "at least one call runs"
        ),
        rate=None if rate is None else _rate(rate),
        batch=whole_number("batch", options.get("batch"), "a call has at least one message"),
        within=seconds("within", options.get("within", WITHIN)),
    )


def _check_batch(options: HandlerOptions) -> None:
    """Refuse options that go only without, or only with ``batch``."""
    if options.get("batch") is None:
        if "within" in options:
            msg = f"within={quoted(options['within'])} says how long a batch waits: say batch, too"
            raise InvalidArgument(msg)
        return
    for name in ALONE:
        if options.get(name) is not None:
            msg = f"{name}={quoted(options[name])}: a batch handler has no {name}"
            raise InvalidArgument(msg)


def _rate(given: GivenRate) -> Rate:
    from onceward.message.times import read_rate  # noqa: PLC0415 - rarely needed

    return read_rate("rate", given)


def whole_number(field: str, given: int | None, why: str) -> int | None:
    """Return a number from 1, or None; raises InvalidArgument for any other."""
    if given is None or (type(given) is int and given > 0):
        return given
    msg = f"{field}={quoted(given)}: {why}"
    raise InvalidArgument(msg)


def _unique_for(span: Span) -> Millis:
    found = millis("unique_for", span)
    if not found:
        msg = f"unique_for={quoted(span)}: nothing is repeated within no time; leave it out"
        raise InvalidArgument(msg)
    return found


def positive_span(field: str, span: Span) -> float:
    """Return the seconds of a span in which a call is made; raises InvalidArgument for none."""
    found = seconds(field, span)
    if not found:
        msg = f"{field}={quoted(span)}: no call is that quick"
        raise InvalidArgument(msg)
    return found


def _classes(field: str, given: Errors) -> tuple[type[Exception], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(each, type) and issubclass(each, Exception) for each in classes):
        msg = f"{field}={quoted(given)} must be a class of Exception, or several of them"
        raise InvalidArgument(msg)
    return classes


class StepOptions(TypedDict, total=False):
    """The keyword arguments of ``ctx.step`` and ``@step``; all may be left out."""

    name: str
    """Name of the step; by default the function's. Steps that run at once need one each."""
    version: str
    """Says that the step is another one than before, so that it is called once more."""
    attempts: int | None
    """Calls of the function before its error is the handler's; 1 unless *retry* says more."""
    retry: RetryPolicy | None
    """When to call the function again, and when to give up; by default the postbox's policy."""
    retry_on: Errors | None
    """Exceptions after which the function is called again; any other is the handler's at once."""
    no_retry: Errors | None
    """Exceptions after which it is not."""
    keep_failure: bool
    """Store the last error: each later call of the handler gets it, and the function is done."""
    tx: bool
    """Commit what the function writes and sends, and its result, in one commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """The options of a step, checked."""

    name: str | None = None
    version: str = ""
    retried: HandlerRules | None = None
    """When the function is called again; None for never."""
    keep_failure: bool = False
    tx: bool = False


PLAIN_STEP: Final = StepRules()
RETRIES: Final = ("attempts", "retry", "retry_on", "no_retry")


def step_rules(options: StepOptions) -> StepRules:
    """Return the options of a step, checked; raises InvalidArgument or TypeError."""
    if not options:
        return PLAIN_STEP
    unknown = options.keys() - StepOptions.__annotations__.keys()
    if unknown:
        refuse_options("a step", unknown, StepOptions.__annotations__)
    given: HandlerOptions = {each: options[each] for each in RETRIES if each in options}  # type: ignore[assignment]
    name, version = options.get("name"), options.get("version", "")
    return StepRules(
        name=None if name is None else plain_text("name", name),
        version=plain_text("version", version) if version else "",
        retried=handler_rules(given) if given else None,
        keep_failure=bool(options.get("keep_failure")),
        tx=bool(options.get("tx")),
    )
