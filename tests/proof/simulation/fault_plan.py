"""Draw which faults happen in one simulated world, and how often, from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from onceward import Tuning
from onceward.message.settings import Settings

Rates = dict[str, float]

WAYS: Final[Rates] = {
    "drop": 0.1,
    "lose": 0.15,
    "twice": 0.1,
    "delay": 0.1,
    "corrupt": 0.06,
    "refuse": 0.01,
}
"""Faults of one push: lost, its answer lost, twice, late, damaged, refused for good or its size."""
BLOWS: Final[Rates] = {
    "kill": 3,
    "kill_inside": 5,
    "commit_fails": 3,
    "partition": 2,
    "clock_jump": 1.5,
    "restore": 0.7,
    "clone": 0.7,
    "pause": 0.5,
}
"""Accidents of an agent between two steps, by weight."""
RARE: Final = 0.35
"""Share of worlds in which a blow never falls: a fault that is always there hides the others."""
DAY: Final = 86_400.0
SHORT: Final[dict[str, Any]] = {
    "delivery_retry": "1s..8s ±30%",
    "handler_retry": "1s..8s ±30%",
    "ack_timeout": 5.0,
    "deliver_timeout": 1.0,
    "tuning": {"breaker_open_for": 4.0, "breaker_failures": 3},
    "lease": 5.0,
    "busy_timeout": 0.0,
    "hold_unknown": True,
}
"""Short spans; a taken file is reported at once: one thread has no other that could free it."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults of one world; all rates are 0 in fair weather."""

    ways: Rates = field(default_factory=dict)
    """By name of ``WAYS``: the chance that it happens to a push."""
    blows: Rates = field(default_factory=dict)
    """By name of ``BLOWS``: how often an agent is hit, relative to ordinary steps."""
    meanwhile: float = 0.0
    """The chance that others act while a push is under way or a handler runs."""
    processes: int = 1
    """How many processes each agent has open on its file."""
    settings: dict[str, Any] = field(default_factory=lambda: dict(SHORT))
    """Settings of every postbox."""

    @classmethod
    def of(cls, rng: random.Random) -> Self:
        """Draw a world's weather."""
        return cls(
            ways={
                name: rate * rng.choice((0.5, 1, 3))
                for name, rate in WAYS.items()
                if rng.random() > RARE
            },
            blows={name: rate for name, rate in BLOWS.items() if rng.random() > RARE},
            meanwhile=rng.choice((0.0, 0.1, 0.3)),
            processes=rng.choice((1, 2, 2)),
            settings=_retaining(SHORT | _limits(rng)),
        )

    def with_restores(self) -> Weather:
        """Return it with files restored and taken over often; ids repeat, nothing is pruned."""
        others = {"restore": 0.0, "clone": 0.0, "clock_jump": 0.0, "replay": 0.0}
        blows = self.blows | others | {"lose": 4.0, "redo": 1.5, "take_over": 3.0}
        return replace(self, blows=blows, settings=self.settings | {"retention": 7 * DAY})

    @property
    def remembers(self) -> bool:
        """Whether nothing is pruned while the story lasts."""
        return bool(self.settings.get("retention", 7 * DAY) >= DAY)


def _retaining(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings that retain as long as they try again, as every postbox must."""
    horizon = Settings.model_validate(settings).delivery_policy.horizon
    return settings | {"retention": max(settings["retention"], horizon)}


def _limits(rng: random.Random) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "delivery_attempts": rng.choice((3, 11)),
        "handler_attempts": rng.choice((2, 5)),
        "parcel_max_messages": rng.choice((1, 2, 5, 500)),
        "claim_messages": rng.choice((1, 3, 200)),
        "max_inbox": rng.choice((3, 1_000_000, 1_000_000)),
        "max_pending": rng.choice((8, 100_000, 100_000)),
        "retention": rng.choice((0.0, 10.0, 7 * DAY, 7 * DAY)),
        "retention_slice": rng.choice((1, 3, 500)),
        "share_commit_for": rng.choice((0.0, 0.02)),
        "count_unreachable_attempts": rng.choice((False, False, False, True)),
        "ack": rng.choice(("processed", "processed", "stored")),
        "workers": rng.choice((1, 1, 2)),
    }
    tuning = {name: drawn.pop(name) for name in Tuning.model_fields if name in drawn}
    return drawn | {"tuning": Tuning(**SHORT["tuning"] | tuning)}
