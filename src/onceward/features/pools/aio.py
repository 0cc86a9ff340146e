"""The async version of pools."""

from __future__ import annotations

from onceward.core.run.async_face import AsyncFace, awaitable, awaitable_on_thread
from onceward.features.pools.api import Pools


class AsyncPools(AsyncFace[Pools]):
    """Pools of agents; see ``Pools``."""

    join = awaitable(Pools.join)
    leave = awaitable(Pools.leave)
    drain = awaitable_on_thread(Pools.drain)
    add = awaitable(Pools.add)
    remove = awaitable(Pools.remove)
    release = awaitable(Pools.release)
    list = awaitable(Pools.list)
