"""Limit the time of a step's function, which may ask for more while it works."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from onceward.message.clock import monotonic

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class TimeLimit:
    """
    The time that one call of a step's function may take.

    Only a coroutine can be stopped. A plain function has failed if it returns too late, so that its
    result does not depend on the kind of the function.
    """

    def __init__(self, step: str, seconds: float) -> None:
        self._step, self._begun_at = step, monotonic()
        self._until = self._begun_at + seconds
        self._scope: asyncio.Timeout | None = None

    def extend(self, seconds: float) -> None:
        """Let the call take *seconds* from now."""
        self.check()
        self._until = monotonic() + seconds
        if self._scope is not None:
            from asyncio import get_running_loop  # noqa: PLC0415 - async handlers only

            self._scope.reschedule(get_running_loop().time() + seconds)

    def check(self) -> None:
        """Raise TimeoutError if the time has passed."""
        if monotonic() > self._until:
            raise self._late()

    async def await_in_time(self, work: Awaitable[T]) -> T:
        """Await the function's result; cancel it when the time has passed."""
        from asyncio import timeout  # noqa: PLC0415 - async handlers only

        scope = self._scope = timeout(max(0.0, self._until - monotonic()))
        try:
            async with scope:
                return await work
        except TimeoutError as error:
            if not scope.expired():
                raise  # the function's own
            raise self._late() from error
        finally:
            self._scope = None

    def _late(self) -> TimeoutError:
        allowed = self._until - self._begun_at
        return TimeoutError(f"step {self._step} took longer than its timeout of {allowed:g} s")
