"""Define what an agent says of itself in the registry of its home."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from onceward.errors import InvalidArgument
from onceward.message.names import plain_text
from onceward.message.quoting import quoted

DESCRIPTION_MAX: Final = 1024
CAPABILITIES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """Description and capabilities of an agent; None leaves what the registry has."""

    description: str | None = None
    capabilities: tuple[str, ...] | None = None

    @property
    def says_nothing(self) -> bool:
        """Whether neither is given."""
        return self.description is None and self.capabilities is None


def agent_profile(
    description: str | None = None, capabilities: Iterable[str] | None = None
) -> AgentProfile:
    """
    Return the profile of an agent.

    Raises:
        InvalidArgument: the description is too long or holds NUL, or the capabilities are too
            many or no list.
        InvalidMessage: a capability is not 1 to 256 printable characters.

    """
    return AgentProfile(
        None if description is None else checked_description(description),
        None if capabilities is None else _capabilities(capabilities),
    )


def checked_description(text: str) -> str:
    """Return *text* if it is a valid description; raise InvalidArgument otherwise."""
    if not isinstance(text, str) or len(text) > DESCRIPTION_MAX or "\x00" in text:
        msg = f"a description has at most {DESCRIPTION_MAX} characters and no NUL"
        raise InvalidArgument(msg)
    return text


def _capabilities(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        msg = f"capabilities are a list of texts: write [{quoted(given)}]"
        raise InvalidArgument(msg)
    found = tuple(dict.fromkeys(plain_text("capability", each) for each in given))
    if len(found) > CAPABILITIES_MAX:
        msg = f"an agent has at most {CAPABILITIES_MAX} capabilities, not {len(found)}"
        raise InvalidArgument(msg)
    return found
