"""Define Spark's format ``onceward``: agents' files as tables."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from onceward.fleet import files
from onceward.fleet.columns import InvalidOption
from onceward.fleet.spark import catalog, mistakes
from onceward.fleet.spark.options import Options
from onceward.fleet.spark.reader import Reader
from onceward.fleet.spark.stream import Refusing, StreamReader
from onceward.fleet.spark.writer import Sending, StreamWriter, Writer

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

    @mistakes.reported()
    def schema(self) -> StructType:
        """
        Return the columns that the options name.

        Raises:
            InvalidOption: see its message.
            NoSuchPath: a path does not exist.

        """
        options = Options.of(self._given)
        files.check(options.path)
        return catalog.typed(options.named(), self._given)

    @mistakes.reported()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader of a table."""
        return Reader(Options.of(catalog.options(self._given, schema)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader of a table; one that fails the query where options are wrong."""
        try:
            options = Options.of(catalog.options(self._given, schema))
            files.check(options.path)
            return StreamReader(options, schema)
        except (InvalidOption, files.NoSuchPath) as error:
            return Refusing(error)

    @mistakes.reported()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return the batch writer of a frame."""
        _refuse(overwrite=overwrite)
        return Writer(Sending.of(self._given), schema)

    @mistakes.reported()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001 - as above
        """Return the stream writer."""
        _refuse(overwrite=overwrite)
        return StreamWriter(Sending.of(self._given), schema)


def _refuse(*, overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("sent messages cannot be overwritten: write with mode append")
