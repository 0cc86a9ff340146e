"""Plan the tasks: many small files together, a large file in slices of its sequence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from onceward.fleet.files import Found

LAST: Final = 2**63 - 1
"""A sequence that no row reaches."""
SMALLEST: Final = 4 * 1024 * 1024
"""Bytes below which a task costs more than its reading."""
FILE_COST: Final = 128 * 1024
"""Cost of opening a file, in bytes that could be read in that time."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of one file with a sequence above *after* and up to *to*."""

    path: str
    after: int = 0
    to: int = LAST
    file_id: str = ""
    """Identity that the file must have, in case it was replaced; empty: any."""
    epoch: int = 0

    @property
    def cut(self) -> bool:
        """Whether other tasks of the same reading have the rest of the file; not in a stream."""
        return not self.file_id and (self.after, self.to) != (0, LAST)


def tasks(
    files: Iterable[Found],
    *,
    target: int,
    least: int,
    edges: Callable[[str], tuple[int, int]] | None,
) -> list[list[Slice]]:
    """
    Return the slices of each task, about *target* bytes each.

    There are at least *least* tasks if there is enough to read.
    *edges* tells the first and last sequence of a large file; without it
    files are read whole.
    """
    listed = list(files)
    total = sum(found.size + FILE_COST for found in listed)
    aim = _aim(total, target, least or 2 * (os.cpu_count() or 1))
    return _packed(sorted(_cut(listed, aim, edges), key=lambda piece: -piece[0]), aim)


def packed(pieces: Sequence[tuple[int, Slice]], target: int, least: int) -> list[list[Slice]]:
    """Return the tasks of slices whose sizes are known."""
    sized = [(size + FILE_COST, piece) for size, piece in pieces]
    return _packed(
        sorted(sized, key=lambda piece: -piece[0]),
        _aim(sum(size for size, _ in sized), target, least),
    )


def _aim(total: int, target: int, least: int) -> int:
    return max(1, min(target, max(SMALLEST, total // least)))


def _cut(
    files: Iterable[Found], aim: int, edges: Callable[[str], tuple[int, int]] | None
) -> Iterator[tuple[int, Slice]]:
    for found in files:
        pieces = -(-found.size // aim)
        first, last = edges(found.path) if edges is not None and pieces > 1 else (0, 0)
        pieces = min(pieces, last - first + 1)
        if edges is None or pieces <= 1 or last == 0:
            yield found.size + FILE_COST, Slice(found.path)
            continue
        cuts = [
            0,
            *(first - 1 + (last - first + 1) * piece // pieces for piece in range(1, pieces)),
            LAST,
        ]
        for after, to in pairwise(cuts):
            yield found.size // pieces + FILE_COST, Slice(found.path, after, to)


def _packed(pieces: Iterable[tuple[int, Slice]], aim: int) -> list[list[Slice]]:
    made: list[list[Slice]] = []
    filled = aim
    for size, piece in pieces:
        if filled + size > aim:
            made.append([])
            filled = 0
        made[-1].append(piece)
        filled += size
    return made
