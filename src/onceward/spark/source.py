"""Spark's format ``onceward``: agents' files as tables."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from onceward.spark.options import Options
from onceward.spark.reader import Reader
from onceward.spark.stream import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Onceward(DataSource):
    """The files of a fleet; see the reference page for tables, columns and options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "onceward"

    def schema(self) -> str:
        """Return the columns that the options name."""
        options = Options.of(self._given)
        return options.chosen.ddl(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a table at once."""
        return Reader(Options.of(self._given), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what follows a table."""
        return StreamReader(Options.of(self._given), schema)
