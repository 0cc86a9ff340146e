"""Ask one file for limits of handlers that are set while they run, and for paused types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.file.sql_parts import columns
from onceward.message.clock import Millis
from onceward.message.topics import matches
from onceward.ops.views.asking import Source, values


@dataclass(frozen=True, slots=True)
class HandlerLimit:
    """The limits that are set for one handler, or the pause of a type, and declared limits."""

    name: str
    per_second: float | None
    burst: float | None
    concurrency: int | None
    paused_at: Millis | None
    changed_at: Millis
    applied_at: Millis | None
    declared_per_second: float | None
    declared_burst: float | None
    declared_concurrency: int | None

    def fits(self, type: str, topic: str | None) -> bool:
        """Return whether it applies to messages of a type or topic."""
        return matches(self.name, type) or (topic is not None and matches(self.name, topic))

    @property
    def set_limits(self) -> str:
        """The set limits in words: ``10/s, 2 at once``."""
        return _limits(self.per_second, self.burst, self.concurrency)

    @property
    def declared(self) -> str:
        """The declared limits in words; ``not known`` until a worker has applied the set ones."""
        if self.applied_at is None:
            return "not known until a worker claims"
        found = _limits(self.declared_per_second, self.declared_burst, self.declared_concurrency)
        return found or "no limit"


def _limits(per_second: float | None, burst: float | None, concurrency: int | None) -> str:
    rate = "" if per_second is None else rate_text(per_second, burst)
    return ", ".join(filter(None, (rate, f"{concurrency} at once" if concurrency else "")))


def rate_text(per_second: float, burst: float | None) -> str:
    """Return a rate as it is given: ``10/m``; with a burst of its own ``10/m in bursts of 3``."""
    for unit, seconds in (("s", 1), ("m", 60), ("h", 3600)):
        count = per_second * seconds
        if count >= 1 or unit == "h":
            text = f"{count:.3g}/{unit}"
            break
    return text if burst is None or burst == round(count) else f"{text} in bursts of {burst:g}"


ALL: Final = f"SELECT {columns(HandlerLimit)} FROM onceward_handler_limits ORDER BY name"


def handler_limits(source: Source) -> tuple[HandlerLimit, ...]:
    """Return what is set for handlers, by name."""
    return values(source, HandlerLimit, ALL)
