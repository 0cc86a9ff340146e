"""
Send, handle and answer messages, maintain files, draw the command's help; without one feature.

Arguments: a folder for the files, and the feature that must be absent.
"""

import asyncio
import importlib.util
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward import Agent, AsyncContext, AsyncPostbox, Context, Msg, Postbox
from onceward.api.features import FEATURES
from onceward.ops.cli import main
from onceward.testing import Controls, ManualClock


class Add(Msg):
    """Asks for a sum."""

    a: int
    b: int


adding, serving = Agent("adder"), Agent("server")


@adding.on(Add)
def add(message: Add, ctx: Context) -> None:
    """Reply with the sum."""
    ctx.reply({"sum": message.a + message.b})


@adding.on("note")
def note(message: dict[str, Any]) -> None:
    """Handle a message that expects no reply."""
    assert "body" == message["any"]


@serving.on(Add)
async def serve(message: Add, ctx: AsyncContext) -> None:
    """Reply with the sum."""
    await ctx.reply({"sum": message.a + message.b})


def plain(folder: Path, *, asks: bool) -> None:
    """
    Let one agent answer another, without engines; a year later the files are pruned.

    With *asks* the answer is a reply.
    """
    clock = ManualClock()
    controls = Controls(clock=clock)
    with (
        Postbox(folder / "adder.db", agent=adding, start=False, testing=controls) as adder,
        Postbox(folder / "asker.db", agent="asker", start=False, testing=controls) as asker,
    ):
        add = Add(a=1, b=2)
        added = asker.request("adder", add).id if asks else asker.send("adder", add)
        sent = asker.send("adder", {"any": "body"}, type="note")
        asker.broadcast({"any": "body", "long": "x" * 5000}, type="note")
        for box in (asker, adder, asker):
            box.run_until_idle()
        for box in (asker, adder):
            look(box)
        if importlib.util.find_spec("onceward.features.streams"):
            assert ["ended"] == [each.kind for each in asker.follow(sent)]
        assert {"sum": 3} == (asker.result(added, reply=dict[str, int]) if asks else read(asker))
        assert ["acked", "acked"] == [asker.state(each) for each in (added, sent)]
        for box in (asker, adder):
            box.run_until_idle()
        clock.advance(timedelta(days=400))
        for box in (asker, adder):
            box.file.run_maintenance()
            assert [(0,)] == box.query("SELECT count(*) FROM onceward_outbox")
        assert [(0,)] == asker.query("SELECT count(*) FROM _onceward_bodies")
        if importlib.util.find_spec("onceward.features.checks"):
            assert [] == adder.file.check(asker.file)
            assert [] == adder.file.repair()
            assert ("ok", 0) == (adder.file.health().verdict, adder.file.health().calls_left)


VIEWS = "SELECT name FROM sqlite_schema WHERE type = 'view' AND name <> 'onceward_send'"


def look(box: Postbox) -> None:
    """Read every view of a file, and make each attribute that a feature gives."""
    for (view,) in box.query(VIEWS):
        box.query(f"SELECT * FROM {view}")
    for feature in FEATURES:
        for name in feature.parts:
            assert getattr(box, name) is not None


def read(box: Postbox) -> Any:
    """Return the body of the message that has arrived."""
    message = box.receive()
    assert message is not None
    with message:
        return message.body


async def awaited(folder: Path, *, asks: bool) -> None:
    """Let one agent answer another, with engines; with *asks* the answer is a reply."""
    async with (
        AsyncPostbox(folder / "server.db", agent=serving),
        AsyncPostbox(folder / "caller.db", agent="caller") as caller,
    ):
        add = Add(a=3, b=4)
        if asks:
            reply = await caller.ask("server", add, reply=dict[str, int], timeout=30)
        else:
            await caller.send("server", add)
            message = await caller.receive(timeout=30)
            assert message is not None
            reply = message.body
            await message.ack()
        assert {"sum": 7} == reply
        await caller.file.run_maintenance()


if __name__ == "__main__":
    files, absent = Path(sys.argv[1]), sys.argv[2]
    assert importlib.util.find_spec(f"onceward.features.{absent}") is None
    plain(files, asks=absent != "requests")
    asyncio.run(awaited(files, asks=absent != "requests"))
    main(["--help"])
