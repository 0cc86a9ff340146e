"""Compute the dates of a schedule: an interval, or a cron expression in a time zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from onceward.errors import InvalidArgument
from onceward.message.clock import Millis
from onceward.message.extras import needs
from onceward.message.names import plain_text, quoted
from onceward.message.times import Span, millis
from onceward.message.vocabulary import MISSED, OVERLAPS, Missed, Overlap

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
LATE: Final = 60_000
"""Milliseconds after which ``skip`` counts a date as missed."""
AT_ONCE: Final = 100
"""Maximum dates whose messages one commit sends."""
SHORTEST: Final = 1_000
"""Minimum milliseconds of an interval."""
ENDLESS: Final[Millis] = 1 << 62
FIELDS: Final = 5
"""Fields of a cron expression: minute, hour, day, month and day of the week."""
SPANS: Final = 16
"""Maximum spans of unsent dates that a schedule remembers; the oldest are forgotten."""

Spans = tuple[tuple[Millis, Millis], ...]
"""
Dates without a message: from the first date of a span until before its end, in order.

The last span has no end. Earlier ones hold skipped dates; these are sent after all if the clock had
been ahead and is set back before them.
"""


class Due(NamedTuple):
    """The dates whose messages must be sent now, the next date, and all unsent dates after that."""

    dates: tuple[Millis, ...]
    next_at: Millis
    unsent: Spans


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule is due: at an interval in milliseconds, or by a cron expression."""

    every: Millis | None
    cron: str | None
    timezone: str | None

    def after(self, moment: Millis, *, date: Millis) -> Millis:
        """Return the first date later than *moment*; *date* is any one of an interval's dates."""
        if self.every is not None:
            return date + self.every * ((moment - date) // self.every + 1)
        return _cron_date(self, moment - moment % 1000)

    def until(self, moment: Millis, *, date: Millis) -> Millis:
        """Return the last date up to *moment*."""
        if self.every is not None:
            return date + self.every * ((moment - date) // self.every)
        return _cron_date(self, moment - moment % 1000 + 1000, reverse=True)

    def due(self, unsent: Spans, next_at: Millis, now: Millis, missed: Missed) -> Due:
        """Return the *unsent* dates from *next_at* to *now* whose messages *missed* sends."""
        if missed == "all":
            dates = tuple(self._dates(unsent, next_at, now))
        else:
            last = self._last(unsent, now)
            dates = (last,) if missed == "one" or now - last <= LATE else ()
        for date in dates:
            unsent = tuple(self._without(unsent, date))
        passed = dates[-1] if missed == "all" and dates else now
        return Due(dates, self.first(unsent, passed), unsent[-SPANS:])

    def first(self, unsent: Spans, moment: Millis) -> Millis:
        """Return the first unsent date later than *moment*."""
        dates = (
            (start if start > moment else self.after(moment, date=start), end)
            for start, end in unsent
        )
        return next(date for date, end in dates if date < end)

    def _last(self, unsent: Spans, moment: Millis) -> Millis:
        """Return the last unsent date up to *moment*; there is one."""
        start, end = next(span for span in reversed(unsent) if span[0] <= moment)
        return max(start, self.until(min(moment, end - 1), date=start))

    def _without(self, unsent: Spans, date: Millis) -> Iterator[tuple[Millis, Millis]]:
        """Yield the spans of all unsent dates except one."""
        for start, end in unsent:
            if not start <= date < end:
                yield start, end
                continue
            if start < date:
                yield start, date
            if (following := self.after(date, date=date)) < end:
                yield following, end

    def _dates(self, unsent: Spans, date: Millis, now: Millis) -> Iterator[Millis]:
        for _ in range(AT_ONCE):
            if date > now:
                return
            yield date
            date = self.first(unsent, date)


Origin = Literal["added", "declared", "withdrawn"]
"""``withdrawn`` was declared, is no longer declared, and is paused for that reason."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """
    A message that is sent repeatedly, and its progress.

    *every* is in milliseconds; *next_at* and the other ``*_at`` are milliseconds since 1970.
    *last_error* says why the message of *next_at* could not be sent yet. *origin* is ``added``,
    ``declared`` by the agent's code, or ``withdrawn``: paused because the code no longer declares
    it. *skipped* counts the dates for which ``overlap="skip"`` sent no message.
    """

    name: str
    every: Millis | None
    cron: str | None
    timezone: str | None
    missed: Missed
    overlap: Overlap
    recipient: str
    session: str
    origin: Origin
    next_at: Millis
    paused_at: Millis | None
    created_at: Millis
    sent: int
    last_at: Millis | None
    last_id: str | None
    last_error: str | None
    skipped: int
    skipped_at: Millis | None

    @property
    def failing(self) -> bool:
        """Whether its last message could not be sent."""
        return self.last_error is not None and self.paused_at is None

    def state(self, now: Millis) -> str:
        """Return its state as text; a late one has no sending process."""
        if self.paused_at is not None:
            return "withdrawn" if self.withdrawn else "paused"
        return "cannot send" if self.failing else "late" if self.is_late(now) else "on time"

    def is_late(self, now: Millis) -> bool:
        """Whether its next date passed longer ago than a sender needs."""
        return self.paused_at is None and now - self.next_at > LATE

    def dates(self, count: int) -> tuple[Millis, ...]:
        """Return its next dates, starting with past ones without a message."""
        rule, found = Rule(self.every, self.cron, self.timezone), [self.next_at]
        while len(found) < count:
            found.append(rule.after(found[-1], date=found[-1]))
        return tuple(found[:count])

    def local(self, date: Millis) -> datetime:
        """Return one of its dates as a datetime in its time zone; UTC for an interval."""
        return datetime.fromtimestamp(date / 1000, _zone(self.timezone or "UTC"))

    @property
    def withdrawn(self) -> bool:
        """Whether the agent's code no longer declares it."""
        return self.origin == "withdrawn"


def make_rule(every: Span | None, cron: str | None, timezone: str | None) -> Rule:
    """
    Return the rule that the arguments describe.

    Raises:
        InvalidArgument: neither or both of *every* and *cron*, an interval below a second, or
            an invalid expression or time zone.

    """
    if (every is None) == (cron is None):
        msg = "a schedule needs either every= (a duration) or cron= (an expression)"
        raise InvalidArgument(msg)
    if every is not None:
        if timezone is not None:
            raise InvalidArgument("an interval is the same in every time zone: leave timezone out")
        return Rule(_interval(every), None, None)
    rule = Rule(None, cron, "UTC" if timezone is None else timezone)
    rule.after(0, date=0)
    return rule


def check_policies(missed: Missed, overlap: Overlap) -> None:
    """Raise InvalidArgument for an unknown policy, or two that contradict each other."""
    if missed not in MISSED:
        raise InvalidArgument(f"missed={quoted(missed)} is not one of {', '.join(MISSED)}")
    if overlap not in OVERLAPS:
        raise InvalidArgument(f"overlap={quoted(overlap)} is not one of {', '.join(OVERLAPS)}")
    if missed == "all" and overlap == "skip":
        msg = "missed='all' sends a message for each date: it needs overlap='queue'"
        raise InvalidArgument(msg)


def schedule_name(name: str) -> str:
    """Return *name* if it is valid for a schedule; raise InvalidArgument otherwise."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InvalidArgument(f"schedule name {quoted(name)} must match {NAME.pattern} in full")
    return name


def iso(date: Millis) -> str:
    """Return a date as text, in UTC."""
    return datetime.fromtimestamp(date / 1000, UTC).isoformat().replace("+00:00", "Z")


def _interval(every: Span) -> Millis:
    span = millis("every", every)
    if span < SHORTEST:
        raise InvalidArgument(f"every={quoted(every)} is shorter than a second")
    return span


def _cron_date(rule: Rule, moment: Millis, *, reverse: bool = False) -> Millis:
    """Return the nearest date after a whole second, or the last one before it."""
    start = datetime.fromtimestamp(
        moment / 1000, _zone("UTC" if rule.timezone is None else rule.timezone)
    )
    try:
        return round(1000 * next(_cron(rule.cron or "", start, reverse=reverse)).timestamp())
    except StopIteration:
        raise InvalidArgument(f"cron {quoted(rule.cron)} has no date within 50 years") from None


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - paid by its users only

    try:
        return ZoneInfo(plain_text("timezone", name))
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise InvalidArgument(
            f"timezone {quoted(name)} is not known: write a name such as Europe/Zurich"
            " (without system time zones: pip install tzdata)"
        ) from None


def _cron(expression: str, start: datetime, *, reverse: bool) -> CronSim:
    with needs("cron", "cron="):
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - paid by its users only
    if isinstance(expression, str) and len(expression.split()) > FIELDS:
        msg = f"cron {quoted(expression)} has more than five fields: seconds are not supported"
        raise InvalidArgument(msg)
    try:
        return CronSim(expression, start, reverse=reverse)
    except (CronSimError, AttributeError, TypeError, ValueError) as error:
        msg = f"cron {quoted(expression)} is not a valid expression of five fields: {error}"
        raise InvalidArgument(msg) from error
