"""Compute the dates of a schedule: an interval, or a cron expression in a time zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.errors import InvalidArgument
from onceward.model.clock import Millis
from onceward.model.quoting import quoted
from onceward.model.times import Span, millis
from onceward.model.values import dataclass
from onceward.model.vocabulary import Missed

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
LATE: Final = 60_000
"""Milliseconds after which ``skip`` counts a date as missed."""
AT_ONCE: Final = 100
"""Most dates whose messages one commit sends."""
SHORTEST: Final = 1_000
"""Fewest milliseconds of an interval."""


class Due(NamedTuple):
    """The dates whose messages are to be sent now, and the next one after them."""

    dates: tuple[Millis, ...]
    next_at: Millis


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule is due: every so many milliseconds, or by a cron expression."""

    every: Millis | None
    cron: str | None
    timezone: str | None

    def after(self, moment: Millis, *, date: Millis) -> Millis:
        """Return the first date later than *moment*; *date* is any one of an interval's dates."""
        if self.every is not None:
            return date + self.every * ((moment - date) // self.every + 1)
        return _cron_date(self, moment - moment % 1000)

    def until(self, moment: Millis, *, date: Millis) -> Millis:
        """Return the last date that is not later than *moment*."""
        if self.every is not None:
            return date + self.every * ((moment - date) // self.every)
        return _cron_date(self, moment - moment % 1000 + 1000, reverse=True)

    def due(self, next_at: Millis, now: Millis, missed: Missed) -> Due:
        """Return the dates from *next_at* to *now* whose messages *missed* sends."""
        if missed == "all":
            dates = tuple(self._dates(next_at, now))
            return Due(dates, self.after(dates[-1], date=next_at) if dates else next_at)
        last = max(next_at, self.until(now, date=next_at))
        sent = missed == "one" or now - last <= LATE
        return Due((last,) if sent else (), self.after(now, date=next_at))

    def _dates(self, date: Millis, now: Millis) -> Iterator[Millis]:
        for _ in range(AT_ONCE):
            if date > now:
                return
            yield date
            date = self.after(date, date=date)


def make_rule(every: Span | None, cron: str | None, timezone: str | None) -> Rule:
    """
    Return the rule that the arguments describe.

    Raises:
        InvalidArgument: neither or both of *every* and *cron*, an interval below a second, or
            an expression or time zone that is none.

    """
    if (every is None) == (cron is None):
        msg = "a schedule has every= (a span) or cron= (an expression): give one of them"
        raise InvalidArgument(msg)
    if every is not None:
        if timezone is not None:
            msg = "an interval is the same in every time zone: leave timezone out"
            raise InvalidArgument(msg)
        return Rule(_interval(every), None, None)
    rule = Rule(None, cron, "UTC" if timezone is None else timezone)
    rule.after(0, date=0)
    return rule


def schedule_name(name: str) -> str:
    """Return *name* if it is valid for a schedule; raise InvalidArgument otherwise."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        msg = f"schedule name {quoted(name)} must match {NAME.pattern} in full"
        raise InvalidArgument(msg)
    return name


def iso(date: Millis) -> str:
    """Return a date as text, in UTC."""
    return datetime.fromtimestamp(date / 1000, UTC).isoformat().replace("+00:00", "Z")


def _interval(every: Span) -> Millis:
    span = millis("every", every)
    if span < SHORTEST:
        msg = f"every={quoted(every)} is shorter than a second"
        raise InvalidArgument(msg)
    return span


def _cron_date(rule: Rule, moment: Millis, *, reverse: bool = False) -> Millis:
    """Return the date next to a whole second: the first one after it, or the last one before."""
    start = datetime.fromtimestamp(moment / 1000, _zone(rule.timezone or "UTC"))
    try:
        return round(1000 * next(_cron(rule.cron or "", start, reverse=reverse)).timestamp())
    except StopIteration:
        msg = f"cron {quoted(rule.cron)} has no date within 50 years"
        raise InvalidArgument(msg) from None


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - paid by its users only

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        msg = (
            f"timezone {quoted(name)} is not known: write a name such as Europe/Zurich"
            " (a machine without time zones needs: pip install tzdata)"
        )
        raise InvalidArgument(msg) from None


def _cron(expression: str, start: datetime, *, reverse: bool) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - paid by its users only
    except ModuleNotFoundError as error:
        msg = "cron= needs cronsim, which is not installed: pip install 'onceward[cron]'"
        raise InvalidArgument(msg) from error
    try:
        return CronSim(expression, start, reverse=reverse)
    except (CronSimError, AttributeError, TypeError, ValueError) as error:
        msg = f"cron {quoted(expression)} is no expression of five fields: {error}"
        raise InvalidArgument(msg) from error
