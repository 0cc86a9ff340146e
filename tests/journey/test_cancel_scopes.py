"""A cancellation that comes at any turn of the loop is raised as it is: its scope catches it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from onceward import AsyncPostbox

EVERY = (*range(20), *range(20, 400, 19), *range(400, 4000, 600))
"""Turns of the loop after which a task is cancelled: most of them come while a thread works."""
Way = Callable[[AsyncPostbox, Path], Awaitable[object]]


async def block(box: AsyncPostbox, _: Path) -> None:
    """Write and send in a block."""
    async with box.begin() as tx:
        await tx.execute("INSERT INTO mine VALUES (1)")
        await tx.send("a", 1)


async def opening(_: AsyncPostbox, folder: Path) -> None:
    """Open and close a file of its own."""
    async with AsyncPostbox(folder / "own.db", agent="own", start=False):
        pass


async def receiving(box: AsyncPostbox, _: Path) -> None:
    """Lease a message, and put it back by an error."""
    message = await box.receive(timeout=60)
    assert message is not None
    with suppress(LookupError):
        async with message:
            raise LookupError


async def exactly_once(box: AsyncPostbox, _: Path) -> None:
    """Handle a message of a mailbox by a coroutine."""
    mailbox = await box.mailboxes.ensure("jobs", public=True)
    await mailbox.send(1)

    async def handle(_: object, effects: object) -> None:
        await effects.tx.execute("INSERT INTO mine VALUES (2)")  # type: ignore[attr-defined]

    await mailbox.handle("group", handle, timeout=60)


WAYS: dict[str, Way] = {
    "block": block,
    "opening": opening,
    "sending": lambda box, _: box.send("a", 1),
    "sending many": lambda box, _: box.send_many([("a", 1), ("a", 2)]),
    "asking": lambda box, _: box.ask("a", 1, reply=int, timeout=0.01),
    "receiving": receiving,
    "reading": lambda box, _: box.query("SELECT count(*) FROM mine"),
    "exactly once": exactly_once,
    "flushing": lambda box, _: box.flush(0.01),
}
"""By name: what a task does while it is cancelled."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[AsyncPostbox]:
    """Open a postbox with a message to receive and a table of the user's."""
    async with AsyncPostbox(
        folder / "a.db", agent="a", start=False, durability="fast", handler_attempts=1001
    ) as box:
        async with box.begin() as tx:
            await tx.execute("CREATE TABLE mine (n)")
        await box.send("a", "first")
        yield box


async def turns(count: int) -> None:
    """Give other tasks of the loop so many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", WAYS)
def test_a_scope_catches_its_own_cancellation(tmp_path: Path, way: str) -> None:
    """Starlette, FastAPI and MCP cancel by scopes, which cancel a task again and again."""

    async def scoped(box: AsyncPostbox, scope: anyio.CancelScope) -> None:
        with scope, suppress(TimeoutError):
            await WAYS[way](box, tmp_path)

    async def main() -> list[int]:
        escaped, caught = list[int](), 0
        async with opened(tmp_path) as box:
            for count in EVERY:
                scope = anyio.CancelScope()
                task = asyncio.create_task(scoped(box, scope))
                await turns(count)
                scope.cancel()
                await asyncio.wait([task])
                caught += scope.cancelled_caught
                escaped += [count] if task.cancelled() else []
            await block(box, tmp_path)  # nothing is held
        assert caught > 1
        return escaped

    assert [] == asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_the_text_of_a_cancellation_arrives(tmp_path: Path, way: str) -> None:
    """It says why the task ends: `task.cancel("shutting down")`."""

    async def main() -> set[tuple[object, ...]]:
        told = set[tuple[object, ...]]()
        async with opened(tmp_path) as box:
            for count in EVERY:
                task = asyncio.ensure_future(WAYS[way](box, tmp_path))
                await turns(count)
                task.cancel("shutting down")
                with suppress(TimeoutError):
                    try:
                        await task
                    except asyncio.CancelledError as error:
                        told.add(error.args)
            await block(box, tmp_path)
        return told

    assert {("shutting down",)} == asyncio.run(main())
