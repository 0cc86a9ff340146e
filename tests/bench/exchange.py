"""
One parcel of one frame over HTTP, signed both ways, up to the commit in the recipient's file.

Beside it an echo of as many bytes by the same client and server, neither proved nor kept. A row
without the disk, then one whose commits are synced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from statistics import median
from typing import Final, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.bench.crew import LONGEST, Link, over, running
from tests.bench.mail import note
from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.http import HttpListener
from onceward.keys import Keys
from onceward.message import wire
from onceward.message.clock import SystemClock
from onceward.message.parcel import Durability, Parcel
from onceward.message.settings import Settings
from onceward.testing.builders import build_frame, parcel
from onceward.transports import TransportContext
from onceward.transports.network.http import HttpTransport, SignedRequest

EXCHANGES: Final = 500
ROUNDS: Final = 3
GOALS: Final = (Goal("cpu_ratio", at_most=2.0),)


def exchange(plan: Plan) -> Iterator[Result]:
    """Compare exchanges with echoes, in turns; what both processes compute is compared."""
    for durability in ("fast", "safe"):
        yield _exchange(plan, durability)


def _exchange(plan: Plan, durability: str) -> Result:
    home, size = plan.room(f"exchange-{durability}"), plan.messages(EXCHANGES, per_second=500)
    (home / "other").mkdir()
    Keys(home / "other").add("alice", Keys(home).create("bob"))
    context = TransportContext(agent="alice", folder=home, settings=Settings(), clock=SystemClock())
    parcels, way = _parcels(), HttpTransport(context)
    spent: dict[str, list[float]] = {"exchange": [], "echo": []}
    with running(take, home, durability), closing(way):
        url = (home / "url").read_text(encoding="utf-8")
        plan.settle()

        def lap(name: str, step: Callable[[HttpTransport, str, Parcel], None]) -> Lap:
            given, waits = list(islice(parcels, size)) if step is push else [one] * size, []
            before = processor_time()
            for each in given:
                began = time.perf_counter()
                step(way, url, each)
                waits.append(time.perf_counter() - began)
            spent[name].append((processor_time() - before) / size)
            return Lap(size, sum(waits), tuple(waits))

        one = next(_parcels())
        pairs = alternate(
            lambda: lap("exchange", push),
            lambda: lap("echo", echo),
            rounds=min(ROUNDS, plan.rounds),
        )
    cpu = median(a / b for a, b in zip(spent["exchange"], spent["echo"], strict=True))
    each = {f"{name}_cpu_ms": 1000 * median(spent[name]) for name in spent}
    return compare(
        "http-exchange", pairs, durability=durability, goals=GOALS, cpu_ratio=cpu, **each
    )


def push(way: HttpTransport, url: str, given: Parcel) -> None:
    """Have a parcel accepted."""
    if way.deliver(url, given).verdict != "accepted":
        msg = "a parcel was not accepted"
        raise RuntimeError(msg)


def echo(way: HttpTransport, url: str, given: Parcel) -> None:
    """Have the bytes of a parcel sent back."""
    body = wire.encode_parcel(given)
    asked = SignedRequest("alice", "bob", "echo", wire.CONTENT_TYPE, body)
    if way.request(url, asked, limit=len(body)).body != body:
        msg = "an echo had other bytes"
        raise RuntimeError(msg)


def _parcels() -> Iterator[Parcel]:
    """Yield a stream of parcels of one frame each."""
    number, previous = 0, ""
    while True:
        frame = build_frame(note(1), sender="alice", recipient="bob")
        number += 1
        yield parcel(number, [frame], previous=previous, sender="alice", recipient="bob")
        previous = frame.id


def take(link: Link, folder: Path, durability: str) -> None:
    """Take parcels, and echo other bodies, until told to end; the body of another process."""
    listener = HttpListener("http://127.0.0.1:0")
    echo = Route("/v1/agents/bob/echo", _echo, methods=["POST"])
    listener.endpoint.app.router.routes.append(echo)
    with Postbox(
        folder / "other" / "bob.db",
        agent="bob",
        start=False,
        durability=cast("Durability", durability),
        listeners=[listener],
    ):
        (folder / "url").write_text(listener.url, encoding="utf-8")
        link.send("ready")
        over(link, LONGEST)


async def _echo(request: Request) -> Response:
    return Response(await request.body(), media_type=wire.ANSWER_TYPE)


def processor_time() -> float:
    """Return the seconds that this process and its children have computed."""
    ticks = 0
    for child in active_children():
        told = Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
        ticks += sum(map(int, told.split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
