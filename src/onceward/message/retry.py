"""
Decide how long to wait before the next attempt, and when to give up.

A policy is asked about a message whose earlier attempts may have been made by other processes: all
that it may look at is the number of the attempt. This module never sleeps: the wait is a time in a
row, so it survives the process. The policies of the settings need no tenacity, which takes a
twentieth of the import time.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from onceward.errors import InvalidArgument
from onceward.message.clock import Millis
from onceward.message.error_text import error_text
from onceward.message.log import log, quietly
from onceward.message.names import quoted
from onceward.message.times import Span, seconds

if TYPE_CHECKING:
    from tenacity import RetryCallState

    Wait = Callable[[RetryCallState], float]
    """A ``wait_*`` object of tenacity, or a function of the attempt's number."""
    Stop = Callable[[RetryCallState], bool]
    """A ``stop_*`` object of tenacity, or a function of the attempt's number."""

LONGEST: Final = 1e9
"""Seconds of the longest delay: 31 years."""
ASKED: Final = 20
"""Attempts about which a new policy is asked, so that an unfit one is refused when it is made."""
PARTS: Final = ("stops", "wait_funcs", "strategies")
"""Attributes of the objects of tenacity that combine others."""
INSTEAD: Final = {
    "outcome": "raise Retry(after=…) in the handler, or give retry_on and no_retry",
    "seconds_since_start": "give the message a ttl",
    "upcoming_sleep": "give the message a ttl",
    "start_time": "give the message a ttl",
    "idle_for": "give the message a ttl",
}
"""The cure, by the attribute that an object looks at."""


class AttemptState:
    """The state that a wait or stop may look at: ``attempt_number``, from 1."""

    def __init__(self, number: int) -> None:
        self.attempt_number = number

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse: only the number of the attempt survives the process."""
        cure = INSTEAD.get(name, "use attempt_number")
        raise InvalidArgument(f"looks at {name}, which a stored message does not have: {cure}")


@dataclass(frozen=True, slots=True)
class Doubling:
    """Wait *first* seconds, then twice as long each time, up to *cap*, and *plus* each time."""

    first: float
    cap: float = LONGEST
    plus: float = 0.0

    def __call__(self, state: RetryCallState) -> float:
        """Return the seconds to wait after an attempt."""
        doubled = self.first * 2.0 ** min(state.attempt_number - 1, 64)
        return min(doubled, self.cap) + self.plus


@dataclass(frozen=True, slots=True)
class After:
    """Stop after so many attempts."""

    attempts: int

    def __call__(self, state: RetryCallState) -> bool:
        """Return whether an attempt was the last one."""
        return state.attempt_number >= self.attempts


DEFAULT: Final = Doubling(1.0, cap=60.0)
"""The wait in place of one that fails."""
COUNT: Final = re.compile(r"(\d{1,9})x")
JITTER: Final = re.compile(r"(?:±|\+-)(\d+(?:\.\d+)?)%")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    When to retry: a wait and a stop, of tenacity or your own, and a share of jitter.

    ``RetryPolicy.parse("10x 1s..60s ±10%")`` makes one of text, which every ``retry`` option and
    setting takes, too.

    Both are functions of the attempt's number: ``RetryPolicy`` asks them about some numbers and
    refuses objects that look at the time, the exception or an event. If a wait fails later, the
    delay is 1 second, doubled up to 60; if a stop fails, no attempt is left. Both are logged.

    ``attempt`` counts from 1: after the k-th failure the next attempt waits ``delay(k)``, unless
    ``exhausted(k)``. No delay is longer than ``cap``, jitter included. ``open_for`` is how long an
    open circuit breaker stops attempts, if that is longer than the delay; None: as in the settings.
    The presets have 0, so only their own delays apply.
    """

    wait: Wait
    stop: Stop
    jitter: float = 0.0
    cap: Span | None = None
    open_for: Span | None = None

    def __post_init__(self) -> None:
        """Refuse invalid durations, and a wait or stop that does not fit a stored message."""
        for name in ("cap", "open_for"):
            if getattr(self, name) is not None:
                seconds(name, getattr(self, name))
        if not 0 <= self.jitter <= 1:
            raise InvalidArgument(f"jitter={quoted(self.jitter)} must be a share from 0 to 1")
        for name, given, read in (("wait", self.wait, _span), ("stop", self.stop, _answer)):
            if not isinstance(given, Doubling | After):
                _check(name, given, read)

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Return the policy of a text such as ``10x 1s..60s ±10%``.

        At most 10 attempts, the first one included; waits of 1, 2, 4 … seconds, up to 60, that vary
        by a tenth. Parts that are left out are those of the example; ``+-`` is ``±``.

        Raises:
            InvalidArgument: it is not such a text.

        """
        found: dict[str, tuple[float, float]] = {}
        for part in text.split():
            name, value = _read_part(text, part)
            if name in found:
                raise InvalidArgument(f"{part} comes after another {name}: {_told(text)}")
            found[name] = value
        (attempts, _), (jitter, _) = found.get("count", (10, 0)), found.get("jitter", (0.1, 0))
        first, cap = found.get("wait", (DEFAULT.first, DEFAULT.cap))
        return cls(Doubling(first, cap), After(int(attempts)), jitter, cap)

    def __str__(self) -> str:
        """Return the text that ``parse`` reads, if there is one."""
        wait, stop = self.wait, self.stop
        if isinstance(wait, Doubling) and isinstance(stop, After) and wait.cap == self.cap:
            waits = f"{wait.first:g}s..{wait.cap:g}s"
            return f"{stop.attempts}x {waits} ±{100 * self.jitter:g}%"
        return repr(self)

    @property
    def longest(self) -> float:
        """Seconds of its longest delay; 60 if only its wait knows."""
        cap = self.wait.cap if isinstance(self.wait, Doubling) else LONGEST
        if self.cap is not None:
            cap = seconds("cap", self.cap)
        return cap if cap < LONGEST else DEFAULT.cap

    @property
    def horizon(self) -> float:
        """Seconds from the first to the last attempt at most; 0 if only its functions know."""
        if not (isinstance(self.wait, Doubling) and isinstance(self.stop, After)):
            return 0.0
        retries, cap = self.stop.attempts - 1, self.cap
        cap = LONGEST if cap is None else seconds("cap", cap)
        told = [self.wait(_state(1 + n)) * (1 + self.jitter) for n in range(min(retries, 65))]
        delays = [min(each, cap) for each in told]
        return sum(delays) + sum(delays[-1:]) * (retries - len(delays))

    def delay(self, attempt: int, rng: random.Random) -> Millis:
        """Return the wait after the *attempt*-th failure, in milliseconds."""
        state = _state(attempt)
        found = quietly(lambda: _span(self.wait(state)), failed=partial(_log, "wait", attempt))
        wait = DEFAULT(state) if found is None else found
        varied = wait * (1 + rng.uniform(-self.jitter, self.jitter))
        cap = LONGEST if self.cap is None else seconds("cap", self.cap)
        return round(1000 * min(varied, cap, LONGEST))

    def exhausted(self, attempt: int) -> bool:
        """Return whether the *attempt*-th failure was the last allowed one."""
        state = _state(attempt)
        found = quietly(lambda: _answer(self.stop(state)), failed=partial(_log, "stop", attempt))
        return found is not False

    @classmethod
    def ten_retries(cls) -> Self:
        """Return 10 retries after 1, 2, 4, 8, 16, 32 and then 60 seconds each: 303 in all."""
        return cls(Doubling(1.0, cap=60.0), After(1 + 10), open_for=0.0)

    @classmethod
    def three_retries(cls, *, ack_timeout: Span = 0.0) -> Self:
        """Return 3 retries after 1, 2 and 4 seconds, each plus *ack_timeout*."""
        plus = seconds("ack_timeout", ack_timeout)
        return cls(Doubling(1.0, plus=plus), After(1 + 3), open_for=0.0)


def policy(given: RetryPolicy | str, attempts: int | None = None) -> RetryPolicy:
    """Return a policy, given as itself or as text, with its own number of *attempts* if given."""
    found = RetryPolicy.parse(given) if isinstance(given, str) else given
    return found if attempts is None else replace(found, stop=After(attempts))


def _read_part(text: str, part: str) -> tuple[str, tuple[float, float]]:
    """Return the name of one part of a policy's text, and its one or two numbers."""
    if (count := COUNT.fullmatch(part)) and int(count[1]):
        return "count", (int(count[1]), 0)
    if (jitter := JITTER.fullmatch(part)) and float(jitter[1]) <= 100:  # noqa: PLR2004 - per cent
        return "jitter", (float(jitter[1]) / 100, 0)
    first, _, last = part.partition("..")
    try:
        start = seconds("wait", "" if part.isdigit() else first)  # 10: of seconds, or attempts?
        end = seconds("wait", last) if last else max(start, DEFAULT.cap)
    except InvalidArgument:
        start, end = 1.0, 0.0
    if start > end:
        raise InvalidArgument(f"{part}: {_told(text)}")
    return "wait", (start, end)


def _told(text: str) -> str:
    return (
        f"{quoted(text)} is not a retry policy: write attempts, the first and the longest wait, "
        "and jitter, as in 10x 1s..60s ±10%"
    )


def _state(attempt: int) -> Any:
    return AttemptState(attempt)


def _log(what: str, attempt: int, error: BaseException) -> None:
    log.failure("error", f"a retry policy's {what} failed", error, attempt=attempt)


def _span(value: Any) -> float:
    """Return what a wait returned in seconds; raise InvalidArgument for anything else."""
    if isinstance(value, int | float) and LONGEST <= value < math.inf:
        return LONGEST
    return seconds("wait", value)


def _answer(value: Any) -> bool:
    """Return what a stop returned; raise InvalidArgument unless it is a bool."""
    if isinstance(value, bool):
        return value
    raise InvalidArgument(f"returned {quoted(value)}, not True or False")


def _check(name: str, given: Any, read: Callable[[Any], object]) -> None:
    """Raise InvalidArgument for a wait or stop, or a part of one, that fails or looks elsewhere."""
    for part in _parts(given):
        told = f"{name}={quoted(given)}: {getattr(part, '__name__', type(part).__name__)}"
        if not callable(part):
            msg = f"{told} must be an object of tenacity, as in RetryPolicy(wait_fixed(1), …)"
            raise InvalidArgument(msg)
        if why := _foreign(name, part):
            raise InvalidArgument(f"{told} {why}")
        for attempt in range(1, ASKED + 1):
            try:
                read(part(_state(attempt)))
            except InvalidArgument as error:
                raise InvalidArgument(f"{told}: {error}") from None
            except Exception as error:
                msg = f"{told} fails at attempt {attempt}: {error_text(error)}"
                raise InvalidArgument(msg) from error


def _parts(given: Any) -> Iterator[Any]:
    """Yield the parts of a combination, which may not all be asked, and the combination."""
    for name in PARTS:
        found = getattr(given, name, None)
        if isinstance(found, tuple | list):
            for each in found:
                yield from _parts(each)
    yield given


def _foreign(name: str, part: Any) -> str:
    """Return why an object of tenacity has another purpose; empty if it has not."""
    known: Any = sys.modules.get("tenacity")
    if known is None:
        return ""
    if isinstance(part, known.retry_base):
        return "decides by the exception: give retry_on or no_retry to the handler"
    if isinstance(part, known.stop_when_event_set):
        return "looks at an event of one process, which a stored message outlives: pause the agent"
    other = known.stop.stop_base if name == "wait" else known.wait.wait_base
    return f"is not a {name}" if isinstance(part, other) else ""


DEFAULT_RETRY: Final = RetryPolicy.parse("")
"""The policy of deliveries and handlers without their own."""
