"""Run a pool of processes that ends with its block."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from onceward.testing.kills import end_with_parent


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
