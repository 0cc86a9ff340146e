"""Functions that an agent runs when its file is opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, AsyncPostbox, Postbox
from onceward.errors import StoreClosed


class Opened:
    """An agent with an async function at its opening, which keeps the postbox that it is given."""

    def __init__(self) -> None:
        self.agent, self.given = Agent("a"), list[Any]()
        self.agent.at_open(self.prepare)

    async def prepare(self, box: AsyncPostbox) -> None:
        """Write to the file by awaiting."""
        self.given.append(box)
        async with box.begin() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS done (job TEXT)")
        await box.send("a", "first", type="told")
        await box.channels.ensure("news")


@pytest.fixture(params=["sync", "async"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Return what was opened by one face, used, and closed."""
    found = Opened()

    async def use() -> list[tuple[Any, ...]]:
        async with AsyncPostbox(tmp_path / "a.db", agent=found.agent, start=False) as box:
            return await box.query("SELECT count(*) FROM done")

    if request.param == "async":
        assert [(0,)] == asyncio.run(use())
    else:
        with Postbox(tmp_path / "a.db", agent=found.agent, start=False) as box:
            assert [(0,)] == box.query("SELECT count(*) FROM done")
    return found


def test_a_coroutine_function_gets_the_async_face(opened: Opened, tmp_path: Path) -> None:
    """Whichever face opened the file; what it awaits is stored."""
    with Postbox(tmp_path / "a.db") as box:
        sent = box.query("SELECT body FROM onceward_outbox")
        channels = [each.name for each in box.channels.list()]

    assert [AsyncPostbox] == [type(each) for each in opened.given]
    assert ([("first",)], ["news"]) == (sent, channels)


def test_its_face_is_closed_with_the_postbox(opened: Opened) -> None:
    """A coroutine that kept it is told."""
    with pytest.raises(StoreClosed):
        asyncio.run(opened.given[0].send("a", 1))


def test_a_function_gets_the_sync_face(tmp_path: Path) -> None:
    """Also where the async face opens the file: it runs on a thread."""
    agent, given = Agent("a"), list[Postbox]()
    agent.at_open(given.append)

    async def use() -> None:
        async with AsyncPostbox(tmp_path / "a.db", agent=agent, start=False):
            """Do nothing."""

    asyncio.run(use())

    assert [Postbox] == [type(each) for each in given]
