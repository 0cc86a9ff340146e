"""Define a fleet: its files and the session that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from onceward.fleet import files
from onceward.fleet.spark import start


@dataclass(frozen=True, slots=True)
class Fleet:
    """The agents' files that *paths* name (globs, folders or files), and a session to read them."""

    spark: SparkSession
    paths: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the source for every table, such as ``mode="FAILFAST"``."""

    def table(self, name: str, *columns: str, **options: Any) -> DataFrame:
        """Return one table of all files; the named columns, or all but the contents."""
        chosen = {"columns": ",".join(columns)} if columns else {}
        return start.read(self.spark, self.paths, name, **{**self.options, **chosen, **options})

    def files(self) -> list[files.Found]:
        """Return the files as the file system lists them now."""
        return files.find(self.paths)
