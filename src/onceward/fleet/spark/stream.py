"""Follow a table of the whole fleet, micro-batch by micro-batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from onceward.fleet import plan
from onceward.fleet.columns import InvalidOption
from onceward.fleet.opening import PASSING, Unreadable
from onceward.fleet.rows import Wanted
from onceward.fleet.spark import follow, mistakes
from onceward.fleet.spark.options import Options
from onceward.fleet.spark.positions import Manifests, Offset, Positions, start
from onceward.fleet.spark.reader import Task, read, settle, wanted_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Refusing(DataSourceStreamReader):
    """
    Fails a query by its first call.

    Spark hides an error that ``streamReader`` raises behind one of its own.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @mistakes.reported()
    def initialOffset(self) -> Offset:
        """Raise the error."""
        raise self._error

    @mistakes.reported()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002 - Spark's signature
        """Raise the error, where the query began earlier."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - as above
        """Raise the error; nothing is planned."""
        raise self._error


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """New rows of one table, by file and sequence; each once per epoch, in its present state."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if [part.keyed and part.view in follow.COUNTED for part in options.chosen.parts] != [True]:
            lacks = f"table {options.table} cannot be followed, its rows have no sequence"
            raise InvalidOption(f"{lacks}: read it at once, or follow transitions")
        self._options = options
        self._wanted = Wanted(wanted_columns(options, schema), options.where, options.batch_rows)
        self._manifests, self._start = Manifests(options.manifests), start()
        self._follower: follow.Follower | None = None
        self._frozen = False
        self._target: dict[str, follow.Head] | None = None
        self._lag: Offset | None = None

    def initialOffset(self) -> Offset:
        """Begin with nothing read."""
        return self._start

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options name."""
        most = self._options.max_rows_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """After this nothing is newer than what the next look finds."""
        self._frozen, self._target = True, None

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return how far the next micro-batch goes; *start* itself where nothing is new."""
        known = self._manifests.positions(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = self._advanced(known, most)
        while (
            reached is known and self._frozen and self._looking.behind
        ):  # to say that nothing is new would end the query
            reached = self._advanced(known, most)
        return start if reached is known else self._manifests.offset(reached, start)

    def reportLatestOffset(self) -> Offset | None:
        """Return how many rows there are, and the agents with most of those that still wait."""
        return self._lag

    def _advanced(self, known: Positions, most: int | None) -> Positions:
        heads = self._heads(known)
        reached = self._looking.anchored(known, follow.advance(known, heads, most))
        self._lag = follow.lag(reached, heads)
        return reached

    @property
    def _looking(self) -> follow.Follower:
        if self._follower is None:
            self._follower = follow.Follower(self._options)
        return self._follower

    def _heads(self, known: Positions) -> Mapping[str, follow.Head]:
        if not self._frozen:
            return self._looking.heads(known)
        if (
            self._target is None or self._looking.behind
        ):  # each file goes as far as it did when it was looked at first
            self._target = {**self._looking.heads(known), **(self._target or {})}
        return self._target

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the tasks of the micro-batch between two offsets; the same after a restart."""
        before, after = self._manifests.positions(start), self._manifests.positions(end)
        target = self._options.max_partition_bytes
        pieces = list(follow.slices(before, after, target))
        least = self._options.min_partition_num or 2 * (os.cpu_count() or 1)
        return [Task(slices) for slices in plan.packed(pieces, target, least)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one task.

        A file that cannot be read fails the micro-batch, so that it is tried again: the offset
        would skip its rows permanently. One that is gone or damaged is left out if the options
        say so.
        """
        settle()
        try:
            yield from read(self._options.insisting, self._wanted, partition.value or [])
        except Unreadable as error:
            if error.reason in PASSING or self._options.mode == "FAILFAST":
                raise
            option = "ignoreMissingFiles" if error.reason == "vanished" else "ignoreCorruptFiles"
            cure = f"restore the file, or skip its rows of this batch with {option}=true"
            raise Unreadable(error.path, error.reason, f"{error.detail}; {cure}") from error

    def commit(self, end: Offset) -> None:
        """Forget manifests that no restart will ask for."""
        self._manifests.prune(end)

    def __getstate__(self) -> dict[str, object]:
        """Travel to the executors without what only the planner needs."""
        return {**self.__dict__, "_follower": None, "_target": None}
