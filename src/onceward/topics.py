"""Topics and patterns: dotted segments, ``*`` is one segment, a trailing ``#`` is zero or more."""

from __future__ import annotations

from typing import Final

from onceward.errors import InvalidMessage

MAX: Final = 256
WILD: Final = frozenset("*#")


def check_topic(topic: str) -> str:
    """Return *topic* if it may be published; raise InvalidMessage for empty segments, wildcards or over-length."""
    return _checked(topic, what="topic", wild=frozenset())


def check_pattern(pattern: str) -> str:
    """Return *pattern* if it may be subscribed to; raise InvalidMessage naming the pattern otherwise."""
    _checked(pattern, what="pattern", wild=WILD)
    if "#" in pattern.split(".")[:-1]:
        msg = f"pattern {pattern!r}: # may only be the last segment"
        raise InvalidMessage(msg)
    return pattern


def _checked(text: str, *, what: str, wild: frozenset[str]) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= MAX or not text.isprintable():
        msg = f"{what} {text!r:.80} must be 1 to {MAX} printable characters"
        raise InvalidMessage(msg)
    for segment in text.split("."):
        if not segment or (segment not in wild and WILD & set(segment)):
            msg = f"{what} {text!r}: segment {segment!r} is empty or holds a wildcard"
            raise InvalidMessage(msg)
    return text


def matches(pattern: str, topic: str) -> bool:
    """Return whether *topic* falls under *pattern*, segment by segment, case-sensitively."""
    want, have = pattern.split("."), topic.split(".")
    if want[-1] == "#":
        want = want[:-1]
        have = have[: len(want)] if len(have) >= len(want) else have
    return len(want) == len(have) and all(w in ("*", h) for w, h in zip(want, have, strict=True))
