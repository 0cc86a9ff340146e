"""Give up pushes that take longer than their transport may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import NamedTuple

from onceward.core.deliver.busy_peers import BusyPeers
from onceward.core.deliver.parcels import InFlight
from onceward.errors import OncewardError, Unreachable
from onceward.message.log import log


class _Push(NamedTuple):
    """A parcel under way, and until when its transport may take, by the process's clock."""

    packed: InFlight
    until: float


class PushesUnderWay:
    """The pushes of all carriers, by the thread of the carrier."""

    def __init__(
        self,
        limit: float,
        *,
        agent: str,
        busy: BusyPeers,
        replace: Callable[[int], None],
        back_off: Callable[[InFlight, Exception], None],
    ) -> None:
        self._limit, self._agent, self._busy = limit, agent, busy
        self._replace, self._back_off = replace, back_off
        self._pushes: dict[int, _Push] = {}

    def begin(self, packed: InFlight) -> None:
        """Note that this thread calls the transport now."""
        self._pushes[get_ident()] = _Push(packed, time.monotonic() + self._limit)

    def end(self) -> bool:
        """Note that the call has returned; False where it was given up meanwhile."""
        with self._busy.lock:
            return self._pushes.pop(get_ident(), None) is not None

    def give_up_late(self) -> float:
        """Give up the pushes that hang; return the seconds until one may have to be."""
        now = time.monotonic()
        for thread, push in list(self._pushes.items()):
            if push.until <= now and self._give_up(thread, push):
                error = Unreachable(f"no answer within {self._limit} s; the push was given up")
                try:
                    self._back_off(push.packed, error)
                except OncewardError as failed:
                    peer = push.packed.lease.name
                    log.failure("warning", "push given up", failed, agent=self._agent, peer=peer)
                    self._busy.left.add(peer)
        ends = [push.until for push in list(self._pushes.values())]
        return max(0.01, min(ends, default=now + self._limit) - now)

    def give_up_all(self) -> list[str]:
        """Give up every push; return the names of their peers."""
        pushes = list(self._pushes.items())
        return [push.packed.lease.name for thread, push in pushes if self._give_up(thread, push)]

    def _give_up(self, thread: int, push: _Push) -> bool:
        """Let a push go on without a carrier; return False where it has just returned."""
        with self._busy.lock:  # its thread leaves the peer after that only
            if self._pushes.get(thread) is not push:
                return False
            del self._pushes[thread]
            self._busy.hanging.add(push.packed.lease.name)
        self._replace(thread)
        return True
