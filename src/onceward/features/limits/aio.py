"""The async version of limits."""

from __future__ import annotations

from onceward.core.run.async_face import AsyncFace, awaitable
from onceward.features.limits.api import Limits


class AsyncLimits(AsyncFace[Limits]):
    """The limits of a file; see ``Limits``."""

    set = awaitable(Limits.set)
    remove = awaitable(Limits.remove)
    list = awaitable(Limits.list)
    fullness = awaitable(Limits.fullness)
    drops = awaitable(Limits.drops)
