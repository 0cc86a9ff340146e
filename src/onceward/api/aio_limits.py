"""The limits of a file, awaitable."""

from __future__ import annotations

import builtins

from onceward.api.limits import DropRecord, Limits
from onceward.model.vocabulary import LimitScope, Overflow
from onceward.runtime.async_bridge import AsyncBridge
from onceward.store.limits import Limit


class AsyncLimits:
    """What bounds a file; see ``Limits``."""

    def __init__(self, limits: Limits, crossing: AsyncBridge) -> None:
        self._limits, self._crossing = limits, crossing

    async def set(
        self,
        scope: LimitScope,
        name: str = "",
        *,
        messages: int | None = None,
        size: int | None = None,
        overflow: Overflow = "reject",
    ) -> None:
        """Bound what may be promised and not settled in one scope; see ``Limits.set``."""
        await self._crossing.call(
            lambda: self._limits.set(scope, name, messages=messages, size=size, overflow=overflow)
        )

    async def remove(self, scope: LimitScope, name: str = "") -> bool:
        """Lift a limit; see ``Limits.remove``."""
        return await self._crossing.call(lambda: self._limits.remove(scope, name))

    async def list(self) -> list[Limit]:
        """Return the limits there are."""
        return await self._crossing.call(self._limits.list)

    async def fullness(self) -> dict[str, tuple[int, int]]:
        """Return by scope and name how many messages and bytes count now."""
        return await self._crossing.call(self._limits.fullness)

    async def rate(self, per_second: float | None, *, burst: float = 1.0) -> None:
        """Send at most so many messages a second; see ``Limits.rate``."""
        await self._crossing.call(lambda: self._limits.rate(per_second, burst=burst))

    async def accept_rate(self, per_second: float | None, *, burst: float = 100.0) -> None:
        """Take at most so many messages a second from each sender; see ``Limits.accept_rate``."""
        await self._crossing.call(lambda: self._limits.accept_rate(per_second, burst=burst))

    async def file(self, max_bytes: int | None) -> None:
        """Take new messages only while the file is smaller; see ``Limits.file``."""
        await self._crossing.call(lambda: self._limits.file(max_bytes))

    async def drops(self, *, limit: int = 100) -> builtins.list[DropRecord]:
        """Return what policies dropped, newest first."""
        return await self._crossing.call(lambda: self._limits.drops(limit=limit))
