"""Every wait ends while a test freezes time, as ``freezegun`` does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from freezegun import freeze_time

from onceward import Agent, AsyncPostbox, Context, Postbox, Retry
from onceward.errors import OncewardError

SOON = 0.05
PATIENCE = 30.0
"""Seconds after which a wait is one without an end."""

WAITS: dict[str, Callable[[Any, str], Any]] = {
    "receive": lambda box, _: box.receive(timeout=SOON),
    "messages": lambda box, _: box.receive_each(timeout=SOON),
    "ask": lambda box, _: box.ask("far", 1, reply=int, timeout=SOON),
    "result": lambda box, sent: box.result(sent, reply=int, timeout=SOON),
    "flush": lambda box, _: box.flush(timeout=SOON),
    "cancel": lambda box, sent: box.cancel(sent, timeout=SOON),
    "stream": lambda box, sent: box.follow(sent, timeout=SOON),
    "run_until_idle": lambda box, _: box.run_until_idle(),
    "stop": lambda box, _: box.stop(timeout=SOON),
    "close": lambda box, _: box.close(timeout=SOON),
}


def waiting() -> Agent:
    """Return an agent whose handler always asks for another attempt, and whose task goes on."""
    agent = Agent("bob")

    @agent.on("job")
    def work(body: object, ctx: Context) -> None:
        raise Retry(after=3600)

    return agent


def ended(call: Callable[[], object]) -> bool:
    """Return whether a call ends, made on a thread that no wait of it may hold for ever."""

    def quietly() -> None:
        with suppress(OncewardError, TimeoutError):
            call()

    thread = Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_ends_while_time_is_frozen(tmp_path: Path, wait: str) -> None:
    """Spans are measured by a clock that no test stops."""
    box = Postbox(tmp_path / "bob.db", agent=waiting(), hold_unknown=True)
    sent = box.request("bob", 1, type="job").id
    box.send("far", 1)
    with freeze_time("2026-01-01"):
        found = ended(lambda: _taken(WAITS[wait](box, sent)))
    box.close()

    assert found


def _taken(found: Any) -> None:
    if hasattr(found, "__next__"):
        list(found)


@pytest.mark.parametrize("wait", WAITS)
def test_an_awaited_wait_ends_while_time_is_frozen(tmp_path: Path, wait: str) -> None:
    """The timers of event loops stand still then."""

    async def main() -> None:
        box = AsyncPostbox(tmp_path / "bob.db", agent=waiting(), hold_unknown=True)
        async with box:
            sent = (await box.request("bob", 1, type="job")).id
            await box.send("far", 1)
            with freeze_time("2026-01-01"), suppress(OncewardError):
                await _awaited(WAITS[wait](box, sent))

    assert ended(lambda: asyncio.run(main()))


async def _awaited(found: Any) -> None:
    if isinstance(found, Awaitable):
        await found
        return
    async for _ in found:
        pass


def test_channels_and_mailboxes_end_their_waits_while_time_is_frozen(tmp_path: Path) -> None:
    """As the postbox does."""
    with Postbox(tmp_path / "bob.db", agent="bob") as box:
        room, bin_ = box.channels.ensure("room"), box.mailboxes.ensure("bin", public=True)
        room.join()
        with freeze_time("2026-01-01"):
            found = [
                ended(lambda: room.receive(timeout=SOON)),
                ended(lambda: list(room.receive_each(timeout=SOON))),
                ended(lambda: bin_.receive("group", timeout=SOON)),
                ended(lambda: bin_.read("reader", timeout=SOON)),
            ]

    assert [True] * 4 == found


def test_agents_talk_while_time_is_frozen(tmp_path: Path) -> None:
    """Opened and closed there, also where the frozen time is long past."""
    got = list[object]()

    def talk() -> None:
        with (
            Postbox(tmp_path / "bob.db", agent="bob") as bob,
            Postbox(tmp_path / "al.db", agent="al") as al,
        ):
            al.send("bob", "hello")
            message = bob.receive(timeout=PATIENCE)
            assert message is not None
            message.ack()
            got.extend([message.body, al.flush(timeout=PATIENCE)])

    with Postbox(tmp_path / "bob.db", agent="bob"), freeze_time("2012-01-14"):
        assert ended(talk)

    assert ["hello", 0] == got
