"""Why our source takes no filters from Spark: the pinned version then answers wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")
from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThan, LessThanOrEqual

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 30


class Reader(DataSourceReader):
    """Numbers from 1, of which only those are made that the filters let through."""

    def __init__(self) -> None:
        self.low, self.high = 0, ROWS

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Take two kinds of filters, rightly."""
        for one in filters:
            if isinstance(one, GreaterThan):
                self.low = max(self.low, int(one.value))
            elif isinstance(one, LessThanOrEqual):
                self.high = min(self.high, int(one.value))
            else:
                yield one

    def read(self, partition: Any) -> Iterator[tuple[int]]:  # noqa: ARG002 - there is one
        """Yield the numbers."""
        return ((number,) for number in range(self.low + 1, self.high + 1))


class Numbers(DataSource):
    """A source as simple as can be."""

    @classmethod
    def name(cls) -> str:
        """Return its format's name."""
        return "numbers"

    def schema(self) -> str:
        """Return its only column."""
        return "n INT"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - it is ours
        """Return what reads it."""
        return Reader()


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason=(
        "Spark keeps the first scan's filters in the relation; "
        "once it does not, ours can take filters"
    ),
)
def test_a_relation_can_be_scanned_with_two_filters(spark: SparkSession) -> None:
    """A correct source gives each of two scans of one relation the rows of its own filter."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", value=True)
    try:
        spark.dataSource.register(Numbers)
        frame = spark.read.format("numbers").load()
        low, high = frame.where("n <= 10"), frame.where("n > 10")
        assert [10, ROWS, 20] == [low.count(), frame.count(), high.count()]
        assert list(range(1, ROWS + 1)) == sorted(row.n for row in low.union(high).collect())
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", value=False)


def test_spark_does_not_say_which_columns_a_query_needs(spark: SparkSession) -> None:
    """
    Contents are read only on request, because ``select`` and ``count`` prune nothing.

    Once Spark's builder of Python scans takes required columns, this fails, and ours can.
    """
    name = "org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder"
    faces = spark._jvm.java.lang.Class.forName(name).getInterfaces()

    assert ["SupportsPushDownFilters"] == [face.getSimpleName() for face in faces]
