"""Topics: which may be published and subscribed to; the index finds what the plain rule finds."""

import random

import pytest

from onceward.errors import InvalidMessage, TopicError
from onceward.message.topics import TopicIndex, TopicPolicy, check_pattern, check_topic, matches

TRUTH = [
    ("build.frontend.complete", "build.frontend.complete", True),
    ("build.frontend.complete", "build.*.complete", True),
    ("build.frontend.complete", "build.#", True),
    ("build.frontend.complete", "*.frontend.*", True),
    ("build.frontend.complete", "*.*", False),
    ("build.frontend.complete", "build.frontend", False),
    ("build", "build.#", True),
    ("build", "build.*", False),
    ("build", "#", True),
    ("build", "*", True),
    ("build", "BUILD", False),
    ("build.x", "test.#", False),
    ("a", "a.b.#", False),
]
SEGMENTS = ["a", "b", "c", "build"]


@pytest.mark.parametrize(("topic", "pattern", "expected"), TRUTH)
def test_the_truth_table(topic: str, pattern: str, expected: bool) -> None:
    """The plain rule and the index give the same answer, which is the table's."""
    index: TopicIndex[str] = TopicIndex()
    index.add(pattern, "x")

    assert (expected, expected) == (matches(pattern, topic), bool(index.find(topic)))


def some_topic(rng: random.Random) -> str:
    """Return a topic of one to five segments."""
    return ".".join(rng.choice(SEGMENTS) for _ in range(rng.randint(1, 5)))


def some_pattern(rng: random.Random) -> str:
    """Return a pattern: one to five segments, some of them wild, sometimes with the rest open."""
    segments = [rng.choice([*SEGMENTS, "*"]) for _ in range(rng.randint(1, 4))]
    return (
        ".".join([*segments, "#"] if rng.random() < 0.3 else segments)
        if rng.random() > 0.02
        else "#"
    )


def test_the_index_agrees_with_the_rule_on_single_patterns() -> None:
    """5,000 random pairs, one live pattern each: the index finds it exactly where the rule does."""
    rng = random.Random(1)
    wrong = []
    for _ in range(5000):
        pattern, topic = some_pattern(rng), some_topic(rng)
        index: TopicIndex[str] = TopicIndex()
        index.add(check_pattern(pattern), pattern)
        if (index.find(topic) == [pattern]) != matches(pattern, topic):
            wrong.append((pattern, topic))

    assert [] == wrong


def test_the_index_agrees_with_the_rule_among_ten_thousand() -> None:
    """
    With 10,000 live patterns the index finds for 500 topics those that the rule finds.

    It finds each as often as it was added.
    """
    rng = random.Random(2)
    patterns = [some_pattern(rng) for _ in range(10_000)]
    index: TopicIndex[int] = TopicIndex()
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)
    known = {
        pattern: [n for n, each in enumerate(patterns) if each == pattern]
        for pattern in set(patterns)
    }

    for topic in {some_topic(rng) for _ in range(500)}:
        expected = sorted(
            n for pattern, numbers in known.items() if matches(pattern, topic) for n in numbers
        )
        assert expected == sorted(index.find(topic))


@pytest.mark.parametrize(
    "pattern",
    ["", "a..b", ".a", "a.", "a#", "#.a", "a.#.b", "a*", "*a.b", "a" * 257, "a\nb", None, 7],
)
def test_a_bad_pattern_is_named(pattern: str) -> None:
    """
    A pattern with empty segments, misplaced wildcards or over-length is refused.

    The error says which of these it is.
    """
    with pytest.raises(TopicError) as caught:
        check_pattern(pattern)

    assert repr(pattern)[:40] in str(caught.value)


@pytest.mark.parametrize(
    "topic", ["", "a.*", "#", "a..b", "a.#", "x" * 257, "_system", "_system.x.y"]
)
def test_what_may_not_be_published(topic: str) -> None:
    """Wildcards, the empty topic and reserved ones are refused; the error is also a ValueError."""
    with pytest.raises(ValueError, match="topic"):
        check_topic(topic)


def test_reserved_topics_may_be_subscribed_to() -> None:
    """Any agent may subscribe to the library's topics; a longer word is not the reserved one."""
    assert ("_system.#", "_systematic") == (check_pattern("_system.#"), check_topic("_systematic"))


def test_the_longest_topic_is_taken() -> None:
    """256 characters pass."""
    assert "x" * 256 == check_topic("x" * 256) == check_pattern("x" * 256)


def test_an_open_policy_takes_all() -> None:
    """Without a set every topic is fine, and so is none."""
    policy = TopicPolicy.of(None)
    policy.check("anything")
    policy.check(None)

    assert ("a.*",) == policy.check_filter("a.*")


def test_a_closed_policy_refuses_the_unknown() -> None:
    """
    A topic outside the set is refused on send and in filters.

    A pattern passes if it can match a known topic.
    """
    policy = TopicPolicy.of({"ask", "answer", "build.done"})
    policy.check("ask")
    for wrong in ("asks", "Ask", "build"):
        with pytest.raises(TopicError):
            policy.check(wrong)
    with pytest.raises(TopicError):
        policy.check_filter(["ask", "status"])

    assert ("ask", "build.*") == policy.check_filter(["ask", "build.*"])


def test_a_topic_error_is_an_invalid_message() -> None:
    """It is caught as a refused message and as ValueError."""
    assert issubclass(TopicError, InvalidMessage)
    assert issubclass(TopicError, ValueError)
