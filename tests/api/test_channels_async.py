"""What channels and the home do, they do awaited too: one behaviour, run through both facades."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

from onceward import AsyncPostbox, Postbox


class Awaited:
    """Lets a test call the awaitable facade as if it were the other one."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return (
                Awaited(found, self._loop)
                if type(found).__module__.startswith("onceward") and name in {"channels", "agents"}
                else found
            )

        def call(*given: Any, **named: Any) -> Any:
            given = tuple(each.inner if isinstance(each, Awaited) else each for each in given)
            result = found(*given, **named)
            return self._wrapped(
                self._loop.run_until_complete(result) if inspect.isawaitable(result) else result
            )

        return call

    def _wrapped(self, value: Any) -> Any:
        return Awaited(value, self._loop) if type(value).__name__.startswith("Async") else value


def conversation(a: Any, b: Any) -> list[Any]:
    """Make a channel, talk in it, and return what was seen."""
    room = a.channels.create("room", "group", sticky=True)
    there = b.channels.ensure("room")
    seen: list[Any] = [
        there.created,
        there.join(),
        there.join(),
        [each.name for each in b.channels.list()],
        there.info().type,
    ]
    asked = room.send("who?", kind="query")
    a.run_until_idle(), b.run_until_idle()
    message = there.attach(there.detach(there.receive()))
    there.respond(message, "me")
    seen.append(there.acknowledge(message, "completed", "done") != "")
    b.run_until_idle(), a.run_until_idle()
    answer = room.receive(timeout=1.0)
    seen += [
        answer.body,
        [(each.participant, each.status) for each in room.acknowledgments(asked.id)],
    ]
    answer.ack()
    room.pause()
    seen.append(room.info().state)
    room.resume()
    seen += [
        len(room.members()),
        room.history().total_count,
        there.subscribe("x.#"),
        there.unsubscribe("x.#"),
    ]
    seen += [
        [each.name for each in a.agents.list()],
        b.agents.subscribe("t"),
        len(a.publish("t", 1)),
        b.agents.unsubscribe("t"),
        a.send("all", 2) != "",
    ]
    seen += [there.leave(), room.add_many(["c", "d"]), room.remove("c")]
    room.drain()
    room.close()
    a.channels.delete("room")
    return [*seen, a.channels.list()]


EXPECTED = [
    False, True, False, ["room"], "group", True, "me", [("b", "completed")], "paused", 2, 3, True,
    True, ["b"], True, 1, True, True, True, 2, True, [],
]  # fmt: skip


def test_synchronously(tmp_path: Path) -> None:
    """The conversation goes as it is told."""
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent="b", start=False) as b,
    ):
        assert EXPECTED == conversation(a, b)


def test_awaited(tmp_path: Path) -> None:
    """Awaited it goes the same way."""
    loop = asyncio.new_event_loop()
    boxes = [AsyncPostbox(tmp_path / f"{name}.db", agent=name, start=False) for name in "ab"]
    try:
        a, b = (Awaited(loop.run_until_complete(box.open()), loop) for box in boxes)
        found = conversation(a, b)
        for box in boxes:
            loop.run_until_complete(box.close())
    finally:
        loop.close()

    assert EXPECTED == found
