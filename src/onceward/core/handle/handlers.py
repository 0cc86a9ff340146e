"""Find the handler of a message: one function of an agent for one pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from onceward.message.handler_options import PLAIN_RULES, HandlerRules
from onceward.message.topics import matches

if TYPE_CHECKING:
    from onceward.core.handle.signatures import Around, Dependencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One function of an agent and the messages it handles."""

    pattern: str
    call: Callable[..., Any]
    body: Any
    """Type of the payload, from the annotation of the first parameter; None takes plain values."""
    takes_context: bool
    is_async: bool
    rules: HandlerRules = PLAIN_RULES
    dependencies: Dependencies | None = None
    around: tuple[Sequence[Around], ...] = ()
    """Generator functions that its agents gave ``around``, those of the outer agent first."""

    @property
    def attempts(self) -> int | None:
        """Attempts before a message is a dead letter; None as the retry policy says."""
        return self.rules.attempts

    @property
    def timeout(self) -> float | None:
        """Seconds that a call may take; None as the settings say."""
        return self.rules.timeout

    def wants(self, type_name: str, topic: str | None) -> bool:
        """Return whether a message of this type or topic is for this handler."""
        return matches(self.pattern, type_name) or (
            topic is not None and matches(self.pattern, topic)
        )


class Handlers:
    """The handlers of one agent, and which of them a message is for."""

    name: str
    unhandled: Literal["dead", "wait"]
    handlers: list[Handler]

    def _find(self, type_name: str, topic: str | None) -> Handler | None:
        """Return the handler of a message: an exact one before a pattern, older before younger."""
        for handler in self.handlers:
            if handler.pattern in (type_name, topic):
                return handler
        return next((h for h in self.handlers if h.wants(type_name, topic)), None)
