"""The async version of the runs of a file."""

from __future__ import annotations

from onceward.core.run.async_face import AsyncFace, awaitable
from onceward.features.runs.api import Runs


class AsyncRuns(AsyncFace[Runs]):
    """The runs of sessions, and their queues; see ``Runs``."""

    list = awaitable(Runs.list)
    get = awaitable(Runs.get)
    abort = awaitable(Runs.abort)
    queues = awaitable(Runs.queues)
    queue = awaitable(Runs.queue)
    waiting = awaitable(Runs.waiting)
    set = awaitable(Runs.set)
    reorder = awaitable(Runs.reorder)
    discard = awaitable(Runs.discard)
    pause = awaitable(Runs.pause)
    resume = awaitable(Runs.resume)
    remove = awaitable(Runs.remove)
