"""
From one process to another over HTTP, signed both ways, up to the processed receipt.

Beside it the same messages by file: first in hundreds, then one by one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.crew import LONGEST, Link, over, running
from tests.bench.deliver import BATCH, TABLE, bob, lap, receive
from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Lap, Result, alternate, compare, repeat
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.http import HttpListener
from onceward.keys import Keys

MESSAGES: Final = 10_000
ROUNDS: Final = 3
LOOK_EVERY: Final = 0.0005
SINGLE_LAPS: Final = 4
"""Length of a lap of single messages, in laps of other cases: 2 s."""
STREAM_GOALS: Final = (Goal("ratio", at_least=0.85), Goal("cpu_ratio", at_most=1.35))
SINGLE_GOALS: Final = (Goal("more_ms", at_most=3.0),)


def over_http(plan: Plan) -> Iterator[Result]:
    """Carry messages between two processes, in turns over HTTP and by file."""
    size = -(-plan.messages(MESSAGES, per_second=5000) // BATCH) * BATCH
    ours, files = plan.room("ours"), plan.room("files")
    at_bob = ours / "url"
    listener = HttpListener("http://127.0.0.1:0")
    (ours / "other").mkdir()
    Keys(ours / "other").add("alice", Keys(ours).create("bob"))
    with (
        Postbox(
            ours / "alice.db", agent="alice", max_pending=UNBOUNDED, listeners=[listener]
        ) as box,
        running(listen, ours, listener.url),
        running(receive, files, "safe"),
        Postbox(files / "alice.db", agent="alice", max_pending=UNBOUNDED) as by_file,
    ):
        box.peers.register("bob", at_bob.read_text(encoding="utf-8"))
        plan.settle()
        rounds = min(ROUNDS, plan.rounds)
        spent: dict[Postbox, list[float]] = {box: [], by_file: []}

        def counted(one: Postbox) -> Lap:
            before = _processor_time()
            done = lap(one, size)
            spent[one].append(_processor_time() - before)
            return done

        pairs = alternate(lambda: counted(box), lambda: counted(by_file), rounds=rounds)
        cpu = median(a / b for a, b in zip(spent[box], spent[by_file], strict=True))
        yield compare("http", pairs, durability="safe", goals=STREAM_GOALS, cpu_ratio=cpu)
        pairs = alternate(alone(box, plan), alone(by_file, plan), rounds=rounds)
        waits = [median(w for one in laps for w in one.waits) for laps in (pairs.ours, pairs.raw)]
        more = 1000 * (waits[0] - waits[1])
        yield compare("http-single", pairs, durability="safe", goals=SINGLE_GOALS, more_ms=more)


def alone(box: Postbox, plan: Plan) -> Callable[[], Lap]:
    """Return a lap of messages of which each is acknowledged before the next is sent."""

    def one() -> None:
        message = box.send("bob", note(1))
        limit = time.monotonic() + LONGEST
        while box.resolve(message) != "acked":
            if time.monotonic() > limit:
                msg = "a message was not acknowledged: see stats() and health() of both files"
                raise TimeoutError(msg)
            time.sleep(LOOK_EVERY)

    return lambda: repeat(one, SINGLE_LAPS * plan.lap_for)


def _processor_time() -> float:
    """Return the seconds that this process and its children have computed."""
    ticks = 0
    for child in active_children():
        told = Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
        ticks += sum(map(int, told.split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def listen(link: Link, folder: Path, url: str) -> None:
    """Handle what comes over HTTP until told to end; the body of another process."""
    other = folder / "other"
    listener = HttpListener("http://127.0.0.1:0")
    with Postbox(other / "bob.db", agent=bob, listeners=[listener]) as box:
        box.peers.register("alice", url)
        with box.begin() as tx:
            tx.execute(TABLE)
        (folder / "url").write_text(listener.url, encoding="utf-8")
        link.send("ready")
        over(link, LONGEST)
