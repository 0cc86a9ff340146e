"""Fold the small objects of one file in a shipped log, until few are left; knows no Spark."""

from __future__ import annotations

from typing import Final

from onceward.fleet.ship import manifest as manifests
from onceward.fleet.ship.compaction import compacted
from onceward.fleet.ship.objects import objects_at

FOLDED: Final = "file_id string, objects_before bigint, objects_after bigint"


def folded(uri: str, folder: str, few: int) -> tuple[str, int, int] | None:
    """
    Fold the objects of the file with this *folder* of manifests; None if no manifest is there yet.

    Ends as well when another process commits meanwhile.
    """
    objects = objects_at(uri)
    found = manifests.of_folder(objects, folder)
    if found is None:
        return None
    last = found
    while (after := compacted(objects, last, few=few)) is not last:
        last = after
    return found.file_id, len(found.segments), len(last.segments)
