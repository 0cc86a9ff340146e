"""A file's rows are delivered once all of them were read, however many there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow", reason="pip install 'onceward[spark]' brings it")

import pyarrow as pa

from onceward.fleet.spark.held import MOST, held

ROWS = 1000


def _batches(count: int, size: int, *, breaks: bool = False) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.RecordBatch.from_pydict({"n": [number] * ROWS, "text": ["x" * size] * ROWS})
    if breaks:
        msg = "torn"
        raise ValueError(msg)


@pytest.mark.parametrize("size", [1, MOST // ROWS // 3])
def test_all_or_nothing(size: int) -> None:
    """In memory or in a file: the same batches in the same order, and none before an error."""
    assert list(range(10)) == [batch["n"][0].as_py() for batch in held(_batches(10, size))]
    with pytest.raises(ValueError, match="torn"):
        next(held(_batches(10, size, breaks=True)))


def test_rows_without_columns_are_counted() -> None:
    """A batch may have a length alone."""
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 7, pa.struct([])))

    assert [7, 7] == [one.num_rows for one in held(iter([batch, batch]))]
