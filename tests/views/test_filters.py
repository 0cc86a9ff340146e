"""One text asks for messages by several conditions, and what is wrong with it is said."""

from __future__ import annotations

import pytest

from onceward.errors import InvalidArgument
from onceward.ops.views.filters import Filter, parse, told
from onceward.ops.views.listing import Conditions, literal, pattern

NOW = 1_767_232_800_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Filter()),
        ("  ", Filter()),
        ("type:task.* peer:shop", Filter(type="task.*", peer="shop")),
        ("TYPE:job", Filter(type="job")),
        ("state:dead since:1h", Filter(state="dead", since_at=NOW - HOUR)),
        ("state:dead reason:rejected", Filter(state="dead", reason="rejected")),
        ("reason:*503*", Filter(reason="*503*")),
        ("until:2026-01-01T00:00Z", Filter(until_at=1_767_225_600_000)),
        ('session:"order 7" topic:a/b', Filter(session="order 7", topic="a/b")),
        ("negative amount", Filter(text="negative amount")),
        ("""text:'"n": 3' type:job""", Filter(text='"n": 3', type="job")),
        ('"sku:A-1"', Filter(text="sku:A-1")),
        ("session:chat:7", Filter(session="chat:7")),
    ],
)
def test_words_are_conditions(text: str, expected: Filter) -> None:
    """A name and a value are one; words without a name, or in quotes, are sought in the body."""
    assert expected == parse(text, NOW)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("typ:job", "there is no filter typ here, only type, peer"),
        ("sku:A-1", "quote a text with a colon"),
        ("type:a type:b", "type: is given twice"),
        ("type:", "type: has no value"),
        ('peer:"shop', "a quote is not closed"),
        ("state:lost", "there is no state lost: pending, sent"),
        ("state:dead reason:unlucky", "no dead letter has the reason unlucky"),
        ("since:yesterday", "since yesterday is not a moment"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    """With the word that is wrong, and what there is instead."""
    with pytest.raises(InvalidArgument) as raised:
        parse(text, NOW)

    assert said in str(raised.value).replace("'", "")


def test_a_list_may_know_some_conditions_only() -> None:
    """The others, and words without a name, are refused there."""
    names = ("reason", "type")

    assert Filter(type="job") == parse("type:job", NOW, names)
    for text in ("peer:shop", "shop"):
        with pytest.raises(InvalidArgument, match=r"here"):
            parse(text, NOW, names)


@pytest.mark.parametrize(
    "given",
    [
        {"type": "task.*", "session": "order 7"},
        {"session": 'a "quoted" one', "peer": "shop"},
        {"topic": "it's"},
    ],
)
def test_a_filter_is_written_as_it_is_read(given: dict[str, str]) -> None:
    """Values with blanks or quotes stand in quotes."""
    assert Filter(**given) == parse(told(**given), NOW)  # type: ignore[arg-type]


def test_only_the_star_stands_for_characters() -> None:
    """Other characters of a pattern mean themselves; a name of a page's own has no star either."""
    assert "a[[]0-9[?]*" == pattern("a[0-9?*")
    assert "a[*]" == literal("a*")
    assert Conditions(type="task.*") == Filter(type="task.*").conditions


def test_an_action_on_all_that_match_needs_whole_names() -> None:
    """It has no patterns, moments or texts; a dead letter is one without its state, too."""
    dead = Filter(state="dead", type="job", reason="rejected")

    assert {"type": "job", "reason": "rejected"} == dead.exact
    assert None is Filter(type="job.*").exact
    assert None is Filter(since_at=1).exact
    assert None is Filter(state="pending").exact
