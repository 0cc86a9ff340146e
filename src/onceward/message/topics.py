"""Match topics: dotted segments; ``*`` is one segment, a trailing ``#`` is zero or more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, Self, TypeVar

from onceward.errors import TopicError
from onceward.message.names import listed, quoted

T = TypeVar("T")
MAX: Final = 256
WILD: Final = frozenset("*#")
SYSTEM: Final = "_system"
"""First segment of topics that only the library itself publishes."""


def check_topic(topic: str, *, system: bool = False) -> str:
    """
    Return *topic* if it may be published.

    Raises:
        TopicError: an empty segment, a wildcard, too long, or reserved.

    """
    _checked(topic, what="topic", wild=frozenset())
    if not system and topic.partition(".")[0] == SYSTEM:
        raise TopicError(
            f"topic {topic!r}: {SYSTEM} is reserved for notifications;"
            " subscribe to it, publish elsewhere"
        )
    return topic


def check_pattern(pattern: str) -> str:
    """Return *pattern* if it may be subscribed to; raise TopicError with its name otherwise."""
    _checked(pattern, what="pattern", wild=WILD)
    if "#" in pattern.split(".")[:-1]:
        raise TopicError(f"pattern {pattern!r}: # may only be the last segment")
    return pattern


def _checked(text: str, *, what: str, wild: frozenset[str]) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= MAX or not text.isprintable():
        raise TopicError(f"{what} {quoted(text)} must be 1 to {MAX} printable characters")
    for segment in text.split("."):
        if not segment or (segment not in wild and WILD & set(segment)):
            raise TopicError(f"{what} {text!r}: segment {segment!r} is empty or holds a wildcard")
    return text


@lru_cache(maxsize=4096)
def matches(pattern: str, topic: str) -> bool:
    """Return whether *topic* matches *pattern*, segment by segment, case-sensitively."""
    want, have = pattern.split("."), topic.split(".")
    if want[-1] == "#":
        want = want[:-1]
        have = have[: len(want)] if len(have) >= len(want) else have
    return len(want) == len(have) and all(w in ("*", h) for w, h in zip(want, have, strict=True))


def matches_any(patterns: Iterable[str] | None, topic: str | None) -> bool:
    """Return whether *topic* matches one of *patterns*; without patterns all do, and None does."""
    return patterns is None or (topic is not None and any(matches(p, topic) for p in patterns))


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The topics that are allowed: all, or a closed set."""

    known: frozenset[str] | None = None

    @classmethod
    def of(cls, topics: Iterable[str] | None) -> Self:
        """Return the policy for a set of topics; None is open."""
        if isinstance(topics, str):
            topics = (topics,)
        return cls(
            None
            if topics is None
            else frozenset(check_topic(topic, system=True) for topic in listed("topics", topics))
        )

    def check(self, topic: str | None) -> None:
        """Raise TopicError for an unknown *topic*, if topics are restricted."""
        if self.known is not None and topic is not None and topic not in self.known:
            msg = f"topic {topic!r} is unknown here: there are {', '.join(sorted(self.known))}"
            raise TopicError(msg)

    def checked(self, topic: str, *, system: bool = False) -> str:
        """Return *topic* if it may be published here; raise TopicError otherwise."""
        check_topic(topic, system=system)
        if not system:
            self.check(topic)
        return topic

    def check_filter(self, wanted: str | Iterable[str] | None) -> tuple[str, ...]:
        """Return a filter's patterns; raise TopicError for a malformed or unmatchable one."""
        wanted = () if wanted is None else (wanted,) if isinstance(wanted, str) else wanted
        patterns = tuple(listed("topics", wanted))
        for pattern in patterns:
            check_pattern(pattern)
            if self.known is not None and not any(matches(pattern, topic) for topic in self.known):
                raise TopicError(
                    f"topic {pattern!r} is unknown here: there are {', '.join(sorted(self.known))}"
                )
        return patterns


class TopicPolicies:
    """The topics that are allowed in each session: its own set, else the postbox's."""

    def __init__(
        self, everywhere: Iterable[str] | None, sessions: Mapping[str, Iterable[str]]
    ) -> None:
        self._everywhere = TopicPolicy.of(everywhere)
        self._sessions = {name: TopicPolicy.of(topics) for name, topics in sessions.items()}

    def close(self, session: str, topics: Iterable[str]) -> None:
        """Restrict a session to these topics."""
        self._sessions[session] = TopicPolicy.of(topics)

    def of(self, session: str) -> TopicPolicy:
        """Return the policy of a session."""
        return self._sessions.get(session, self._everywhere)


class _Node(Generic[T]):
    """Patterns with a common prefix: those that go on, end here, or match all from here."""

    __slots__ = ("below", "ends", "rest")

    def __init__(self) -> None:
        self.below: dict[str, _Node[T]] = {}
        self.ends: list[T] = []
        self.rest: list[T] = []


class TopicIndex(Generic[T]):
    """
    Find the values whose pattern matches a topic.

    Exact patterns are in a dictionary, wildcards in a trie of segments. The cost of a lookup
    depends on the topic and its matches, not on the number of patterns.
    """

    def __init__(self) -> None:
        self._exact: dict[str, list[T]] = {}
        self._root: _Node[T] = _Node()
        self._wild = False

    def add(self, pattern: str, value: T) -> None:
        """Add *value* under *pattern*, which was checked."""
        if WILD.isdisjoint(pattern):
            self._exact.setdefault(pattern, []).append(value)
            return
        node, segments = self._root, pattern.split(".")
        for segment in segments[:-1] if segments[-1] == "#" else segments:
            node = node.below.setdefault(segment, _Node())
        (node.rest if segments[-1] == "#" else node.ends).append(value)
        self._wild = True

    def find(self, topic: str) -> list[T]:
        """Return the values of all matching patterns; one of several patterns may be repeated."""
        found = list(self._exact.get(topic, ()))
        if not self._wild:
            return found
        nodes = [self._root]
        for segment in topic.split("."):
            following = []
            for node in nodes:
                found += node.rest
                below = node.below
                if (child := below.get(segment)) is not None:
                    following.append(child)
                if (child := below.get("*")) is not None:
                    following.append(child)
            if not following:
                return found
            nodes = following
        for node in nodes:
            found += node.ends
            found += node.rest
        return found
