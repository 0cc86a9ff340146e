"""How long a case may take: full size by default, smaller for a quick look."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LAP_FOR: Final = 0.5
ROUNDS: Final = 5
SETTLED_FOR: Final = 2.2
"""A file's guard looks twice as long as its folder is young; what is measured is the long run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    Where a case works and how much of it is done.

    *seconds* is the length of one lap, *size* a number of messages.
    """

    folder: Path
    seconds: float | None = None
    size: int | None = None

    @property
    def lap_for(self) -> float:
        """Seconds of one lap."""
        return LAP_FOR if self.seconds is None else self.seconds

    @property
    def rounds(self) -> int:
        """Laps of each side."""
        return ROUNDS if self.lap_for >= LAP_FOR / 5 else 1

    def messages(self, full: int, *, per_second: int) -> int:
        """
        Return how many messages a case of *full* size moves.

        That is the size asked for, or fewer where laps are short.
        """
        return self.scaled(full, per_second=per_second) if self.size is None else self.size

    def scaled(self, full: int, *, per_second: int) -> int:
        """Return *full*, or less where laps are shorter than usual."""
        return full if self.seconds is None else max(1, min(full, round(self.seconds * per_second)))

    def room(self, name: str) -> Path:
        """Return a new folder: neighbours' files are not to be seen from there."""
        made = self.folder / name
        made.mkdir()
        return made

    def settle(self) -> None:
        """Wait until the folders that were just written to are old news; not for a quick look."""
        if self.lap_for >= LAP_FOR / 5:
            time.sleep(SETTLED_FOR)
