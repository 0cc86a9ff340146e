"""Spans and moments as callers write them; a number that cannot be meant raises."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from onceward import Settings
from onceward.errors import InvalidArgument
from onceward.file.environment import load_settings
from onceward.message.times import moment, point, seconds

NOW = 1_767_225_600_000
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0.0),
        (1.5, 1.5),
        (timedelta(minutes=2), 120.0),
        ("90", 90.0),
        ("2h30m", 9000.0),
        ("250ms", 0.25),
    ],
)
def test_a_span_is_seconds_a_timedelta_or_text(given: Any, expected: float) -> None:
    """All three mean the same."""
    assert expected == seconds("ttl", given)


@pytest.mark.parametrize(
    "given",
    [-1, timedelta(seconds=-1), True, None, float("nan"), float("inf"), 1e11, "", "2 h", "-5", []],
    ids=repr,
)
def test_what_is_no_span_is_refused_by_its_name(given: Any) -> None:
    """Nothing is guessed."""
    with pytest.raises(InvalidArgument, match=r"^ttl "):
        seconds("ttl", given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (NOW, NOW),
        (float(NOW), NOW),
        (0, 0),
        (NEW_YEAR, NOW),
        (NEW_YEAR.astimezone(timezone(timedelta(hours=5))), NOW),
        ("2026-01-01T00:00:00Z", NOW),
        ("2026-01-01", NOW),
        ("2026-01-01T05:00:00+05:00", NOW),
        ("2h", NOW - 7_200_000),
        ("90", NOW - 90_000),
        (timedelta(days=1), NOW - 86_400_000),
    ],
    ids=repr,
)
def test_a_moment_is_a_datetime_millis_a_date_or_a_span_ago(given: Any, expected: int) -> None:
    """A date without a zone is UTC."""
    assert expected == moment("since", given, NOW)


@pytest.mark.parametrize(
    "given",
    [
        1_767_225_600,
        1_767_225_600.5,
        1_767_225_600_000_000,
        1_767_225_600_000_000_000,
        -1,
        True,
        float("nan"),
        datetime(2026, 1, 1),  # noqa: DTZ001 - what is refused
        "yesterday",
        "1767225600000",
        timedelta(hours=-1),
        [],
    ],
    ids=repr,
)
def test_what_cannot_be_meant_is_refused_by_its_name(given: Any) -> None:
    """Seconds, nanoseconds, a zone that is missing: each would look at another time."""
    with pytest.raises(InvalidArgument, match=r"^since "):
        moment("since", given, NOW)


@pytest.mark.parametrize("given", [timedelta(hours=1), "2h", "90"])
def test_a_point_is_no_span(given: Any) -> None:
    """Of a moment to come a span would not say in which direction."""
    with pytest.raises(InvalidArgument, match=r"^at "):
        point("at", given)


@pytest.mark.parametrize("given", [timedelta(days=2), "2d", "172800", 172_800])
def test_a_setting_takes_a_span(given: Any) -> None:
    """A span of a setting is written as in every call, also in the environment."""
    by_name = Settings.merge(None, {"retention": given})
    by_environment = Settings.merge(None, {}, env={"ONCEWARD_RETENTION": "2d"})

    assert (172_800, 172_800) == (by_name.retention, by_environment.retention)


@pytest.mark.parametrize("given", ["2 d", "soon", timedelta(days=-1)])
def test_a_setting_refuses_what_is_no_span(given: Any) -> None:
    """The error names the setting."""
    with pytest.raises(InvalidArgument, match="retention"):
        Settings.merge(None, {"retention": given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (NEW_YEAR.replace(tzinfo=None), "at 2026-01-01 00:00:00 has no time zone: add one, as in"),
        (datetime(2300, 1, 1, tzinfo=UTC), "2300-01-01 00:00:00+00:00 is after 2286-11-20, the"),
        ("2300-01-01T00:00:00Z", "at 2300-01-01 00:00:00+00:00 is after 2286-11-20, the last"),
        ("tomorrow", "at 'tomorrow' is not a moment: write 2026-01-31T12:00:00Z"),
    ],
)
def test_a_moment_that_cannot_be_is_told_why(given: datetime | str, said: str) -> None:
    """With the value as it was given, and what is allowed there."""
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        point("at", given)


def test_a_setting_that_is_no_span_is_told_which_forms_are_allowed() -> None:
    """As every other span is."""
    with pytest.raises(InvalidArgument, match="write 5m, 2h30m"):
        load_settings(None, {"lease": "soon"})
