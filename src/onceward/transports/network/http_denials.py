"""Log for the operator of a home why requests are refused; senders do not learn it."""

from __future__ import annotations

from typing import Final

from onceward.message.clock import monotonic
from onceward.message.log import log
from onceward.message.names import AGENT, quoted

EVERY: Final = 60.0
"""Seconds between two lines about the same cause, so that unknown callers cannot fill a log."""


class Denials:
    """Writes one line for each cause and known peer, at most once a minute."""

    def __init__(self) -> None:
        self._told_at: dict[tuple[str, str, str], float] = {}

    def tell(self, why: str, *, agent: str, peer: str, known: bool, cure: str = "") -> None:
        """
        Log why a request of *peer* for *agent* was refused.

        Names that are not *known* here do not count as separate causes: a caller can invent any
        number of them.
        """
        cause = (why, agent, peer) if known else (why, "", "")
        now = monotonic()
        if now - self._told_at.get(cause, -EVERY) < EVERY:
            return
        self._told_at[cause] = now
        name = agent if AGENT.fullmatch(agent) else quoted(agent)
        log.warning("request refused", agent=name, peer=peer, why=f"{why}{cure}")


class NotServed(Denials):
    """Writes one cause for all requests to agents that are not served."""

    def tell(self, why: str, *, agent: str, peer: str, known: bool, cure: str = "") -> None:
        """Log that *agent* is not served here, also if the request had another fault."""
        del why, known, cure
        super().tell("no such agent is served here", agent=agent, peer=peer, known=False)
