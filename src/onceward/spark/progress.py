"""Show Spark's progress on a terminal: tasks done of tasks known, for longer work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

EVERY: Final = 0.3
"""Seconds between two looks at what Spark is at; what is seen at one look only is not shown."""


@contextmanager
def shown(spark: SparkSession, console: Console | None = None) -> Iterator[None]:
    """Show a bar on standard error while the block works, if that is a terminal; then remove it."""
    end = watch(spark, console)
    try:
        yield
    finally:
        end()


def watch(spark: SparkSession, console: Console | None = None) -> Callable[[], None]:
    """Show a bar during longer work until the returned function is called or the session ends."""
    target, ended = console or Console(stderr=True), Event()
    if not target.is_terminal:
        return ended.set
    tracker = spark.sparkContext.statusTracker()
    watcher = Thread(
        target=_watch, args=(tracker, target, ended), name="onceward-progress", daemon=True
    )
    watcher.start()

    def end() -> None:
        ended.set()
        watcher.join()

    return end


def _watch(tracker: StatusTracker, console: Console, ended: Event) -> None:
    bar, busy = _bar(console), False
    while not ended.wait(EVERY):
        try:
            done, known = tasks(tracker)
        except (Py4JError, OSError):
            break  # the session has ended without us
        if busy and known:
            bar.start()
            bar.update(bar.task_ids[0], completed=done, total=known)
        elif bar.live.is_started:
            bar.stop()
            bar = _bar(console)
        busy = known > 0
    if bar.live.is_started:
        bar.stop()


def _bar(console: Console) -> Progress:
    columns = (TextColumn("[dim]tasks[/]"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True)
    bar.add_task("tasks", total=None)
    return bar


def tasks(tracker: StatusTracker) -> tuple[int, int]:
    """Return how many tasks are done, and how many there are, in the stages that work now."""
    infos = [
        info
        for stage in tracker.getActiveStageIds()
        if (info := tracker.getStageInfo(stage)) is not None
    ]
    return sum(info.numCompletedTasks for info in infos), sum(info.numTasks for info in infos)
