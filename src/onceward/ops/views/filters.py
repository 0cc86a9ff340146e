"""Read the filter of a list of messages: ``type:task.* peer:shop state:dead since:1h text``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from onceward.errors import InvalidArgument
from onceward.message.clock import Millis
from onceward.message.names import quoted
from onceward.message.times import moment
from onceward.message.vocabulary import INBOX_STATES, OUTBOX_STATES, REASONS
from onceward.ops.views.listing import Conditions, pattern

DEAD: Final = "dead"
STATES: Final = (*dict.fromkeys((*OUTBOX_STATES, "sending", *INBOX_STATES, "processing", DEAD)),)
OF_COLUMNS: Final = ("reason", "peer", "type", "session", "topic")
"""Filters whose values are patterns of a column."""
NAMES: Final = ("type", "peer", "state", "reason", "session", "topic", "since", "until", "text")
WORD: Final = re.compile(
    r"""(?:(?P<name>[A-Za-z_]+):)?"""
    r"""(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<plain>(?![A-Za-z_]+:["'])[^\s"']\S*))"""
)
PLAIN: Final = re.compile(r"""[^\s"':]\S*""")
"""A value or a text that needs no quotes."""
EXAMPLE: Final = "type:task.* peer:shop state:dead since:1h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter of messages; None means no condition, ``*`` matches any characters."""

    type: str | None = None
    peer: str | None = None
    state: str | None = None
    reason: str | None = None
    session: str | None = None
    topic: str | None = None
    text: str | None = None
    """Text that occurs in the body."""
    since_at: Millis | None = None
    until_at: Millis | None = None

    @property
    def is_of_dead(self) -> bool:
        """Whether only dead letters match."""
        return self.state == DEAD

    @property
    def _given(self) -> dict[str, str]:
        named = {name: getattr(self, name) for name in OF_COLUMNS}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def conditions(self) -> Conditions:
        """The conditions on each message, except its time."""
        patterns: dict[str, Any] = {name: pattern(value) for name, value in self._given.items()}
        state = None if self.is_of_dead else self.state
        return Conditions(state=state, text=self.text, **patterns)

    @property
    def exact(self) -> dict[str, str] | None:
        """The conditions as exact names; None if they are more than that."""
        given = self._given
        more = any((self.text, self.since_at, self.until_at)) or self.state not in {None, DEAD}
        return None if more or any("*" in each for each in given.values()) else given


def parse(text: str, now: Millis, names: tuple[str, ...] = NAMES) -> Filter:
    """
    Return the filter of a text; words without a name are searched in the body.

    Raises:
        InvalidArgument: a word is not a condition in *names*, or its value is invalid.

    """
    given: dict[str, str] = {}
    words: list[str] = []
    for name, value in _words(text):
        if name == "text":
            words.append(value)
        elif name not in names:
            raise InvalidArgument(
                f"there is no filter {name} here, only {', '.join(names)}: quote a text with a "
                "colon"
            )
        elif name in given:
            raise InvalidArgument(f"{name}: is given twice; use * to match any characters")
        else:
            given[name] = value
    if words and "text" not in names:
        msg = f"{quoted(words[0])} needs a name here: {', '.join(names)}, such as {names[0]}:…"
        raise InvalidArgument(msg)
    return _checked(given, " ".join(words) or None, now)


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Yield each word as name and value; a word without a name is a text."""
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        found = WORD.match(text, position)
        if found is None:
            raise InvalidArgument(f"a quote is not closed: {text[position:]}")
        value = next(filter(None, found.group("double", "single", "plain")), "")
        if found["name"] is None and found["plain"] and value.endswith(":"):
            raise InvalidArgument(f"{value} has no value: {value}name")
        yield (found["name"] or "text").lower(), value
        position = found.end()


def _checked(given: dict[str, str], text: str | None, now: Millis) -> Filter:
    state, reason = given.get("state"), given.get("reason")
    if state is not None and state not in STATES:
        raise InvalidArgument(f"there is no state {state}: {', '.join(STATES)}")
    if state == DEAD and reason is not None and "*" not in reason and reason not in REASONS:
        msg = f"no dead letter has the reason {reason}: {', '.join(sorted(REASONS))}"
        raise InvalidArgument(msg)
    since, until = given.pop("since", None), given.pop("until", None)
    return Filter(
        text=text,
        since_at=None if since is None else moment("since", since, now),
        until_at=None if until is None else moment("until", until, now),
        **given,
    )


def told(**given: str | None) -> str:
    """Return the text of a filter with these conditions."""
    return " ".join(f"{name}:{_value(value)}" for name, value in given.items() if value)


def _value(value: str) -> str:
    if PLAIN.fullmatch(value):
        return value
    return f"'{value}'" if '"' in value else f'"{value}"'
