"""Define the options of a handler: how often, how long and for which errors it is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from onceward.errors import HandlerSignal, InvalidArgument, LeaseLost, Paused
from onceward.message.clock import Millis
from onceward.message.names import refuse_options
from onceward.message.quoting import quoted
from onceward.message.times import GivenRate, Span, millis, seconds

if TYPE_CHECKING:
    from onceward.message.rate import Rate
    from onceward.message.retry import RetryPolicy

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
    """Calls that one process makes at the same time; by default as many as it has workers."""
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
    from onceward.message.rate import read_rate  # noqa: PLC0415 - rarely needed

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
