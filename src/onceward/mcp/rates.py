"""Bound the messages that the clients of a server send in a minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from onceward.mcp.advice import refused

MINUTE: Final = 60.0


class MinuteLimit:
    """Counts sends of the last minute; a repeat of one of them counts nothing."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = per_minute, clock
        self._sent: deque[tuple[float, str]] = deque()

    def count(self, key: str) -> None:
        """Count the send of *key*; raise ToolError if it is one too many."""
        if self._most is None:
            return
        now = self._clock()
        while self._sent and self._sent[0][0] <= now - MINUTE:
            self._sent.popleft()
        if any(key == known for _, known in self._sent):
            return
        if len(self._sent) >= self._most:
            wait = self._sent[0][0] + MINUTE - now
            what = f"this server sends at most {self._most} messages a minute"
            raise refused(what, f"Nothing was sent. Call again in {wait:.0f} seconds.")
        self._sent.append((now, key))
