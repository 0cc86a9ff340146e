"""Create a small fleet of agents' files, with a known number of each of a few faults."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onceward.api.agent import Agent
from onceward.api.postbox import Postbox
from onceward.errors import Drop, Reject
from onceward.message.clock import Millis
from onceward.message.ids import clock_ids
from onceward.message.settings import Controls
from onceward.testing.clock import ManualClock

HEALTHY: Final = 3
"""Messages of a pair that fare well before anything happens."""
QUIET: Final = 3600.0
"""Seconds that pass between what happened and what is happening: longer than any grace."""
Verdicts = Counter[str]
"""Number of messages of each verdict."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Files in a folder, their moment, and the verdicts to be found."""

    folder: Path
    now: Millis
    verdicts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder of agents with one clock and one source of ids."""

    folder: Path
    clock: ManualClock
    controls: Controls

    def path(self, name: str) -> Path:
        """Return the path of an agent's file."""
        return self.folder / f"{name}.db"

    def open(self, agent: Agent | str, folder: Path | None = None) -> Postbox:
        """Open an agent's file, created on first use."""
        name = agent.name if isinstance(agent, Agent) else agent
        path = (folder or self.folder) / f"{name}.db"
        path.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"durability": "fast", "hold_unknown": True}
        return Postbox(path, agent=agent, start=False, testing=self.controls, **options)

    @contextmanager
    def pair(self, name: str, *, works: bool = True) -> Iterator[tuple[Postbox, Postbox]]:
        """Open a sender and a recipient, which handles its messages if it *works*."""
        far = f"{name}-far"
        with self.open(f"{name}-near") as sender, self.open(_agent(far) if works else far) as taker:
            yield sender, taker


def build(
    folder: Path, *, size: int = 1, seed: int = 0, on_step: Callable[[str], object] = str
) -> Fleet:
    """
    Make a fleet in an empty folder, with real agents that talk by file: each fault *size* times.

    The same seed makes the same messages with the same ids.
    """
    clock, dice = ManualClock(), random.Random(seed)  # noqa: S311 - ids of a demo, no secrets
    place = _Place(folder, clock, Controls(clock=clock, ids=clock_ids(clock, dice), rng=dice))
    total: Verdicts = Counter()
    for name, (plant, count) in FAULTS.items():
        on_step(name)
        total += plant(place, count * size)
        clock.advance(1)
    clock.advance(QUIET)
    total += _in_flight(place, 2 * size)
    return Fleet(folder, clock.now() + 1000, dict(sorted(total.items())))


def _agent(name: str) -> Agent:
    """Return an agent that handles everything, after the wish in the message's body."""
    agent = Agent(name)

    @agent.on("#")
    def handle(body: dict[str, Any]) -> None:
        if body["wish"] == "reject":
            raise Reject("this one can never be handled")
        if body["wish"] == "drop":
            raise Drop

    return agent


def _post(sender: Postbox, to: str, count: int, wish: str = "fine", **options: Any) -> list[str]:
    flow = sender.session("flow")
    bodies = [{"number": number, "wish": wish} for number in range(count)]
    return [flow.send(to, body, type="step", **options) for body in bodies]


def _deliver(sender: Postbox, taker: Postbox, count: int, wish: str = "fine") -> None:
    """Send messages, and let both ends work until they rest."""
    _post(sender, taker.agent, count, wish)
    while sender.run_until_idle() + taker.run_until_idle():
        pass


def _well(place: _Place, n: int) -> Verdicts:
    """Deliver all messages."""
    with place.pair("well") as ends:
        _deliver(*ends, n)
    return Counter(delivered_once=n)


def _restored(place: _Place, end: str, verdict: str, n: int) -> Verdicts:
    """Restore the file of one end to before its last messages."""
    for count in (HEALTHY, n):
        backup = place.folder / f"{verdict}.backup"
        path = place.path(f"{verdict}-{end}")
        if path.exists():
            shutil.copyfile(path, backup)
        with place.pair(verdict) as ends:
            _deliver(*ends, count)
        place.clock.advance(1)
    shutil.move(backup, path)
    return Counter({"delivered_once": HEALTHY, verdict: n})


def _lost(place: _Place, n: int) -> Verdicts:
    """Restore the recipient's file: its sender counts lost messages as done."""
    return _restored(place, "far", "lost", n)


def _orphan(place: _Place, n: int) -> Verdicts:
    """Restore the sender's file: it does not know messages that arrived."""
    return _restored(place, "near", "orphan", n)


def _double_processed(place: _Place, n: int) -> Verdicts:
    """Use a copy of the recipient's file beside it, which handles the same messages again."""
    with place.pair("double") as ends:
        _deliver(*ends, HEALTHY)
    clones = place.folder / "clones"
    clones.mkdir()
    copy = shutil.copyfile(place.path("double-far"), clones / "double-far.db")
    with place.pair("double") as ends:
        _deliver(*ends, n)
    place.clock.advance(1)
    with place.open("double-near") as sender, place.open(_agent("double-far"), clones) as taker:
        taker.peers.add(sender.agent, f"file:{sender.file.path}")
        sender.peers.add(taker.agent, f"file:{copy}")
        _deliver(sender, taker, 1)
    asked = 1  # the copy asks what its file had sent
    return Counter(delivered_once=HEALTHY + 1 + asked, double_processed=n)


def _unprocessed(place: _Place, n: int) -> Verdicts:
    """Deliver messages to a file for which no worker comes."""
    with place.pair("idle", works=False) as ends:
        _deliver(*ends, n)
    return Counter(unprocessed=n)


def _dead_lettered(place: _Place, n: int) -> Verdicts:
    """Let the recipient's handler reject messages."""
    with place.pair("dead") as ends:
        _deliver(*ends, n, "reject")
    return Counter(dead_lettered=n)


def _dropped(place: _Place, n: int) -> Verdicts:
    """Let the recipient's handler drop messages on purpose."""
    with place.pair("drop") as ends:
        _deliver(*ends, n, "drop")
    return Counter(dropped=n)


def _cancelled(place: _Place, n: int) -> Verdicts:
    """Withdraw messages before they leave."""
    with place.pair("cancel") as (sender, taker):
        for message_id in _post(sender, taker.agent, n, delay=600):
            sender.cancel(message_id)
    return Counter(cancelled=n)


def _unwitnessed(place: _Place, n: int) -> Verdicts:
    """Damage the recipient's file: its confirmations are neither proved nor denied."""
    with place.pair("witness") as ends:
        _deliver(*ends, n)
    place.path("witness-far").write_bytes(b"this was a database once\n" * 400)
    return Counter(unwitnessed=n)


def _in_flight(place: _Place, n: int) -> Verdicts:
    """Send messages just now."""
    with place.pair("moving") as (sender, taker):
        _post(sender, taker.agent, n)
    return Counter(in_flight=n)


FAULTS: Final[Mapping[str, tuple[Callable[[_Place, int], Verdicts], int]]] = {
    "delivered_once": (_well, 40),
    "lost": (_lost, 3),
    "orphan": (_orphan, 5),
    "double_processed": (_double_processed, 7),
    "unprocessed": (_unprocessed, 8),
    "dead_lettered": (_dead_lettered, 9),
    "dropped": (_dropped, 12),
    "cancelled": (_cancelled, 13),
    "unwitnessed": (_unwitnessed, 14),
}
"""The faults, and their messages at size one; the numbers differ, to tell them apart."""
