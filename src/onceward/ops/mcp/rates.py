"""Limit the messages that the clients of a server send."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from onceward.message.clock import monotonic
from onceward.message.times import GivenRate, read_rate
from onceward.ops.mcp.advice import refused


class SendLimit:
    """Counts the sends within the period of a rate; repetitions do not count."""

    def __init__(self, limit: GivenRate | None, clock: Callable[[], float] = monotonic) -> None:
        self._rate = None if limit is None else read_rate("limit", limit)
        self._clock = clock
        self._sent: deque[tuple[float, str]] = deque()

    def count(self, key: str) -> None:
        """Count the send of *key*; raise ToolError if it is one too many."""
        if self._rate is None:
            return
        now, most = self._clock(), self._rate.burst
        span = most / self._rate.per_second
        while self._sent and self._sent[0][0] <= now - span:
            self._sent.popleft()
        if any(key == known for _, known in self._sent):
            return
        if len(self._sent) >= most:
            wait = self._sent[0][0] + span - now
            what = f"this server sends at most {most} messages in {span:g} seconds"
            raise refused(what, f"Nothing was sent. Call again in {wait:.0f} seconds.")
        self._sent.append((now, key))
