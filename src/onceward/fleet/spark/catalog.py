"""Keep a catalog table's options in its columns: Spark tells a Python source no others to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from onceward.fleet.columns import InvalidOption, Kind
from onceward.fleet.spark.options import plain

TYPES: Final[Mapping[Kind, DataType]] = {
    "string": StringType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "variant": VariantType(),
}
MARK: Final = "onceward"
"""Key in the metadata of a catalog table's first column."""


def typed(columns: Mapping[str, Kind], given: Mapping[str, str]) -> StructType:
    """Return the columns as Spark's types; those of ``CREATE TABLE`` carry its options."""
    fields = [StructField(name, TYPES[kind]) for name, kind in columns.items()]
    if "provider" in given:
        fields[0].metadata = {MARK: json.dumps(plain(given))}
    return StructType(fields)


def options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """
    Return the options to read with: those of a ``CREATE TABLE``, and over them those *given* now.

    Raises:
        InvalidOption: the table was created with columns of its own, which carry nothing.

    """
    kept = next((field.metadata[MARK] for field in schema if MARK in (field.metadata or {})), None)
    if kept is None and not {"path", "paths"} & given.keys():
        lost = "Spark tells a Python source no options of a table that was created with columns"
        raise InvalidOption(
            f"no files are given: pass a glob or a folder to load(...); or {lost}: omit the columns"
        )
    return {**(json.loads(kept) if kept else {}), **given}
