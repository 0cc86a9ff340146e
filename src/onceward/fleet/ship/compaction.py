"""Merge many small segments of a table into one, and remove unreferenced ones."""

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

FEW: Final = 6
"""Small segments of a table that are not merged."""
SMALL: Final = 4096
"""Rows that small segments have together: merging them takes milliseconds, so it is done often."""
MANY: Final = 16
"""Segments of a table that are not merged, small or large."""
LARGE: Final = 64 * 1024 * 1024
"""Maximum merged bytes: of a table with more, the newest segments are merged."""
ROWS: Final = 200_000
"""Maximum merged rows."""
Group = tuple[str, int]
"""Table and epoch: all versions of a row lie in one."""


@dataclass(frozen=True, slots=True)
class _Fold:
    """The newest segments of one group, of which one is made: no other may lie between them."""

    segments: tuple[Segment, ...]
    whole: bool
    """Whether the group has no others, in which earlier versions of rows may lie."""


def compacted(objects: Objects, manifest: Manifest, *, few: int | None = None) -> Manifest:
    """
    Return the manifest after the newest segments of each table became one, if they are too many.

    More than *few* are; by default more than 6 small ones, or 16. Rows and their last versions stay
    as they are. If another process commits meanwhile, nothing is done; the folded segments are
    removed some commits later, when no reader should need them.
    """
    folds = list(_folds(manifest, few or FEW, few or MANY))
    expired = [path for path, number in manifest.retired if number < manifest.number - RETIRED_FOR]
    if not folds and not expired:
        return manifest
    after = manifest.next()
    made = [_folded(objects, manifest, fold, after.number) for fold in folds]
    gone = {segment.path for fold in folds for segment in fold.segments}
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


def _folds(manifest: Manifest, few: int, many: int) -> Iterator[_Fold]:
    groups: defaultdict[Group, list[Segment]] = defaultdict(list)
    for segment in manifest.segments:
        groups[segment.table, segment.epoch].append(segment)
    for found in groups.values():
        small, all_ = tuple(_newest(found, min(SMALL, ROWS))), tuple(_newest(found, ROWS))
        if len(all_) > many:
            yield _Fold(all_, len(all_) == len(found))
        elif len(small) > few:
            yield _Fold(small, len(small) == len(found))


def _newest(group: Iterable[Segment], most: int) -> Iterator[Segment]:
    """Yield the newest segments as far as they have few rows and bytes together."""
    size, rows = 0, 0
    for segment in newest_first(group):
        size, rows = size + segment.bytes, rows + segment.rows
        if size > LARGE or rows > most:
            return
        yield segment


def _folded(objects: Objects, manifest: Manifest, fold: _Fold, number: int) -> Segment:
    rows = pa.concat_tables(last_versions(objects, fold.segments, None), promote_options="default")
    first = fold.segments[0]
    writer = Writer(
        objects,
        file_id=manifest.file_id,
        agent=manifest.agent,
        epoch=first.epoch,
        number=number,
    )
    again = not fold.whole and any(segment.again for segment in fold.segments)
    day = min(segment.day for segment in fold.segments)
    return writer.table(first.table, rows.sort_by("seq"), day=day, again=again)
