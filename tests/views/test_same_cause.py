"""Each situation that holds messages back is told alike by ``why``, ``doctor`` and ``top``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, run

from onceward import Agent, Context, Msg, Postbox, Reject, Retry
from onceward.file.read_only import opened
from onceward.message.clock import SystemClock
from onceward.ops.cli import findings
from onceward.ops.cli.top_state import row_of
from onceward.ops.observe.detail import read_detail
from onceward.ops.observe.rates import Rates
from onceward.ops.observe.snapshots import read_snapshot
from onceward.ops.views.why import agent_whys

LATER = 180_000
"""Milliseconds after which each situation is looked at again, as if nothing had happened."""


class Approval(Msg, type="approval"):
    """The message that a person sends."""

    by: str


class Home:
    """Two agents without engines."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.shop = self.open("shop")

    def open(self, agent: Agent | str) -> Postbox:
        """Open an agent; it is closed with the home."""
        name = agent if isinstance(agent, str) else agent.name
        box = Postbox(self.folder / f"{name}.db", agent=agent, start=False)
        return self._stack.enter_context(box)

    def handle(self, work: Callable[[dict[str, Any], Context], object], **options: Any) -> None:
        """Let shop send a job to itself, and handle it once."""
        self.shop.close()
        agent = Agent("shop")
        agent.on("job", **options)(work)
        agent.waits(Approval)
        self.shop = self.open(agent)
        self.shop.send("shop", {}, type="job")
        self.shop.run_until_idle()


def waits_for_a_person(home: Home) -> None:
    """A handler waits for an approval."""
    home.handle(lambda _, ctx: ctx.wait(Approval, timeout="3d"))


def asks(home: Home) -> None:
    """A handler waits for the answer of another agent."""
    home.open("ada")
    home.handle(lambda _, ctx: ctx.ask("ada", "may I?", reply=str, timeout="1h"))


def fails(home: Home) -> None:
    """A handler fails, and is called again later."""

    def work(_body: dict[str, Any], _ctx: Context) -> None:
        raise Retry("HTTP 503", after=3600)

    home.handle(work)


def refuses(home: Home) -> None:
    """A handler refuses a message."""

    def work(_body: dict[str, Any], _ctx: Context) -> None:
        raise Reject("no such account")

    home.handle(work)


def pauses(home: Home) -> None:
    """An agent is paused, with messages for many peers."""
    for n in range(12):
        home.open(f"peer{n}")
        home.shop.send(f"peer{n}", 1)
    home.shop.file.pause()


def forgets(home: Home) -> None:
    """A peer has neither a url nor a file any more."""
    home.shop.peers.add("far", "memory:far")
    home.shop.send("far", 1)
    home.shop.run_until_idle()
    with home.shop.begin() as tx:
        tx.execute("UPDATE _onceward_peers SET breaker = 'open', failures = 5 WHERE name = 'far'")
    home.shop.peers.remove("far")


def breaks(home: Home) -> None:
    """The breaker of a peer with a url is open."""
    home.shop.peers.add("far", "memory:far")
    home.shop.send("far", 1)
    home.shop.run_until_idle()
    with home.shop.begin() as tx:
        tx.execute("UPDATE _onceward_peers SET breaker = 'open', failures = 5 WHERE name = 'far'")


def is_not_taken(home: Home) -> None:
    """No worker runs."""
    for n in range(6):
        home.shop.send("shop", n)
    home.shop.run_until_idle()


def is_not_sent(home: Home) -> None:
    """No process delivers."""
    home.open("billing")
    home.shop.send("billing", 1)


def dies(home: Home) -> None:
    """The process of a worker was killed a moment ago."""
    home.shop.send("shop", 1)
    home.shop.run_until_idle()
    path = str(home.shop.file.path)
    take = f"Postbox({path!r}, agent='shop', start=False).receive(); os._exit(0)"
    run([*PYTHON, "-c", f"import os; from onceward import Postbox; {take}"])


@dataclass(frozen=True)
class Situation:
    """What every reader says of it."""

    plant: Callable[[Home], None]
    reason: str
    """Of ``why``."""
    cure: str
    """A part of the cure that each reader gives, without the name of the file."""
    checks: tuple[str, ...]
    """Checks of doctor that warn."""
    state: str
    """Of ``top``."""
    later: int = LATER


SITUATIONS = [
    Situation(waits_for_a_person, "message awaited", "onceward send shop", (), "ok"),
    Situation(asks, "answer", "onceward show", ("replies",), "ok"),
    Situation(fails, "retry", "onceward show", ("lanes",), "ok"),
    Situation(refuses, "dead letters", "onceward dead ls", ("dead letters",), "dead letters"),
    Situation(pauses, "paused", "onceward resume", ("paused",), "paused"),
    Situation(
        forgets, "breaker open", "onceward peers add far URL", ("breakers", "delivery"),
        "breaker open",
    ),
    Situation(
        breaks, "breaker open", "onceward peers reset far", ("breakers", "delivery"),
        "breaker open",
    ),
    Situation(is_not_taken, "untaken", "onceward work", ("handling",), "untaken"),
    Situation(is_not_sent, "undelivered", "onceward relay", ("delivery",), "undelivered"),
    Situation(dies, "untaken", "onceward work", ("handling",), "untaken", later=10),
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Return a home of one agent."""
    monkeypatch.delenv("ONCEWARD_HOME", raising=False)
    with ExitStack() as stack:
        yield Home(tmp_path, stack)


@pytest.mark.parametrize("of", SITUATIONS, ids=lambda of: of.plant.__name__)
def test_every_reader_names_the_same_cause(
    home: Home, monkeypatch: pytest.MonkeyPatch, of: Situation
) -> None:
    """One cause and the right cure, in ``why``, ``doctor``, ``top`` and on the agent's page."""
    of.plant(home)
    path, now = home.shop.file.path, SystemClock().now() + of.later
    monkeypatch.setattr(SystemClock, "now", lambda _: now)
    with opened(path) as reader:
        why, *_ = agent_whys(reader, now)
        found = [
            *findings.held(reader, path),
            *findings.undelivered(home.shop, reader),
            findings.handling(home.shop.file.health(), reader, path),
        ]
    warned = {each.check: each.cure for each in found if each.level == "warning"}
    detail, row = read_detail(path), row_of(read_snapshot(path, now), Rates(), now)

    assert (of.reason, of.state) == (why.reason, row.state)
    assert (of.checks, len(of.checks)) == (tuple(warned), sum(e.level == "warning" for e in found))
    assert detail.whys[0] == why
    assert of.cure in (why.cure or "")
    assert {True} >= {of.cure.replace(" shop", "") in cure for cure in list(warned.values())[:1]}
    assert "1 messages" not in f"{why.text(now)} {found}"
