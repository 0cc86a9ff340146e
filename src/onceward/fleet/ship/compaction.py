"""Merge many small segments of a day into one, and remove unreferenced ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from onceward.fleet.ship import manifest as manifests
from onceward.fleet.ship.log import last_versions, newest_first
from onceward.fleet.ship.manifest import RETIRED_FOR, Manifest, Segment
from onceward.fleet.ship.objects import Objects
from onceward.fleet.ship.segments import Writer

FEW: Final = 16
"""Segments of one day's table that are not merged."""
LARGE: Final = 64 * 1024 * 1024
"""Maximum merged bytes: of a day with more, the newest segments are merged."""
ROWS: Final = 200_000
"""Maximum merged rows."""
Group = tuple[str, int, int]
"""Table, epoch and day: all versions of a row lie in one."""


@dataclass(frozen=True, slots=True)
class _Day:
    """The newest segments of one group that are small enough to be folded."""

    segments: tuple[Segment, ...]
    whole: bool
    """Whether the group has no others, in which earlier versions of rows may lie."""


def compacted(objects: Objects, manifest: Manifest, *, few: int = FEW) -> Manifest:
    """
    Return the manifest after the small segments of each day with more than *few* became one.

    Rows and their last versions stay as they are. If another process commits meanwhile, nothing is
    done; the folded segments are removed some commits later, when no reader should need them.
    """
    folds = [day for day in _days(manifest) if len(day.segments) > few]
    expired = [path for path, number in manifest.retired if number < manifest.number - RETIRED_FOR]
    if not folds and not expired:
        return manifest
    after = manifest.next()
    made = [_fold(objects, manifest, day, after.number) for day in folds]
    gone = {segment.path for day in folds for segment in day.segments}
    kept = tuple(each for each in manifest.segments if each.path not in gone)
    retired = [each for each in manifest.retired if each[0] not in expired]
    after = replace(
        after,
        segments=(*kept, *made),
        retired=(*retired, *((path, after.number) for path in sorted(gone))),
    )
    manifests.checked(made, objects)
    if not manifests.commit(objects, after):
        for segment in made:
            objects.remove(segment.path)
        return manifest
    for path in expired:
        objects.remove(path)
    return after


def _days(manifest: Manifest) -> Iterator[_Day]:
    groups: defaultdict[Group, list[Segment]] = defaultdict(list)
    for segment in manifest.segments:
        groups[segment.table, segment.epoch, segment.day].append(segment)
    for found in groups.values():
        small = tuple(_newest(found))
        yield _Day(small, len(small) == len(found))


def _newest(group: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the newest segments as far as they are small together."""
    size, rows = 0, 0
    for segment in newest_first(group):
        size, rows = size + segment.bytes, rows + segment.rows
        if size > LARGE or rows > ROWS:
            return
        yield segment


def _fold(objects: Objects, manifest: Manifest, day: _Day, number: int) -> Segment:
    rows = pa.concat_tables(last_versions(objects, day.segments, None), promote_options="default")
    first = day.segments[0]
    writer = Writer(
        objects,
        file_id=manifest.file_id,
        agent=manifest.agent,
        epoch=first.epoch,
        number=number,
    )
    again = not day.whole and any(segment.again for segment in day.segments)
    return writer.table(first.table, rows.sort_by("seq"), day=first.day, again=again)
