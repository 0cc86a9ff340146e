"""Find known files that are missing now: their knowledge can no longer be compared."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from onceward.fleet.coverage import READ, Reading
from onceward.message.clock import Millis, iso

CURE: Final = "restore it, or retire it with --retired {agent}"


@dataclass(frozen=True, slots=True)
class Known:
    """A file that was read or shipped earlier."""

    file: int
    """Number of its file id."""
    agent: str
    path: str
    """Path at its last reading; for a file of a shipped log its place in the log."""
    seen_at: Millis

    def named(self, names: Collection[str]) -> bool:
        """Return whether one of *names* is its agent's name or its path."""
        return self.agent in names or self.path in {*names, *map(os.path.realpath, names)}


def gone(known: Iterable[Known], tonight: Iterable[Reading]) -> list[Known]:
    """
    Return the *known* files that are not among those of *tonight*, wherever these lie.

    A file that cannot be read now still exists, if it is at its earlier path.
    """
    there = list(tonight)
    numbers = {one.file for one in there if one.state == READ}
    paths = {one.path for one in there if one.state != READ}
    return [one for one in known if one.file not in numbers and one.path not in paths]


def reading_of(one: Known) -> Reading:
    """Return a missing file as an unread one, with its cure."""
    detail = f"the file of {one.agent}, seen last at {iso(one.seen_at)}: {CURE}"
    return Reading(one.path, "gone", detail.format(agent=one.agent), agent=one.agent)
