"""Fold the small objects of a shipped log on executors, one of its files after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from onceward.fleet.ship import ShippedLog
from onceward.fleet.ship import manifest as manifests
from onceward.fleet.ship.compaction import compacted
from onceward.fleet.ship.objects import Objects

NAMES: Final = ("file_id", "objects_before", "objects_after")


class Compaction(DataSource):
    """A row for each file of a log; reading it folds the file's objects."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which ``archive.compact`` reads it."""
        return "onceward_compaction"

    def schema(self) -> str:
        """Return the columns: a file, and how many objects it had and has."""
        return "file_id string, objects_before bigint, objects_after bigint"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return what folds."""
        return _Folder(self.options["uri"], int(self.options["few"]), int(self.options["tasks"]))


class _Folder(DataSourceReader):
    def __init__(self, uri: str, few: int, tasks: int) -> None:
        self._uri, self._few, self._tasks = uri, few, tasks

    def partitions(self) -> list[InputPartition]:
        """Deal the files of the log out to the tasks."""
        found = manifests.folders(ShippedLog(self._uri).objects)
        parts = (found[each :: self._tasks] for each in range(self._tasks))
        return [InputPartition(part) for part in parts if part]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fold the files of one task."""
        objects = ShippedLog(self._uri).objects
        for folder in partition.value or ():
            if (manifest := manifests.of_folder(objects, folder)) is not None:
                after = _folded(objects, manifest, self._few)
                row = manifest.file_id, len(manifest.segments), len(after.segments)
                yield pa.RecordBatch.from_arrays([pa.array([one]) for one in row], NAMES)


def _folded(objects: Objects, manifest: manifests.Manifest, few: int) -> manifests.Manifest:
    """Fold until nothing is left to fold; another process that commits meanwhile ends it, too."""
    while (after := compacted(objects, manifest, few=few)) is not manifest:
        manifest = after
    return manifest
