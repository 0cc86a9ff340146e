"""Hold the rows of a file back until it was read to its end: a file is delivered whole or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from tempfile import NamedTemporaryFile
from typing import Final

import pyarrow as pa

MOST: Final = 16 * 1024 * 1024
"""Bytes of a file's rows that stay in memory; more go to a temporary file."""


def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield *batches* once the last of them was read; nothing if one of them raises."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        if size > MOST:
            yield from _spilled(kept, batches)
            return
    yield from kept


def _spilled(
    kept: list[pa.RecordBatch], rest: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    schema = kept[0].schema
    with NamedTemporaryFile(prefix="onceward-held-") as file:
        with pa.OSFile(file.name, "wb") as target, pa.ipc.new_stream(target, schema) as writer:
            for batch in chain(_emptied(kept), rest):
                writer.write_batch(batch)
        with pa.OSFile(file.name, "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader


def _emptied(kept: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while kept:
        yield kept.pop(0)
