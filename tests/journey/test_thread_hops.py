"""Threads that a message passes between the return of its send and its handler elsewhere."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.core.run import threads
from onceward.events import Processed, Received
from onceward.file.notify import Notifier
from onceward.transports.file import FileTransport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.message.parcel import Answer, Parcel

STATIONS = """
import json, socket, sys, threading
from onceward.core.deliver import delivery
from onceward.core.run import threads

delivery.SETTLE_WITHIN = 0.0  # no thread of the last message waits for the commit of the next one
threads.TICK = threads.QUICK_TICK = 60.0  # no heartbeat gets another thread on a busy machine
passed = []

def note(station):
    passed.append((station, threading.get_ident()))

class Noting(socket.socket):
    def recv(self, *args):
        found = super().recv(*args)
        note("heard")
        return found

socket.socket = Noting

def tell(station):
    note(station)
    found, passed[:] = passed[:], []
    print(json.dumps(found), flush=True)
"""
WORKER = f"""{STATIONS}
from onceward import Agent, Postbox
agent = Agent("billing")
agent.on("json")(lambda _: tell("handled"))
with Postbox(sys.argv[1], agent=agent, tuning=dict(poll_interval=0)):
    print(json.dumps("ready"), flush=True)
    sys.stdin.read()
"""
READER = f"""{STATIONS}
from onceward import Postbox
with Postbox(sys.argv[1], agent="billing", tuning=dict(poll_interval=0)) as box:
    print(json.dumps("ready"), flush=True)
    while (message := box.receive(timeout=60)).body != "stop":
        tell("received")
        message.ack()
"""
TASK = f"""{STATIONS}
import asyncio
from onceward import AsyncPostbox
async def main():
    async with AsyncPostbox(sys.argv[1], agent="billing", tuning=dict(poll_interval=0)) as box:
        print(json.dumps("ready"), flush=True)
        while (message := await box.receive(timeout=60)).body != "stop":
            tell("received")
            await message.ack()
asyncio.run(main())
"""
MESSAGES = 5
Passed = list[tuple[str, int]]
"""Stations of a message, each with the thread that was there."""


class Recipient:
    """A process that receives the messages of billing and tells their stations."""

    def __init__(self, process: Child) -> None:
        self._process = process

    def told(self) -> Any:
        """Return what it says next."""
        return json.loads(self._process.hear())


@contextmanager
def recipient(program: str, home: Path) -> Iterator[Recipient]:
    """Run *program* on the file of billing."""
    with Child([*PYTHON, "-c", program, home / "billing.db"], "stdin", "stdout") as process:
        yield Recipient(process)


def acked(shop: Postbox, message_id: str) -> bool:
    """Return whether the recipient has told that it handled a message."""
    return shop.state(message_id) == "acked"


def hand_overs(passed: Passed) -> int:
    """Return how often a message went from one thread to another."""
    return sum(one[1] != other[1] for one, other in pairwise(passed))


@pytest.mark.parametrize("program", [WORKER, READER, TASK], ids=["worker", "reader", "task"])
def test_the_thread_that_acts_on_a_message_hears_of_it_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """One hand-over in the sender's process, to the carrier; none in the recipient's."""
    ours: Passed = []
    deliver = FileTransport.deliver

    def noted(self: FileTransport, url: str, parcel: Parcel) -> Answer:
        if parcel.frames:
            ours.append(("delivered", threading.get_ident()))
        return deliver(self, url, parcel)

    monkeypatch.setattr(FileTransport, "deliver", noted)
    with recipient(program, tmp_path) as other:
        assert "ready" == other.told()
        with Postbox(tmp_path / "shop.db", agent="shop") as shop:
            there = list[Passed]()
            here = list[Passed]()
            for n in range(MESSAGES):
                ours[:] = [("sent", threading.get_ident())]
                sent = shop.send("billing", n)
                there.append(other.told())
                here.append(list(ours))
                until(partial(acked, shop, sent))  # the engine is at rest

    heard = [passed for passed in there if len(passed) > 1]
    assert [1] * MESSAGES == list(map(hand_overs, here))
    assert heard
    assert [0] * len(heard) == list(map(hand_overs, heard))


def test_a_worker_wakes_no_other_thread_for_its_receipt(tmp_path: Path) -> None:
    """
    It holds its wakes while the effects of its last commit run, and then takes the next task.

    It does so once it knows that nothing else is ready, which a busy machine may delay.
    """
    engine, held = threads.engine_threads(), list[bool]()
    billing = Agent("billing")
    billing.on("json")(lambda _: None)
    with (
        Postbox(tmp_path / "billing.db", agent=billing) as box,
        Postbox(tmp_path / "shop.db", agent="shop") as shop,
    ):
        box.on(Received, lambda _: None)  # no message is stored with its call, which sends none
        box.on(Processed, lambda _: held.append(threading.get_ident() in engine._holding))
        for n in range(50):
            sent = shop.send("billing", n)
            until(partial(acked, shop, sent))
            if any(held):
                break

    assert any(held), held


def test_no_thread_only_wakes_others(tmp_path: Path) -> None:
    """
    Threads that are left after a delivery are those of the process that run engines.

    They wait, run tasks, and their heartbeat looks after tasks; the postbox adds none of its own.
    """
    before = set(threading.enumerate())
    with recipient(WORKER, tmp_path) as other, Postbox(tmp_path / "shop.db", agent="shop") as shop:
        assert "ready" == other.told()
        shop.send("billing", 1)
        other.told()
        names = {each.name for each in set(threading.enumerate()) - before}
    running = {"onceward-dispatcher-shop", "onceward-push-watch-shop", "onceward-carrier"}

    assert names <= {"onceward-engine", "onceward-heartbeat", *running}


def test_all_that_wait_are_told_although_one_reads(tmp_path: Path) -> None:
    """Of several threads that wait for one file, the one that reads the socket tells the others."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        told = [threading.Event() for _ in range(4)]
        ready = threading.Barrier(len(told) + 1)

        def wait(mark: threading.Event) -> None:
            waiter = box._db.waiter("in", 0)
            ready.wait()
            waiter.wait(30.0)
            mark.set()
            waiter.close()

        for mark in told:
            threading.Thread(target=wait, args=(mark,)).start()
        ready.wait()
        Notifier(box.file.path).notify("in")

        assert [True] * len(told) == [mark.wait(30.0) for mark in told]
