"""Values in error texts: short ones whole, long ones cut where the reader sees it."""

import re
from pathlib import Path

import pytest

from onceward.errors import InvalidMessage
from onceward.message.names import agent_name, plain_text, quoted, rank
from onceward.message.topics import check_pattern

CUT = re.compile(r"!r:\.|\[:\d+\]!r")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("short", "'short'"),
        ("x" * 10, repr("x" * 10)),
        ("x" * 11, f"'{'x' * 10}…'"),
        ("it's a long name", '"it\'s a lon…"'),
        (b"0123456789a", "b'0123456789…'"),
        (12345, "12345"),
        ([1, 2, 3, 4, 5], "[1, 2, 3, …"),
        (None, "None"),
    ],
)
def test_a_cut_value_ends_in_an_ellipsis_and_its_quote(value: object, expected: str) -> None:
    """Without the quote a reader takes the cut for the end of the value."""
    assert expected == quoted(value, 10)


@pytest.mark.parametrize(
    "check",
    [agent_name, rank, check_pattern, lambda name: plain_text("session", name)],
    ids=["agent", "priority", "topic", "session"],
)
def test_an_error_stays_short(check: object) -> None:
    """A name of a megabyte is not repeated whole."""
    assert callable(check)
    with pytest.raises(InvalidMessage) as caught:
        check("n" * 1_000_000)

    assert f"'{'n' * 60}…'" in str(caught.value)
    assert 300 > len(str(caught.value))


def test_no_error_text_cuts_by_a_format() -> None:
    """A format such as !r:.60 cuts the closing quote off, and names no cut."""
    sources = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))

    assert [] == [path.name for path in sources if CUT.search(path.read_text(encoding="utf-8"))]
