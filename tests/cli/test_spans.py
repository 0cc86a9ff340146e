"""Spans as people write them."""

import pytest

from onceward.ops.cli.durations import ago, seconds, written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("0", 0.0),
        ("250ms", 0.25),
        ("5m", 300.0),
        ("2h30m", 9000.0),
        ("7d", 604_800.0),
        ("1w1s", 604_801.0),
        ("3 days", 259_200.0),
        ("1hour", 3600.0),
        ("2 hours 30 minutes", 9000.0),
    ],
)
def test_a_span_is_read_in_seconds(text: str, expected: float) -> None:
    """Units add up, and a bare number is seconds."""
    assert pytest.approx(expected) == seconds(text)


@pytest.mark.parametrize(
    ("span", "expected"),
    [(0, "0s"), (0.3, "0.3s"), (1, "1s"), (60, "1m"), (90, "90s"), (86_400, "1d"), (604_800, "7d")],
)
def test_a_default_is_written_as_it_can_be_given(span: float, expected: str) -> None:
    """The help page shows the default in its largest unit."""
    assert (expected, span) == (written(span), seconds(expected))


@pytest.mark.parametrize(
    "text", ["", "5 m", "m", "-5", "5x", "1h-2m", "nan", "inf", "1e3", "5m3", "3 dayz", "days"]
)
def test_what_is_no_span_is_refused(text: str) -> None:
    """Nothing is guessed: a forgotten unit or a sign is an error."""
    with pytest.raises(ValueError, match="is not a valid duration"):
        seconds(text)


@pytest.mark.parametrize(
    ("then", "expected"),
    [(0, "2 h ago"), (7_195_000, "5 s ago"), (7_320_000, "in 2 m"), (7_200_000, "0 s ago")],
)
def test_a_moment_is_told_by_its_distance(then: int, expected: str) -> None:
    """One unit is enough for people; programs get the moment itself."""
    assert expected == ago(then, 7_200_000)
