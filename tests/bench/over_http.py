"""
From one process to another over HTTP, signed both ways, up to the processed receipt.

Beside it the same messages by file: first in hundreds, then one by one, up to the receipt and up
to the handler's commit. Last the exchange itself, beside an echo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench import wake
from tests.bench.crew import LONGEST, Link, over, running, say_when
from tests.bench.deliver import BATCH, TABLE, bob, lap, receive
from tests.bench.exchange import exchange, processor_time
from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Lap, Result, alternate, compare, quantile_ms, repeat
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.events import Processed
from onceward.http import HttpListener
from onceward.keys import Keys

MESSAGES: Final = 10_000
ROUNDS: Final = 3
LOOK_EVERY: Final = 0.0005
SINGLE_LAPS: Final = 4
"""Length of a lap of single messages, in laps of other cases: 2 s."""
STREAM_GOALS: Final = (Goal("ratio", at_least=0.85), Goal("cpu_ratio", at_most=1.35))
WAKES: Final = 100
WAKE_GOALS: Final = (Goal("more_ms", at_most=3.0),)


def over_http(plan: Plan) -> Iterator[Result]:
    """Carry messages between two processes, in turns over HTTP and by file, and time exchanges."""
    yield from carried(plan)
    yield from woken(plan)
    yield from exchange(plan)


def carried(plan: Plan) -> Iterator[Result]:
    """Carry many messages, then one by one, up to the receipts."""
    size = -(-plan.messages(MESSAGES, per_second=5000) // BATCH) * BATCH
    ours, files = home(plan, "ours"), plan.room("files")
    listener = HttpListener("http://127.0.0.1:0")
    with (
        Postbox(
            ours / "alice.db", agent="alice", max_pending=UNBOUNDED, listeners=[listener]
        ) as box,
        running(listen, ours, listener.url),
        running(receive, files, "safe"),
        Postbox(files / "alice.db", agent="alice", max_pending=UNBOUNDED) as by_file,
    ):
        box.peers.add("bob", (ours / "url").read_text(encoding="utf-8"))
        plan.settle()
        rounds = min(ROUNDS, plan.rounds)
        spent: dict[Postbox, list[float]] = {box: [], by_file: []}

        def counted(one: Postbox) -> Lap:
            before = processor_time()
            done = lap(one, size)
            spent[one].append(processor_time() - before)
            return done

        pairs = alternate(lambda: counted(box), lambda: counted(by_file), rounds=rounds)
        cpu = median(a / b for a, b in zip(spent[box], spent[by_file], strict=True))
        yield compare("http", pairs, durability="safe", goals=STREAM_GOALS, cpu_ratio=cpu)
        pairs = alternate(alone(box, plan), alone(by_file, plan), rounds=rounds)
        waits = [median(w for one in laps for w in one.waits) for laps in (pairs.ours, pairs.raw)]
        more = 1000 * (waits[0] - waits[1])
        yield compare("http-single", pairs, durability="safe", acked_more_ms=more)


def woken(plan: Plan) -> Iterator[Result]:
    """Measure from the call to the commit of the other process's handler, over HTTP and by file."""
    rounds, body = plan.messages(WAKES, per_second=200), note()
    ours, files = home(plan, "ours-woken"), plan.room("files-woken")
    listener = HttpListener("http://127.0.0.1:0")
    with (
        Postbox(ours / "alice.db", agent="alice", listeners=[listener]) as box,
        running(listen, ours, listener.url, tells=True) as link,
        running(wake.receive, files, "safe") as other,
        Postbox(files / "alice.db", agent="alice") as by_file,
    ):
        box.peers.add("bob", (ours / "url").read_text(encoding="utf-8"))
        plan.settle()
        pairs = [
            (
                wake.once(lambda: box.send("bob", body), link),
                wake.once(lambda: by_file.send("bob", body), other),
            )
            for _ in range(rounds + wake.WARM)
        ][wake.WARM :]
    http, file = (sorted(each) for each in zip(*pairs, strict=True))
    p50, file_p50 = quantile_ms(http, 0.5) or 0.0, quantile_ms(file, 0.5) or 0.0
    yield Result(
        case="http-wake",
        durability="safe",
        p50_ms=p50,
        p99_ms=quantile_ms(http, 0.99),
        more={"file_p50_ms": file_p50, "more_ms": p50 - file_p50},
        goals=WAKE_GOALS,
    )


def home(plan: Plan, name: str) -> Path:
    """Make a room for Alice, with one for Bob in it, and give them a key."""
    made = plan.room(name)
    (made / "other").mkdir()
    Keys(made / "other").add("alice", Keys(made).create("bob"))
    return made


def alone(box: Postbox, plan: Plan) -> Callable[[], Lap]:
    """Return a lap of messages of which each is acknowledged before the next is sent."""

    def one() -> None:
        message = box.send("bob", note(1))
        limit = time.monotonic() + LONGEST
        while box.state(message) != "acked":
            if time.monotonic() > limit:
                msg = "a message was not acknowledged: see file.stats() of both files"
                raise TimeoutError(msg)
            time.sleep(LOOK_EVERY)

    return lambda: repeat(one, SINGLE_LAPS * plan.lap_for)


def listen(link: Link, folder: Path, url: str, *, tells: bool = False) -> None:
    """
    Handle what comes over HTTP until told to end; the body of another process.

    It *tells* when each message was committed, if asked to.
    """
    other = folder / "other"
    listener = HttpListener("http://127.0.0.1:0")
    with Postbox(other / "bob.db", agent=bob, listeners=[listener]) as box:
        box.peers.add("alice", url)
        with box.begin() as tx:
            tx.execute(TABLE)
        if tells:
            box.on(Processed, lambda _: say_when(link))
        (folder / "url").write_text(listener.url, encoding="utf-8")
        link.send("ready")
        over(link, LONGEST)
