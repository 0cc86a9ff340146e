"""Find copies of a file that differ from the current one, so that they hide no loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import apsw

from onceward.fleet import sides
from onceward.fleet.coverage import READ, Reading
from onceward.fleet.loading import attached, load
from onceward.fleet.opening import Unreadable
from onceward.fleet.unsettled import Places, continues, places_of

DIFFERS: Final = (
    "it has rows that {living}, the last opened copy of {agent}'s file, lacks: only events in "
    "both were counted; reconcile it separately, or remove it"
)
STANDING: Final = "SELECT opened_at, clock_at, opened FROM agent._onceward_file_info"


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of one copy of a file."""

    reading: Reading
    opened_at: int
    clock: int
    opened: int
    places: Places

    @property
    def latest(self) -> tuple[object, ...]:
        """The order of copies: the last opened one is current, then the furthest one."""
        highs = [high for high, _ in self.places.values()]
        return self.opened_at, self.clock, self.opened, highs, self.reading.path


def load_all(con: apsw.Connection, paths: Iterable[str]) -> list[Reading]:
    """
    Add the evidence of all files; return the facts of each.

    A copy that differs from the current file counts as not read, and adds only evidence of repeated
    effects.
    """
    readings = [load(con, path) for path in paths]
    apart = differing(con, readings)
    again = {one.file for one in readings if one.path in apart}
    for file in again:
        sides.remove(con, file)
    return [_again(con, one.path, apart) if one.file in again else one for one in readings]


def _again(con: apsw.Connection, path: str, apart: Mapping[str, str]) -> Reading:
    living = apart.get(path)
    return load(con, path) if living is None else load_apart(con, path, living)


def load_apart(con: apsw.Connection, path: str, living: str) -> Reading:
    """Add a copy's evidence of repeated effects; return it as a file that was not read."""
    read = load(con, path, apart=True)
    if read.state != READ:
        return read
    detail = DIFFERS.format(living=living, agent=read.agent)
    return Reading(path, "differs", detail, agent=read.agent)


def differing(con: apsw.Connection, readings: Iterable[Reading]) -> dict[str, str]:
    """
    Return the differing copies by path, with the path of the current file.

    Of several files with one id the one that was opened last is the current one. Its backup adds
    nothing; a file that was moved away before a restore does, and so does a second copy in use. An
    unreadable copy is skipped.
    """
    files: defaultdict[int, list[Reading]] = defaultdict(list)
    for one in readings:
        if one.state == READ:
            files[one.file].append(one)
    found: dict[str, str] = {}
    for group in files.values():
        if len(group) > 1:
            found |= _differing(con, group)
    return found


def _differing(con: apsw.Connection, group: Sequence[Reading]) -> dict[str, str]:
    standings = [found for one in group if (found := _standing(con, one)) is not None]
    if not standings:
        return {}
    living = max(standings, key=lambda one: one.latest)
    path = living.reading.path
    with attached(con, path):
        return {
            one.reading.path: path
            for one in standings
            if one is not living and not _goes_on(con, living, one)
        }


def _standing(con: apsw.Connection, one: Reading) -> Standing | None:
    try:
        with attached(con, one.path):
            [(opened_at, clock, opened)] = con.execute(STANDING).fetchall()
            numbers = (int(str(opened_at)), int(str(clock)), int(str(opened)))
            return Standing(one, *numbers, places_of(con))
    except Unreadable:
        return None


def _goes_on(con: apsw.Connection, living: Standing, copy: Standing) -> bool:
    """Return whether the attached *living* file has all rows of the copy."""
    reopened = living.opened == copy.opened and living.opened_at != copy.opened_at
    behind = living.opened < copy.opened or living.clock < copy.clock
    return not (reopened or behind) and continues(con, copy.places, living.places)
