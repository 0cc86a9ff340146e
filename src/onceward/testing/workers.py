"""Keep processes within a trial: a pool that ends with its block, a watch on the parent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread


@contextmanager
def worker_pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """
    Run *count* spawned processes for a block.

    When the block raises, an interrupt included, they are killed in the middle
    of their work; they also end when this process does.
    """
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """End this process, a child of multiprocessing, as soon as the process that started it ends."""
    if parent_process() is not None:
        Thread(target=_follow_parent, name="onceward-parent", daemon=True).start()


def _follow_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
