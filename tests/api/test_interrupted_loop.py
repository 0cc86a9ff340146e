"""A signal's exception in a callback of the loop: only the call that it meets is late."""

import asyncio

from tests.interrupts import TooLong, interrupted

from onceward.core.run import async_bridge
from onceward.core.run.async_bridge import PendingCall

ROOMS = {str(async_bridge.__file__)}
LIMIT = 10.0
"""Seconds that no outcome takes."""


def test_an_exception_between_two_outcomes_keeps_none() -> None:
    """The calls that ended in the same step of the loop get theirs in the next one."""
    loop, nth, hit = asyncio.new_event_loop(), 0, ["start"]
    loop.set_exception_handler(lambda *_: None)
    while hit:
        nth += 1
        futures = [async_bridge.UncancellableFuture(loop=loop) for _ in range(3)]
        calls = [PendingCall(int, each, joins=False, result=n) for n, each in enumerate(futures)]
        with interrupted(nth, TooLong, when=lambda: True, rooms=ROOMS) as hit:
            loop.call_soon(async_bridge._arrive, loop, calls)
            loop.run_until_complete(asyncio.wait(futures, timeout=LIMIT))
        assert (hit, [0, 1, 2]) == (hit, [each.result() for each in futures if each.done()])
    loop.close()

    assert nth > 3
