"""DBOS beside us: a durable workflow for each message, on SQLite."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.bench.rivals import LEAST, Rival


class Dbos:
    """A workflow whose start and end are committed; one that a crash cut off starts again."""

    name = "DBOS on SQLite"
    durability = "rollback journal, synchronous=FULL (SQLite's defaults): every commit synced"
    promise = LEAST

    def __init__(self, folder: Path, body: str) -> None:
        dbos = importlib.import_module("dbos")
        self._body, self._dbos = body, dbos.DBOS
        config = {
            "name": "bench",
            "system_database_url": f"sqlite:///{folder / 'dbos.db'}",
            "log_level": "ERROR",
        }
        self._dbos(config=config)

        @self._dbos.workflow(name="bench.take")  # type: ignore[untyped-decorator]
        def take(body: str) -> int:
            return len(body)

        self._take: Any = take
        self._dbos.launch()

    def cycle(self) -> None:
        """Start a workflow and wait for its result."""
        self._dbos.start_workflow(self._take, self._body).get_result()

    def stream(self, count: int) -> None:
        """Start all, then wait for each."""
        for handle in [self._dbos.start_workflow(self._take, self._body) for _ in range(count)]:
            handle.get_result()

    def close(self) -> None:
        """Stop its threads."""
        self._dbos.destroy(destroy_registry=True)


@contextmanager
def dbos(folder: Path, body: str) -> Iterator[Rival]:
    """Launch it for a block; raises ImportError where it is not installed."""
    with ExitStack() as stack:
        stack.callback(logging.root.setLevel, logging.root.level)  # DBOS gives it its own
        made = Dbos(folder, body)
        stack.callback(made.close)
        yield made
