"""
Two agents that reach each other through a NATS server, while all three are killed.

*ann* sends numbered orders in lanes to *bob*, each with its own effect. The server loses its
store at some of its starts. A *replayer* publishes again what it has seen: old parcels and old
answers under their subjects, spoiled ones, and answers to parcels that were never sent.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg as NatsMessage
from tests.ports import free_port

from onceward.api.agent import Agent
from onceward.api.contexts import Context
from onceward.api.postbox import Postbox
from onceward.errors import OncewardError
from onceward.message.body import Msg
from onceward.testing.kills import Role, crew
from onceward.transports.network.nats_listener import NatsListener

ANN: Final = "ann"
BOB: Final = "bob"
SERVER: Final = "server"
LANES: Final = 8
AT_ONCE: Final = 20
EACH_ROUND: Final = LANES * AT_ONCE
"""Orders that the sender makes at a time."""
KILLS_A_SECOND: Final = 3
"""Kills in a second, where the time is bounded: each needs its orders handled."""
ORDERS_PER_KILL: Final = 100
LOSES_ITS_STORE: Final = 0.3
"""How many starts of the server find no store."""
SPOILED: Final = 0.3
TABLE: Final = "CREATE TABLE IF NOT EXISTS effects (id TEXT, lane TEXT, number INTEGER)"
EFFECTS: Final = "SELECT lane, number FROM effects ORDER BY rowid"
SETTINGS: Final[dict[str, Any]] = {
    "durability": "fast", "ack_timeout": 5.0,
    "delivery_retry": "0.05s..0.5s ±0%", "handler_retry": "0.05s..0.5s ±0%",
    "tuning": {"breaker_failures": 1_000_000}, "deliver_timeout": 2.0, "max_pending": 1 << 40,
}  # fmt: skip


class Order(Msg, type="order"):
    """The so-manieth order of one lane."""

    lane: str
    number: int


def url(folder: Path) -> str:
    """Return the url of the server."""
    return f"nats://127.0.0.1:{(folder / 'port').read_text(encoding='ascii')}"


def open_box(folder: Path, agent: Agent | str, *, start: bool = True) -> Postbox:
    """Open the file of one of the two, in a home of its own, with its listener."""
    name, other = (BOB, ANN) if getattr(agent, "name", agent) == BOB else (ANN, BOB)
    home = folder / name
    home.mkdir(exist_ok=True)
    ears = [NatsListener(url(folder))] if start else []
    box = Postbox(home / f"{name}.db", agent=agent, start=start, listeners=ears, **SETTINGS)
    box.peers.add(other, f"{url(folder)}/{other}")
    return box


def sender(folder: Path, _name: str) -> None:
    """Send what is missing of the orders, a few of a lane in each commit."""
    total = int((folder / "total").read_text(encoding="ascii"))
    with open_box(folder, ANN) as box:
        send_missing(box, total)
        Event().wait()


def send_missing(box: Postbox, total: int) -> None:
    """Send what the outbox has not of *total* orders."""
    done = dict(box.query("SELECT session, count(*) FROM onceward_outbox GROUP BY session"))
    for first in range(0, total // LANES, AT_ONCE):
        for lane in (f"lane{n}" for n in range(LANES)):
            numbers = range(max(first, int(str(done.get(lane, 0)))), first + AT_ONCE)
            orders = [(BOB, Order(lane=lane, number=n)) for n in numbers]
            if orders:
                box.session(lane).send_many(orders)


def worker(folder: Path, _name: str) -> None:
    """Carry out orders."""
    with open_box(folder, fulfilling()):
        Event().wait()


def fulfilling() -> Agent:
    """Return the agent that gives each order its effect."""
    bob = Agent(BOB)

    @bob.on(Order)
    def fulfil(order: Order, ctx: Context) -> None:
        ctx.tx.execute(
            "INSERT INTO effects VALUES (?, ?, ?)", (ctx.message.id, order.lane, order.number)
        )

    return bob


def server(folder: Path, _name: str) -> None:
    """Become a nats-server, which has lost its store at times."""
    if random.random() < LOSES_ITS_STORE:
        shutil.rmtree(folder / "store", ignore_errors=True)
    program = str(Path(sys.executable).with_name("nats-server"))
    port = (folder / "port").read_text(encoding="ascii")
    arguments = ["-a", "127.0.0.1", "-p", port, "-js", "-sd", str(folder / "store")]
    os.execv(program, [program, *arguments, "-l", str(folder / "server.log")])  # noqa: S606


def replayer(folder: Path, _name: str) -> None:
    """Publish old messages again for ever, some of them spoiled."""
    while True:
        with suppress(Exception):
            asyncio.run(_replay(folder))
        time.sleep(0.2)


async def _ignore(error: Exception) -> None:
    del error


async def _replay(folder: Path) -> None:
    client, seen, rng = Client(), list[NatsMessage](), random.Random()
    async with asyncio.timeout(2):
        await client.connect(
            url(folder), allow_reconnect=False, max_reconnect_attempts=1, error_cb=_ignore
        )

    async def keep(msg: NatsMessage) -> None:
        seen.append(msg)
        del seen[:-50]

    await client.subscribe("ow.>", cb=keep)
    while client.is_connected:
        await asyncio.sleep(rng.uniform(0.01, 0.1))
        if seen:
            old = rng.choice(seen)
            spoiled = rng.random() < SPOILED
            body = _spoiled(old.data, rng) if spoiled else old.data
            await client.publish(old.subject, body, headers=_headers(old, rng))
    await client.close()


def _spoiled(body: bytes, rng: random.Random) -> bytes:
    """Cut a message, or change a bit of its frames: nothing but their digests guards these."""
    first = body.find(b"\n") + 2
    if not 1 < first < len(body):
        return body[: rng.randrange(len(body) or 1)]
    changed = bytearray(body)
    changed[rng.randrange(first, len(body))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _headers(old: NatsMessage, rng: random.Random) -> dict[str, str]:
    """Return the headers of a message, at times with the name of a parcel that never was."""
    headers = {k: v for k, v in (old.headers or {}).items() if k != "Nats-Msg-Id"}
    if "Onceward-Parcel" in headers and rng.random() < SPOILED:
        headers["Onceward-Parcel"] = "0" * 64
    return headers


ROLES: Final[dict[str, Role]] = {
    SERVER: server, "sender": sender, "worker-1": worker, "worker-2": worker, "replayer": replayer,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial has shown."""

    count: int
    """How often a process was killed."""
    violations: tuple[str, ...]
    seconds: float
    orders: int


def orders_for(kills: int, seconds: float) -> int:
    """Return how many orders the kills need, or those that the time has room for."""
    most = min(kills, seconds * KILLS_A_SECOND)
    return max(1, round(most * ORDERS_PER_KILL / EACH_ROUND)) * EACH_ROUND


def tried(kills: int, seconds: float, seed: int) -> Verdict:
    """Make a trial with as many orders as the kills need, in a folder of its own."""
    orders = orders_for(kills, seconds)
    with TemporaryDirectory(prefix="onceward-nats-") as made:
        return trial(Path(made), orders=orders, kills=kills, seed=seed, seconds=seconds)


def trial(
    folder: Path, *, orders: int, kills: int, seed: int, seconds: float = 86_400.0
) -> Verdict:
    """
    Send orders while processes are killed, no longer than *seconds*; then let all come to rest.

    Every order has exactly one effect, in the order of its lane; every one is acknowledged,
    none is a dead letter; both files keep every invariant.
    """
    begun = time.monotonic()
    (folder / "port").write_text(str(free_port()), encoding="ascii")
    (folder / "total").write_text(str(orders), encoding="ascii")
    for name in (ANN, BOB):
        with open_box(folder, name, start=False) as box, box.begin() as tx:
            tx.execute(TABLE)
    with crew(folder, ROLES, random.Random(seed)) as people:
        people.torment(kills, seconds=seconds)
        count = people.kills
        with open_box(folder, ANN, start=False) as ann:
            calm = people.wait_until(lambda: _acked(ann) == orders, seconds=600)
        wrong = people.fallen()
    wrong += judged_by(open_box, folder, orders) + (
        [] if calm else ["messages are still under way"]
    )
    told = tuple(f"seed {seed}: {each}" for each in wrong)
    return Verdict(count, told, time.monotonic() - begun, orders)


def _acked(box: Postbox) -> int:
    with suppress(OncewardError):
        return box.file.stats()["acked"]
    return 0


def judged_by(opened: Callable[..., Postbox], folder: Path, orders: int) -> list[str]:
    """Return what is wrong with the effects and with the files, which *opened* opens."""
    wrong: list[str] = []
    for name in (ANN, BOB):
        with opened(folder, name, start=False) as box:
            wrong += [f"{name}: {each}" for each in box.file.check()]
            wrong += [f"{name}: {each}" for each in box.dead_letters.list()]
            if name == BOB:
                lanes: dict[str, list[int]] = {f"lane{n}": [] for n in range(LANES)}
                for lane, number in box.query(EFFECTS):
                    lanes[str(lane)].append(int(str(number)))
    expected = list(range(orders // LANES))
    return wrong + [
        f"{lane}: {len(numbers)} effects, in order: {numbers == sorted(numbers)}"
        for lane, numbers in lanes.items()
        if numbers != expected
    ]
