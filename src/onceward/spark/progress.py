"""Shows on a terminal how far Spark is with what it is at: tasks done of tasks known, for work that takes more than a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

EVERY: Final = 0.3
"""Seconds between two looks at what Spark is at."""


@contextmanager
def shown(spark: SparkSession, console: Console | None = None) -> Iterator[None]:
    """Show a bar on standard error while the block works; nothing where that is no terminal. The bar is gone when the block ends."""
    target = console or Console(stderr=True)
    if not target.is_terminal:
        yield
        return
    columns = (TextColumn("[dim]tasks[/]"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    ended = Event()
    with Progress(*columns, console=target, transient=True) as bar:
        watcher = Thread(target=_watch, args=(spark.sparkContext.statusTracker(), bar, ended), name="onceward-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _watch(tracker: StatusTracker, bar: Progress, ended: Event) -> None:
    line = bar.add_task("tasks", total=None, visible=False)
    while not ended.wait(EVERY):
        done, known = tasks(tracker)
        bar.update(line, completed=done, total=known or None, visible=known > 0)


def tasks(tracker: StatusTracker) -> tuple[int, int]:
    """Return how many tasks are done, and how many there are, in the stages that work now."""
    infos = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    return sum(info.numCompletedTasks for info in infos), sum(info.numTasks for info in infos)
