"""Fold many small segments of a day into one, and remove what no commit names any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from onceward.fleet.ship import manifest as manifests
from onceward.fleet.ship.log import last_versions
from onceward.fleet.ship.manifest import RETIRED_FOR, Manifest, Segment
from onceward.fleet.ship.objects import Objects
from onceward.fleet.ship.segments import Writer

FEW: Final = 16
"""Segments of one day's table that are left alone."""
LARGE: Final = 64 * 1024 * 1024
"""Bytes of a day's segments above which they are left as they are."""
Group = tuple[str, int, int]
"""Table, epoch and day: all versions of a row lie in one."""


def compacted(objects: Objects, manifest: Manifest, *, few: int = FEW) -> Manifest:
    """
    Return the manifest after each day with more than *few* small segments was folded into one.

    Rows and their last versions stay as they are. If another process commits meanwhile, nothing is
    done; the folded segments are removed some commits later, when no reader should need them.
    """
    folds = [group for group in _groups(manifest) if len(group) > few]
    expired = [path for path, number in manifest.retired if number < manifest.number - RETIRED_FOR]
    if not folds and not expired:
        return manifest
    after = manifest.next()
    made = [_fold(objects, manifest, group, after.number) for group in folds]
    gone = {segment.path for group in folds for segment in group}
    kept = tuple(each for each in manifest.segments if each.path not in gone)
    retired = [each for each in manifest.retired if each[0] not in expired]
    after = manifests.replaced(
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


def _groups(manifest: Manifest) -> Iterator[list[Segment]]:
    groups: defaultdict[Group, list[Segment]] = defaultdict(list)
    for segment in manifest.segments:
        groups[segment.table, segment.epoch, segment.day].append(segment)
    for found in groups.values():
        if sum(segment.bytes for segment in found) <= LARGE:
            yield found


def _fold(objects: Objects, manifest: Manifest, group: Iterable[Segment], number: int) -> Segment:
    found = list(group)
    rows = pa.concat_tables(last_versions(objects, found, None), promote_options="default")
    writer = Writer(
        objects,
        file_id=manifest.file_id,
        agent=manifest.agent,
        epoch=found[0].epoch,
        number=number,
    )
    day = found[0].day
    # Only a row that is gone, and whose day is not known any more, has its versions in two days.
    again = day == 0 and any(segment.again for segment in found)
    return writer.table(found[0].table, rows.sort_by("seq"), day=day, again=again)
