"""Define the options of a handler and of a step, each listed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

from onceward.errors import HandlerSignal, InvalidArgument, LeaseLost, Paused
from onceward.message.clock import Millis
from onceward.message.error_text import members
from onceward.message.names import plain_text, quoted, refuse_options, same_names
from onceward.message.retry import RetryPolicy, policy
from onceward.message.times import GivenRate, Span, millis, seconds

if TYPE_CHECKING:
    from onceward.message.group_key import GroupKey
    from onceward.message.times import Rate


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
    if options.get("throttle") is not None and options.get("debounce") is not None:
        raise InvalidArgument("throttle keeps the first message, debounce the last: give one")
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
