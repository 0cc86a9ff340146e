"""The async version of schedules."""

from __future__ import annotations

from onceward.core.run.async_face import AsyncFace, awaitable
from onceward.features.schedules.api import Schedules


class AsyncSchedules(AsyncFace[Schedules]):
    """The schedules of a file; see ``Schedules``."""

    add = awaitable(Schedules.add)
    edit = awaitable(Schedules.edit)
    list = awaitable(Schedules.list)
    get = awaitable(Schedules.get)
    remove = awaitable(Schedules.remove)
    pause = awaitable(Schedules.pause)
    resume = awaitable(Schedules.resume)
    run_now = awaitable(Schedules.run_now)
