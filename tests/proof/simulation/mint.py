"""Ids of a simulated world: as sorted as real ones, and the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from onceward.message.clock import Clock
from onceward.message.ids import RepeatableIds

DERIVE: Final = RepeatableIds.__call__
"""Returns the id of what a handler sends."""


class Mint:
    """Mints UUIDv7 by the clock of the agent that asks, which may have been set back."""

    def __init__(self, rng: random.Random, clocks: Mapping[str, Clock], minted: set[str]) -> None:
        self._rng, self._clocks, self._minted = rng, clocks, minted
        self._numbers = count(1)
        self.next: dict[str, list[str]] = {}
        """Ids that the agents are to mint next."""
        self._note_derived()

    def source(self, name: str) -> Callable[[], str]:
        """Return the source of ids of an agent."""

        def source() -> str:
            waiting = self.next.get(name)
            return waiting.pop(0) if waiting else self.new(name)

        return source

    def new(self, name: str) -> str:
        """Return a new id, as an agent mints one now."""
        at, (chance, number) = self._clocks[name].now(), self.draw()
        stamp, last = (
            f"{at:012x}",
            f"{0x8 | chance & 3:x}{chance >> 2 & 0xFFF:03x}-{chance >> 14:012x}",
        )
        made = f"{stamp[:8]}-{stamp[8:]}-7{number:03x}-{last}"
        self._minted.add(made)
        return made

    def draw(self) -> tuple[int, int]:
        """Return the random part and the number of the next id."""
        return self._rng.getrandbits(62), next(self._numbers) & 0xFFF

    def close(self) -> None:
        """Stop noting the ids of what handlers send."""
        RepeatableIds.__call__ = DERIVE  # type: ignore[method-assign]

    def _note_derived(self) -> None:
        """
        Note the ids of what handlers send, until the world is closed.

        Draw as for a new id, so that seeds keep their stories.
        """

        def noted(source: RepeatableIds, to: str, kind: str, number: int | None = None) -> str:
            self.draw()
            made = DERIVE(source, to, kind, number)
            self._minted.add(made)
            return made

        RepeatableIds.__call__ = noted  # type: ignore[method-assign, assignment]
