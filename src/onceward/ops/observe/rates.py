"""Compute how fast the totals of files grow between two readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from onceward.ops.observe.snapshots import FileSnapshot

GROWING: Final = ("enqueued", "processed")
"""Columns of ``onceward_stats`` that only grow and are shown per second."""
NONE: Final[Mapping[str, float]] = {}


class Rates:
    """The growth per second of each file's totals between the last two readings."""

    def __init__(self) -> None:
        self._before: dict[Path, tuple[float, Mapping[str, int]]] = {}
        self._rates: dict[Path, Mapping[str, float]] = {}

    def note(self, snapshots: Iterable[FileSnapshot], at: float) -> None:
        """Add a reading that was made *at* seconds of the monotonic clock."""
        seen = {each.path: each.overview.stats for each in snapshots if each.overview}
        self._rates = {path: self._grown(path, stats, at) for path, stats in seen.items()}
        self._before = {path: (at, stats) for path, stats in seen.items()}

    def of(self, path: Path, name: str) -> float | None:
        """Return the growth per second of one total of a file; None before the second reading."""
        return self._rates.get(path, NONE).get(name)

    def _grown(self, path: Path, after: Mapping[str, int], at: float) -> Mapping[str, float]:
        since, before = self._before.get(path, (at, after))
        if at <= since:
            return NONE
        return {name: max(0, after[name] - before[name]) / (at - since) for name in GROWING}
