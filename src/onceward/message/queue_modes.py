"""
Decide what a session does with messages that arrive while it is busy, without any I/O.

``followup`` and ``queue`` wait and take one message per run, ``collect`` waits for quiet and takes
all messages that fit together, ``steer`` and ``interrupt`` end the open run and take all messages,
those of that run first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypedDict

from onceward.errors import InvalidArgument
from onceward.message.clock import Millis
from onceward.message.names import no_option, quoted, same_names
from onceward.message.times import Span, millis
from onceward.message.vocabulary import (
    ABORTED,
    QUEUE_MODES,
    QUEUE_OVERFLOWS,
    Aborted,
    QueueMode,
    QueueOverflow,
    QueueState,
)

PREEMPTING: Final = frozenset({"steer", "interrupt"})
"""Modes in which a new message ends the run that is open."""
PATIENCE: Final = 5
"""Number of debounces after which a collect starts although messages keep arriving."""
LINE_MAX: Final = 160
"""Maximum characters of one line of an overflow summary."""
WORKER_RESULT: Final = "worker_result"
"""Type of the message that reports how a dispatched task ended."""
WISH: Final = "queuemode"
"""Header by which a trusted sender requests another mode for one message."""
CALLER: Final = "callersession"
"""Header of a dispatched task: the session that gets its result."""


class QueueOptions(TypedDict, total=False):
    """
    The keyword arguments that set how a session queues.

    An option that is missing or None comes from the next wider level.
    """

    mode: QueueMode | None
    """steer, followup, collect, queue or interrupt."""
    debounce: Span | None
    """Quiet time that a collect waits for; a negative number counts as 0."""
    cap: float | None
    """Maximum waiting messages; default: any number; fractions are cut off, 0 is refused."""
    overflow: QueueOverflow | None
    """
    Policy of a full queue: ``reject`` new ones, ``drop_old``, or ``summarize`` them.

    The sender of a message sees that it ``failed``, or was ``dropped`` and by which policy.
    """
    aborted: Aborted | None
    """
    End of an aborted run's messages: ``deliver`` or ``return``.

    ``return`` puts them back, and the next run gets them first; ``deliver`` counts them as
    delivered if partial output was stored.
    """
    inject: bool | None
    """Whether steer leaves new messages to ``run.inbox()`` instead of ending the run."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One session's queue: its merged settings and its content."""

    session: str
    state: QueueState
    mode: QueueMode | None
    debounce: float | None
    """Seconds."""
    cap: int | None
    overflow: QueueOverflow | None
    aborted: Aborted | None
    inject: bool
    waiting: int
    bound: int
    run: str | None
    dropped: int
    """Dropped messages that no run's summary covers yet."""
    due_at: Millis | None
    arrived_at: Millis | None
    paused_at: Millis | None

    def __post_init__(self) -> None:
        """Make a flag of SQLite's number."""
        object.__setattr__(self, "inject", bool(self.inject))


QUEUE_DEBOUNCE: Final = "debounce_for / 1000.0"
"""The column of a queue's debounce, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How one session queues, all levels merged; times in milliseconds; cap None: no cap."""

    mode: QueueMode = "followup"
    debounce_for: Millis = 1000
    cap: int | None = None
    overflow: QueueOverflow = "reject"
    aborted: Aborted = "return"
    inject: bool = False

    def merged(self, **nearer: Any) -> QueuePolicy:
        """Return this policy overridden by a nearer level; None overrides nothing."""
        return replace(self, **{name: value for name, value in nearer.items() if value is not None})

    def due_at(self, waits: WaitTimes, count: int) -> Millis:
        """
        Return when the next run may start; 0 means at once.

        A collect waits for quiet, but not forever, and not with a full queue.
        """
        if (
            self.mode != "collect"
            or (self.cap is not None and count >= self.cap)
            or waits.arrived_at is None
            or waits.since_at is None
        ):
            return 0
        return min(
            waits.arrived_at + self.debounce_for, waits.since_at + PATIENCE * self.debounce_for
        )


class WaitTimes(NamedTuple):
    """Since when a session has been collecting, and when its last message arrived."""

    since_at: Millis | None = None
    arrived_at: Millis | None = None


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return queue options as a policy's fields; None for missing ones.

    Raises:
        InvalidArgument: an unknown mode or policy or an invalid number; cap=0 would refuse every
        message.

    """
    unknown = sorted(set(options) - READ.keys())
    if unknown:
        raise InvalidArgument(no_option("a queue", unknown, READ))
    given = {name: value for name, value in options.items() if value is not None}
    read = {READ[name][0]: READ[name][1](value) for name, value in given.items()}
    return dict.fromkeys(field for field, _ in READ.values()) | read


def _one_of(name: str, known: Sequence[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in known:
            raise InvalidArgument(f"queue {name} {value!r} is not one of {', '.join(known)}")
        return str(value)

    return read


def _inject(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    msg = f"queue inject {quoted(value)} must be True or False"
    raise InvalidArgument(msg)


def _debounce(given: Span) -> Millis:
    """Return the milliseconds of a duration; a number may be negative."""
    if isinstance(given, str | timedelta):
        return millis("queue debounce", given)
    return round(1000 * max(0.0, _number("debounce", given)))


def _number(name: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or abs(value) > 10**9
    ):
        raise InvalidArgument(f"queue {name} {value!r} must be a number")
    return float(value)


def _cap(given: Any) -> int:
    value = _number("cap", given)
    if math.floor(value) < 1:
        msg = f"queue cap {value:g} would refuse every message: give at least 1, or pause the queue"
        raise InvalidArgument(msg)
    return math.floor(value)


READ: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "mode": ("mode", _one_of("mode", QUEUE_MODES)),
    "debounce": ("debounce_for", _debounce),
    "cap": ("cap", _cap),
    "overflow": ("overflow", _one_of("overflow", QUEUE_OVERFLOWS)),
    "aborted": ("aborted", _one_of("aborted", ABORTED)),
    "inject": ("inject", _inject),
}
"""By option: the field of a policy that it sets, and what reads it."""
same_names("a queue", QueueOptions.__annotations__, READ)
same_names("a queue", QueuePolicy.__annotations__, (field for field, _ in READ.values()))


class QueuedItem(NamedTuple):
    """A message of a session's queue, with the fields that modes consider."""

    seq: int
    protected: bool = False
    """Whether no full queue may drop it: results of dispatched tasks, critical messages."""
    thread: tuple[str, str | None] | None = None
    """Recipient of its reply and its conversation; None fits with any."""
    last_attempt: bool = False
    """Whether it has failed so often that it is retried alone."""


def batch_size(mode: str, waiting: Sequence[QueuedItem]) -> int:
    """Return how many messages the next run takes, counted from the head."""
    if mode in ("followup", "queue"):
        return min(1, len(waiting))
    count, thread = 0, None
    for each in waiting:
        if each.last_attempt:
            return max(count, 1)
        if mode == "collect" and each.thread is not None:
            thread = thread or each.thread
            if each.thread != thread:
                break
        count += 1
    return count


@dataclass(slots=True)
class DroppedItems:
    """The messages that a full queue drops or refuses."""

    dropped: list[QueuedItem] = field(default_factory=list)
    """Messages that waited or just arrived, and were replaced by newer ones."""
    refused: list[QueuedItem] = field(default_factory=list)
    """New messages that the full queue refuses."""


def make_room(
    policy: QueuePolicy,
    *,
    held: int,
    protected: int,
    fresh: Sequence[QueuedItem],
    oldest: Callable[[int], list[QueuedItem]],
) -> DroppedItems:
    """
    Return the messages that a queue drops or refuses as *fresh* ones arrive one by one.

    *held* messages already wait, *protected* ones of them cannot be dropped; ``oldest(n)`` returns
    the first of the others.
    """
    found, cap = DroppedItems(), policy.cap
    if cap is None or held + len(fresh) <= cap:
        return found
    victims = [] if policy.overflow == "reject" else oldest(held + len(fresh) - cap)
    for each in fresh:
        full = not each.protected and held >= cap
        if full and (policy.overflow == "reject" or protected >= cap):
            found.refused.append(each)
            continue
        while not each.protected and held >= cap and victims:
            found.dropped.append(victims.pop(0))
            held -= 1
        held, protected = held + 1, protected + each.protected
        if not each.protected and policy.overflow != "reject":
            victims.append(each)
    return found


def summary_line(sender: str, text: str) -> str:
    """Return one message as a line of a summary."""
    flat = " ".join(f"{sender}: {text}".split())
    return flat if len(flat) <= LINE_MAX else f"{flat[: LINE_MAX - 1]}…"


def check_sessions(pattern: str) -> str:
    """Return *pattern* if it may select sessions: a name in which ``*`` matches any text."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= 256 or not pattern.isprintable():  # noqa: PLR2004 - as a session's name
        msg = f"session pattern {quoted(pattern)} must be 1 to 256 printable characters"
        raise InvalidArgument(msg)
    return pattern


def glob(pattern: str) -> str:
    """Return a session pattern for SQL's GLOB, in which only ``*`` is special."""
    return re.sub(r"[\[?]", lambda found: f"[{found[0]}]", pattern)
