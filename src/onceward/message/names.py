"""Check names and texts that users give, describe agents, and quote values in errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeVar

from onceward.errors import InvalidArgument, InvalidMessage
from onceward.message.clock import Millis
from onceward.message.vocabulary import ChannelRole

T = TypeVar("T")
F = TypeVar("F")
LONGEST: Final = 60
"""Maximum characters of a value in an error text."""


def quoted(value: object, longest: int = LONGEST) -> str:
    """
    Return the repr of a value, with at most *longest* of its characters.

    A truncated text ends in an ellipsis and its quote, so that readers see its end.
    """
    if isinstance(value, str | bytes):
        text = repr(value[:longest])
        return text if len(value) <= longest else f"{text[:-1]}…{text[-1]}"
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


AGENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TEXT_MAX: Final = 256
DIRECTORY: Final = "directory.db"
"""Name of the file that the agents of a home share; no agent's file has this name."""
IDENTITY: Final = "identity/home.key"
"""Path of a home's key in its folder; a home without one knows no other homes."""
POLL: Final = "poll:"
"""Url of a peer or home that cannot be called, and polls this one; that home's name follows."""
RESERVED: Final = frozenset({"all", "broadcast", "directory"})
"""Names for all agents, and the name of the file that a home's agents share."""
DEFAULT_SESSION: Final = "default"
PREFIX: Final = "ONCEWARD_"
"""Prefix of the names of our environment variables."""

PriorityName = Literal["critical", "urgent", "high", "normal", "low", "background"]
"""A priority of a send; ``high`` is a synonym for ``urgent``."""

RANKS: Final[dict[str, int]] = {
    "critical": 0,
    "urgent": 1,
    "high": 1,
    "normal": 2,
    "low": 3,
    "background": 4,
}
"""Rank by priority name, 0 first; ``high`` is a synonym for ``urgent``."""


def byte_length(text: str) -> int:
    """Return how many bytes *text* has as UTF-8; ASCII is not copied for it."""
    return len(text) if text.isascii() else len(text.encode())


def is_agent_name(name: str) -> bool:
    """Return whether *name* is valid for an agent."""
    return AGENT.fullmatch(name) is not None and name.lower() not in RESERVED


def agent_name(name: str) -> str:
    """Return *name* if it is valid for an agent; raise InvalidMessage otherwise."""
    if not isinstance(name, str) or not is_agent_name(name):
        raise InvalidMessage(
            f"agent name {quoted(name)} must match {AGENT.pattern} in full"
            f" and not be one of {sorted(RESERVED)}"
        )
    return name


def plain_text(field: str, value: str) -> str:
    """Return *value* if it is 1 to 256 printable characters; raise InvalidMessage otherwise."""
    if not isinstance(value, str) or not 0 < len(value) <= TEXT_MAX or not value.isprintable():
        msg = f"{field} {quoted(value)} must be 1 to {TEXT_MAX} printable characters"
        raise InvalidMessage(msg)
    return value


def listed(field: str, given: Iterable[T]) -> Iterable[T]:
    """
    Return *given* if it is a list or another iterable of values; raise InvalidArgument otherwise.

    The letters of a text and the keys of a mapping are not meant.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        msg = f"{field}={quoted(given)} must be a list"
        raise InvalidArgument(msg)
    return given


def is_text(text: str) -> bool:
    """Return whether a text consists of characters."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def check_function(field: str, given: F) -> F:
    """Return *given* if it can be called; raise InvalidArgument otherwise."""
    if not callable(given):
        raise InvalidArgument(f"{field}={quoted(given)} must be a function")
    return given


def refuse_options(
    what: str, unknown: Iterable[str], known: Iterable[str], more: str = ""
) -> NoReturn:
    """Raise TypeError for keyword arguments that *what*, such as ``a send``, does not accept."""
    raise TypeError(no_option(what, unknown, known, more))


def meant(given: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known name that is most like *given*, or nothing."""
    from difflib import get_close_matches  # noqa: PLC0415 - for a mistake only

    near = get_close_matches(given, list(known), 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


def no_option(what: str, unknown: Iterable[str], known: Iterable[str], more: str = "") -> str:
    """Return the error text for unknown names of *what*, with the nearest known ones."""
    from difflib import get_close_matches  # noqa: PLC0415 - for a mistake only

    missing, there = sorted(unknown), list(known)
    near = {found: None for each in missing for found in get_close_matches(each, there, 1)}
    meant = f"; did you mean {', '.join(near)}? There" if near else ": there"
    return f"{what} has no option {', '.join(missing)}{meant} are {', '.join(there)}{more}"


def rank(priority: str) -> int:
    """Return the stored rank of a priority; raise InvalidMessage for an unknown name."""
    try:
        return RANKS[priority]
    except (KeyError, TypeError):
        msg = f"priority {quoted(priority)} is not one of {', '.join(RANKS)}"
        raise InvalidMessage(msg) from None


DESCRIPTION_MAX: Final = 1024
CAPABILITIES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class AcceptedType:
    """A type, or pattern of types and topics, that an agent has a handler for."""

    type: str
    schema: dict[str, Any] | None = None
    """JSON schema of the body; None if the handler takes any."""


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """An agent's own text for its registry entry; None keeps the stored one."""

    description: str | None = None
    capabilities: tuple[str, ...] | None = None
    accepts: tuple[AcceptedType, ...] | None = None

    @property
    def says_nothing(self) -> bool:
        """Whether nothing is given."""
        return self == NOTHING_SAID


class Member(NamedTuple):
    """An agent in a channel; numbers grow in the order of joining."""

    agent: str
    role: ChannelRole
    number: int


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent as the registry of its home knows it."""

    name: str
    description: str
    capabilities: tuple[str, ...]
    joined_at: Millis
    last_seen_at: Millis
    """When a process last ran the agent's engines or maintenance, accurate to their interval."""
    accepts: tuple[AcceptedType, ...] = ()
    """The types that it had handlers for when its file was last opened with any."""


NOTHING_SAID: Final = AgentProfile()


def agent_profile(
    description: str | None = None, capabilities: Iterable[str] | None = None
) -> AgentProfile:
    """
    Return the profile of an agent.

    Raises:
        InvalidArgument: the description is too long or holds NUL, or the capabilities are too many
        or not a list.
        InvalidMessage: a capability is not 1 to 256 printable characters.

    """
    return AgentProfile(
        None if description is None else checked_description(description),
        None if capabilities is None else _capabilities(capabilities),
    )


def checked_description(text: str) -> str:
    """Return *text* if it is a valid description; raise InvalidArgument otherwise."""
    if not isinstance(text, str) or len(text) > DESCRIPTION_MAX or "\x00" in text:
        raise InvalidArgument(f"a description has at most {DESCRIPTION_MAX} characters and no NUL")
    if not is_text(text):
        raise InvalidArgument(f"description={quoted(text)} holds half a surrogate pair")
    return text


def _capabilities(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise InvalidArgument(f"capabilities must be a list of texts: write [{quoted(given)}]")
    found = tuple(
        dict.fromkeys(plain_text("capability", each) for each in listed("capabilities", given))
    )
    if len(found) > CAPABILITIES_MAX:
        msg = f"an agent has at most {CAPABILITIES_MAX} capabilities, not {len(found)}"
        raise InvalidArgument(msg)
    return found


def same_names(what: str, *names: Iterable[str]) -> None:
    """Raise TypeError for an option that is declared and not read, or read and not declared."""
    first, *others = map(set, names)
    for each in others:
        if missing := first ^ each:
            msg = f"options of {what}: {', '.join(sorted(missing))} must be declared and read"
            raise TypeError(msg)
