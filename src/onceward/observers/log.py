"""Writes events with structlog: per message at DEBUG, trouble at WARNING or above."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from onceward.words.events import Event

LEVELS: Final = {
    "retry": "info",
    "unreached": "warning",
    "rejected": "warning",
    "failed": "warning",
    "dropped": "warning",
    "nearly_full": "warning",
    "weak_receipt": "warning",
    "dead": "error",
    "breaker_opened": "error",
    "breaker_closed": "info",
    "forked": "error",
    "peer_rolled_back": "error",
}
"""Level by event name; everything else is DEBUG, because one written line costs more than one insert."""


class LogHook:
    """
    One structured line per event: its name is the message, its fields are the keys.

    Bodies are not part of events, so none is ever logged. structlog is imported
    on first use.
    """

    def __init__(self, log: Any = None) -> None:
        if log is None:
            import structlog  # noqa: PLC0415 - costs more to import than the rest of the library

            log = structlog.get_logger("onceward")
        self._log = log

    def __call__(self, event: Event) -> None:
        """Write one line."""
        getattr(self._log, LEVELS.get(event.name, "debug"))(event.name, **asdict(event))
