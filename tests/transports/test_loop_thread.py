"""A loop of a transport ends what it runs when it is closed, whatever the work does."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from onceward.errors import Unreachable
from onceward.transports.network import loop_thread
from onceward.transports.network.loop_thread import LoopThread


async def no_connections() -> None:
    """Close nothing."""


@pytest.mark.parametrize("deaf", [False, True])
def test_closing_ends_an_exchange(deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose library swallows the cancellation."""
    monkeypatch.setattr(loop_thread, "CLOSE_WITHIN", 0.1)
    begun, loop = Event(), LoopThread("test-loop", no_connections)

    async def work() -> None:
        begun.set()
        with suppress(asyncio.CancelledError if deaf else ZeroDivisionError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    with ThreadPoolExecutor(1) as pool:
        exchange = pool.submit(loop.run, work(), 120, "no answer")
        assert begun.wait(60)
        loop.close()
        with pytest.raises(Unreachable, match="this transport was closed"):
            exchange.result(30)
