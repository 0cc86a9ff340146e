"""Names, topics, ids and times: what may be a word here, and what it matches."""

import string
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import InvalidMessage
from onceward.message.clock import SystemClock, iso
from onceward.message.frame import Frame
from onceward.message.ids import new_id, new_token
from onceward.message.names import RANKS, agent_name, plain_text, rank
from onceward.message.topics import check_pattern, check_topic, matches
from onceward.message.vocabulary import PRIORITIES

GOOD = ["a", "A1", "0", "a.b-c_d", "a" * 128, "allx", "con"]
BAD = [
    "",
    " ",
    "a b",
    "-a",
    ".a",
    "_a",
    "a\n",
    "a/b",
    "../a",
    "ä",
    "a" * 129,
    "all",
    "ALL",
    "Broadcast",
    "a\0",
    None,
    7,
    b"a",
]


@pytest.mark.parametrize("name", GOOD)
def test_good_agent_names_pass(name: str) -> None:
    """Letters, digits, dot, dash and underscore after a first letter or digit name an agent."""
    assert name == agent_name(name)


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_bad_agent_names_are_refused(name: str) -> None:
    """Text that could leave the folder, hide in a log or stand for all agents names none."""
    with pytest.raises(InvalidMessage):
        agent_name(name)


@given(st.text(max_size=140))
def test_an_agent_name_is_also_a_recipient(name: str) -> None:
    """
    The frame's parser and the sender's check agree on every text.

    The two names that stand for all agents are the exception.
    """
    text = Frame.model_construct(
        specversion="1.0", id="1", source="s", type="t", recipient=name
    ).model_dump_json(exclude_unset=True)
    try:
        agent_name(name)
    except InvalidMessage:
        if name.lower() not in {"all", "broadcast", "directory"}:
            with pytest.raises(InvalidMessage):
                Frame.parse(text)
    else:
        assert name == Frame.parse(text).recipient


@pytest.mark.parametrize(
    "value", ["", "x" * 257, "a\n", "a\0", "\ud800", "\u200b", None, 7, ["a"]], ids=repr
)
def test_unprintable_text_is_refused(value: str) -> None:
    """Sessions, types and keys are printable, not empty and not endless."""
    with pytest.raises(InvalidMessage, match="key"):
        plain_text("key", value)


@given(st.text(max_size=300))
def test_plain_text_is_what_a_frame_takes(value: str) -> None:
    """Text that passes the check is a legal session of a frame."""
    try:
        plain_text("session", value)
    except InvalidMessage:
        return
    assert value == Frame(id="1", source="s", type="t", recipient="b", session=value).session


def test_every_priority_has_one_rank() -> None:
    """The five names stand for the ranks 0 to 4, and high is another word for urgent."""
    assert [0, 1, 2, 3, 4] == [rank(name) for name in PRIORITIES]
    assert rank("urgent") == rank("high")
    assert {*PRIORITIES, "high"} == set(RANKS)


@pytest.mark.parametrize("priority", ["", "Normal", "5", 2, None, []], ids=repr)
def test_an_unknown_priority_is_refused(priority: str) -> None:
    """A priority is one of the words and nothing else."""
    with pytest.raises(InvalidMessage, match="priority"):
        rank(priority)


TRUTH = [
    ("a", "a", True),
    ("a", "b", False),
    ("a", "A", False),
    ("a", "a.b", False),
    ("a.b", "a.b", True),
    ("a.b", "a", False),
    ("*", "a", True),
    ("*", "a.b", False),
    ("a.*", "a.b", True),
    ("a.*", "a", False),
    ("a.*", "a.b.c", False),
    ("*.b", "a.b", True),
    ("*.b", "a.c", False),
    ("a.*.c", "a.b.c", True),
    ("a.*.c", "a.c", False),
    ("*.*", "a.b", True),
    ("*.*", "a", False),
    ("#", "a", True),
    ("#", "a.b.c", True),
    ("a.#", "a", True),
    ("a.#", "a.b", True),
    ("a.#", "a.b.c", True),
    ("a.#", "b", False),
    ("a.#", "ab", False),
    ("a.b.#", "a", False),
    ("*.#", "a", True),
    ("*.#", "a.b", True),
    ("a.*.#", "a", False),
    ("a.*.#", "a.b.c", True),
]


@pytest.mark.parametrize(("pattern", "topic", "expected"), TRUTH)
def test_patterns_match_segment_by_segment(pattern: str, topic: str, expected: bool) -> None:
    """A star is one segment, a trailing hash is any number of them, everything else is itself."""
    assert expected == matches(check_pattern(pattern), check_topic(topic))


@pytest.mark.parametrize(
    "topic",
    ["", ".", "a.", ".a", "a..b", "*", "a.*", "#", "a.#", "a*", "x" * 257, "a\nb", None, 7],
    ids=repr,
)
def test_bad_topics_are_refused(topic: str) -> None:
    """Nothing is published under an empty segment, a wildcard or an endless name."""
    with pytest.raises(InvalidMessage):
        check_topic(topic)


@pytest.mark.parametrize(
    "pattern",
    ["", ".", "a.", "#.a", "a.#.b", "#.#", "a*", "*a", "a#", "##", "**", "x" * 257, "a\n", None],
    ids=repr,
)
def test_bad_patterns_are_refused_by_name(pattern: str) -> None:
    """A pattern that could never match what its author meant fails when it is registered."""
    with pytest.raises(InvalidMessage, match="pattern"):
        check_pattern(pattern)


segments = st.lists(st.text(string.ascii_letters + "*#é -_", max_size=4), max_size=5).map(".".join)


@given(segments, segments)
def test_checks_and_matching_agree(pattern: str, topic: str) -> None:
    """Any two texts are refused or matched; a legal topic matches itself, and the hash alone."""
    try:
        check_topic(topic)
        assert matches(topic, topic)
        assert matches("#", topic)
        check_pattern(pattern)
    except InvalidMessage:
        return
    assert isinstance(matches(pattern, topic), bool)


def test_ids_sort_by_the_time_they_were_minted() -> None:
    """Ids of one process are unique, ascending, and legal as ids of a frame."""
    ids = [new_id() for _ in range(2000)]

    assert sorted(set(ids)) == ids
    assert {"7"} == {each[14] for each in ids}


def test_tokens_are_128_random_bits() -> None:
    """Two tokens never agree."""
    assert {32} == {len(new_token()) for _ in range(100)}
    assert 100 == len({new_token() for _ in range(100)})


@given(st.integers(0, 253_402_300_799_999))
def test_times_are_rfc_3339_with_milliseconds(at: int) -> None:
    """The text of a moment reads back as the same moment, up to the year 9999."""
    assert at == round(
        (datetime.fromisoformat(iso(at)) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
    )


def test_the_system_clock_tells_milliseconds() -> None:
    """The machine's clock lies after this line was written and does not step back."""
    clock = SystemClock()

    assert 1_700_000_000_000 < clock.now() <= clock.now()
    assert clock.monotonic() <= clock.monotonic()
