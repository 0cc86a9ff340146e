"""Name the cases: which life is cut, where, how, and what may follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Self

from tests.proof.power_cut.disk import Op
from tests.proof.power_cut.persistence import DRAWS, MODELS

KILL: Final = "kill"
BLOCK: Final = 64
"""Neighbouring operations that one process looks at: identical images lie close together."""
AIMED_CUTS: Final = 2
"""Syncs of a recovering life before which an aimed exploration cuts the power."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a life: number of operations and model; ``kill`` spares the disk."""

    position: int
    model: str
    draw: int = 0

    def __str__(self) -> str:
        return f"{self.position}/{self.model}/{self.draw}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` wrote."""
        position, model, draw = text.strip().split("/")
        if model != KILL and model not in MODELS:
            msg = f"no model is called {model!r}: there are {', '.join(MODELS)} and {KILL}"
            raise ValueError(msg)
        return cls(int(position), model, int(draw))

    def rng(self, seed: int) -> Random:
        """Return the random generator of this cut, the same for each process and run."""
        return Random(f"{seed}:{self}")


def shuffled(length: int, rng: Random, *, part: int, parts: int) -> list[Cut]:
    """Return this process's share of all cuts of a life of so many operations, shuffled."""
    mine = [at for at in range(1, length + 1) if at // BLOCK % parts == part]
    found = [Cut(at, model, draw) for at in mine for model, draw in DRAWS]
    rng.shuffle(found)
    return found


def endings(log: Sequence[Op], rng: Random) -> Iterator[Cut]:
    """Yield ends of a first life: kills as often as cuts, half of the kills before a sync."""
    unsynced = before_syncs(log)
    while True:
        model, draw = rng.choice(DRAWS)
        cut = Cut(rng.randint(1, len(log)), model, draw)
        yield rng.choice((cut, cut, Cut(cut.position, KILL), Cut(rng.choice(unsynced), KILL)))


def before_syncs(log: Sequence[Op]) -> list[int]:
    """Return the positions of a life at which its last writes are in the cache only."""
    return [position for position, op in enumerate(log) if op.kind == "sync"]


def aimed_endings(log: Sequence[Op], rng: Random, *, part: int, parts: int) -> list[Cut]:
    """Return this process's share of all kills just before a sync, shuffled."""
    found = [Cut(position, KILL) for position in before_syncs(log)[part::parts]]
    rng.shuffle(found)
    return found


def aimed_seconds(log: Sequence[Op]) -> list[Cut]:
    """Return cuts at the next life's first syncs: what the killed one had not synced is lost."""
    return [Cut(position, "nothing") for position in before_syncs(log)[:AIMED_CUTS]]


def seconds(log: Sequence[Op], rng: Random) -> Iterator[Cut]:
    """Yield cuts of a recovering life, more of them while what it read may not be durable."""
    while True:
        model, draw = rng.choice(DRAWS)
        yield Cut(rng.randint(1, rng.choice((len(log), len(log) // 4 + 1))), model, draw)
