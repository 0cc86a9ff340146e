"""Waiting until everything has left: for scripts that send and end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from onceward import AsyncPostbox, Postbox
from onceward.testing import Controls
from onceward.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

MANY = 1500


def test_what_was_flushed_is_in_the_recipients_file(tmp_path: Path) -> None:
    """
    After flush() said that nothing is left, every message is stored at its recipient.

    That holds for several parcels and for one.
    """
    with (
        Postbox(tmp_path / "ops.db", agent="ops", start=False) as ops,
        Postbox(tmp_path / "shop.db", agent="shop") as shop,
    ):
        shop.send_many([("ops", number) for number in range(MANY)])

        assert (0, MANY) == (shop.flush(timeout=60), ops.file.stats()["inbox_pending"])


def test_a_task_may_flush(tmp_path: Path) -> None:
    """The same for the awaitable postbox, whose loop goes on meanwhile."""

    async def main() -> tuple[int, int]:
        async with AsyncPostbox(tmp_path / "ops.db", agent="ops", start=False) as ops:
            async with AsyncPostbox(tmp_path / "shop.db", agent="shop") as shop:
                await shop.send("ops", "open")
                left = await shop.flush(timeout=60)
            return left, (await ops.file.stats())["inbox_pending"]

    assert (0, 1) == asyncio.run(main())


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_flush_says_how_many_are_left(tmp_path: Path, timeout: float) -> None:
    """Messages with a delay or for an absent agent are still here when time is up, and counted."""
    with Postbox(tmp_path / "shop.db", agent="shop", hold_unknown=True) as shop:
        shop.send("nobody", "there")
        shop.send("shop", "later", delay=3600)

        assert 2 == shop.flush(timeout)


def test_a_message_that_ends_here_does_not_hold_a_flush_up(tmp_path: Path) -> None:
    """A message that expires or is withdrawn never leaves: flush does not wait for it."""
    with Postbox(tmp_path / "shop.db", agent="shop", hold_unknown=True) as shop:
        shop.send("nobody", "soon in vain", ttl=0.05)
        assert shop.cancel(shop.send("nobody", "not meant", delay=3600))

        assert 0 == shop.flush(timeout=60)


def test_what_ended_while_its_peer_rests_is_not_waited_for(tmp_path: Path) -> None:
    """
    A message that expired after it was packed has ended.

    The peer's rest, and the parcel's place, may go on for long.
    """
    clock = ManualClock()
    with Postbox(
        tmp_path / "shop.db",
        agent="shop",
        hold_unknown=True,
        start=False,
        testing=Controls(clock=clock),
        delivery_retry="3600s..3600s ±0%",
        handler_retry="3600s..3600s ±0%",
    ) as shop:
        shop.send("nobody", "in vain", ttl=5)
        shop.run_until_idle()
        clock.advance(10)
        shop.run_until_idle()

        assert ["expired"] == [letter.reason for letter in shop.dead_letters.list()]
        assert 0 == shop.flush(timeout=0)
