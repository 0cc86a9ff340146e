"""Steps of handlers: how they are shown, and called again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceward import Agent, Context, Postbox
from onceward.errors import Reject

Cli = Callable[..., Any]
calls: list[int] = []
broken: list[int] = [1]


def paid(n: int) -> int:
    """Pay."""
    calls.append(n)
    return n


def shop() -> Agent:
    """Return an agent whose handler has two steps, and dies while something is broken."""
    agent = Agent("shop")

    @agent.on("json")
    def work(body: dict[str, int], ctx: Context) -> None:
        ctx.step(paid, 1)
        ctx.stream("paid").append(1)
        ctx.step(paid, 2)
        if broken:
            raise Reject("broken")

    return agent


def opened(home: Path) -> Postbox:
    """Open the agent with its handler."""
    return Postbox(home / "shop.db", agent=shop(), start=False)


def test_steps_are_shown_and_called_again(cli: Cli, home: Path) -> None:
    """With attempts and seconds; a replay goes on after them, or calls them again."""
    with opened(home) as box:
        sent = box.send("shop", {"a": 1})
        box.run_until_idle()

    [stream] = cli("show", sent, "--json").json["streams"]
    assert {"name": "paid", "chunks": 1, "bytes": 1, "attempt": 1}.items() <= stream.items()
    assert ["stream", "paid"] in cli("show", sent).lines
    shown = cli("show", sent, "--json").json["steps"]
    keys = ["name", "ordinal", "version", "state", "attempts"]
    assert [*keys, "started_at", "ended_at", "bytes", "took"] == list(shown[0])
    assert [("paid", 1, "done", 1), ("paid", 2, "done", 1)] == [
        (each["name"], each["ordinal"], each["state"], each["attempts"]) for each in shown
    ]
    assert ["step", "paid"] in cli("show", sent).lines

    refused = cli("dead", "replay", sent, "--from-step", "other", "--json")
    assert 0 != refused.code
    assert 2 == cli("dead", "replay", "--all", "--without-steps", "--yes").code
    assert 0 == cli("dead", "replay", sent, "--from-step", "paid#2").code
    broken.clear()
    with opened(home) as box:
        box.run_until_idle()
    assert [1, 2, 2] == calls
