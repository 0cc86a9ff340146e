"""Count the messages of a lane that were sent, accepted and handled in different orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

from onceward.fleet.summary import GAPS

WITH_GAPS: Final = frozenset(GAPS)
NONE: Final = 0
"""The sequence of a row that is not there; sequences begin with one."""


@dataclass(slots=True)
class LaneOrder:
    """Counts of a lane's messages, which are added in order of acceptance."""

    messages: int = 0
    example: str = ""
    overtook: int = 0
    late: int = 0
    _handled: int = NONE
    """The highest mark so far, of the messages that were accepted."""
    _sent: int = NONE
    """The highest sequence at the sender so far, of the messages that were accepted."""
    _last: int = NONE
    """The highest sequence at the sender so far, of the messages that were handled."""
    _waiting: list[int] = field(default_factory=list)

    def add(
        self,
        verdicts: Sequence[Any],
        out: Sequence[int],
        taken: Sequence[int],
        marks: Sequence[int],
        ids: Sequence[str],
    ) -> None:
        """Add some messages; those that were never accepted come first."""
        self.messages += len(ids)
        self.example = max(self.example, *ids)
        self._last = max(self._last, *compress(out, marks), NONE)
        if not WITH_GAPS.isdisjoint(verdicts):
            waits = [verdict in WITH_GAPS for verdict in verdicts]
            self._waiting += filter(None, compress(out, waits))
        first = taken.count(NONE)
        overtook, self._handled = _behind(filter(None, marks[first:]), self._handled)
        late, self._sent = _behind(filter(None, out[first:]), self._sent)
        self.overtook += overtook
        self.late += late

    @property
    def row(self) -> tuple[Any, ...] | None:
        """Messages, those of each of ``LANE_MARKS``, and an example; None if all is in order."""
        gap = sum(seq < self._last for seq in self._waiting)
        if not (self.overtook or self.late or gap):
            return None
        return self.messages, self.overtook, self.late, gap, self.example


def _behind(sequences: Iterable[int], highest: int) -> tuple[int, int]:
    """Return how many of *sequences* come after a higher one, and the highest."""
    count = 0
    for seq in sequences:
        if seq < highest:
            count += 1
        else:
            highest = seq
    return count, highest
