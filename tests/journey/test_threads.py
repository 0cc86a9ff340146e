"""Many threads in one process: none waits for ever, nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any

import pytest
from tests.waiting import until

from onceward import Agent, AsyncContext, Context, Msg, Postbox
from onceward.events import Acked, Processed, Sent
from onceward.message.names import DIRECTORY

LONG = 60.0
BRISK: dict[str, Any] = {
    "lease": 2.0,
    "deliver_timeout": 2.0,
    "delivery_retry": "0.02s..0.1s ±0%",
    "handler_retry": "0.02s..0.1s ±0%",
    "ack_timeout": 5.0,
    "delivery_attempts": 101,  # a stalled machine gives no message up
}


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


class Echo(Msg, type="echo"):
    """What comes back."""

    n: int


class Tally:
    """Counts up to a goal, from any thread."""

    def __init__(self, goal: int) -> None:
        self._goal, self._count, self._lock, self._reached = goal, 0, Lock(), Flag()

    def one(self, _: object = None) -> None:
        """Count one."""
        with self._lock:
            self._count += 1
            if self._count == self._goal:
                self._reached.set()

    def reached(self) -> bool:
        """Wait for the goal; False where it is not reached."""
        return self._reached.wait(LONG)


def in_threads(*works: Callable[[], None]) -> None:
    """Run works side by side until all have ended, and raise what the first of them raised."""
    wrong: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told to the test below
            wrong.append(error)

    threads = [Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert [] == wrong
    assert [] == [thread for thread in threads if thread.is_alive()]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Return a folder; every file in it must be in order afterwards."""
    yield tmp_path
    for path in tmp_path.glob("*.db"):
        if path.name == DIRECTORY:
            continue
        with Postbox(path, start=False) as box:
            assert [] == box.file.check()


def table(box: Postbox) -> None:
    """Make a table for effects."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS effects (n)")


def effects(box: Postbox) -> list[int]:
    """Return the numbers of all effects, sorted."""
    return sorted(n for (n,) in box._db.read("SELECT n FROM effects"))


def waiting_for(others: Flag, released: list[bool], handled: Counter[int]) -> Agent:
    """Return an agent whose handler of job 0 waits until *others* is set."""
    agent = Agent("billing")

    @agent.on(Job)
    def work(job: Job) -> None:
        if job.n == 0:
            released.append(others.wait(LONG))
        count(job.n, handled, others)

    return agent


def awaiting(others: Flag, released: list[bool], handled: Counter[int]) -> Agent:
    """Return the same with a coroutine as handler."""
    agent = Agent("billing")

    @agent.on(Job)
    async def work(job: Job) -> None:
        if job.n == 0:
            released.append(await asyncio.to_thread(others.wait, LONG))
        count(job.n, handled, others)

    return agent


def count(n: int, handled: Counter[int], others: Flag) -> None:
    """Count a job; set *others* once twenty of them are done."""
    handled[n] += 1
    if len(handled) == 20:
        others.set()


@pytest.mark.parametrize("handling", [waiting_for, awaiting])
def test_a_slow_handler_delays_only_its_own_lane(
    home: Path, handling: Callable[[Flag, list[bool], Counter[int]], Agent]
) -> None:
    """Idle workers handle what a worker has claimed besides a message whose handler is slow."""
    others, released, handled = Flag(), list[bool](), Counter[int]()
    agent = handling(others, released, handled)
    with (
        Postbox(home / "billing.db", agent=agent, start=False) as billing,
        Postbox(home / "shop.db", agent="shop", start=False) as shop,
    ):
        for n in range(21):
            shop.session(f"s{n}").send("billing", Job(n=n))
        shop.run_until_idle()
        billing.file.pause()
    with Postbox(home / "billing.db", agent=agent, workers=8) as billing:
        for worker in billing._workers:
            worker._size = 200
        billing.file.resume()
        until(lambda: 21 == billing.file.stats()["processed"])

    assert [True] == released
    assert dict.fromkeys(range(21), 1) == handled


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("style", ["own", "late", "mixed", "failing"])
def test_threads_send_while_workers_work(home: Path, workers: int, style: str) -> None:
    """
    Senders, workers, heartbeats and long transactions share one writer per file.

    All get their turn.
    """
    agent, failed = Agent("billing"), set[int]()

    @agent.on(Job, attempts=20)
    def work(job: Job, ctx: Context) -> Echo:
        if style == "failing" and job.n % 5 == 0 and job.n not in failed:
            failed.add(job.n)
            ctx.tx.execute("INSERT INTO effects VALUES (?)", (-job.n,))
            raise ValueError
        if style == "late" or (style == "mixed" and job.n % 2):
            billing.file.stats()
            billing.send("shop", Echo(n=-1))
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
        return Echo(n=job.n)

    each, threads = 40, 6
    acked = Tally(each * threads)
    with (
        Postbox(home / "billing.db", agent=agent, workers=workers, **BRISK) as billing,
        Postbox(home / "shop.db", agent="shop", **BRISK) as shop,
    ):
        table(billing)
        shop.on(Acked, acked.one)

        def send(thread: int) -> None:
            for n in range(each):
                shop.session(f"s{thread}").send("billing", Job(n=thread * each + n))

        def occupy() -> None:
            for _ in range(30):
                with billing.begin() as tx:
                    tx.execute("SELECT count(*) FROM effects")

        in_threads(*[lambda t=t: send(t) for t in range(threads)], occupy, occupy)
        assert acked.reached()
        assert list(range(each * threads)) == effects(billing)


def test_async_handlers_run_side_by_side(home: Path) -> None:
    """Two coroutines of one agent that wait for each other both run where there are two workers."""
    agent = Agent("billing")
    met: list[int] = []
    both = asyncio.Event()

    @agent.on(Job)
    async def work(job: Job) -> None:
        met.append(job.n)
        if len(met) == 2:
            both.set()
        await both.wait()

    done = Tally(2)
    with (
        Postbox(home / "billing.db", agent=agent, workers=2) as billing,
        Postbox(home / "shop.db", agent="shop") as shop,
    ):
        shop.on(Acked, done.one)
        billing.on(Processed, lambda _: None)
        shop.session("a").send("billing", Job(n=1))
        shop.session("b").send("billing", Job(n=2))
        assert done.reached()

    assert {1, 2} == set(met)


def test_async_handlers_under_load(home: Path) -> None:
    """
    Coroutines of several workers do each job once, while other threads send and write.

    They have effects, replies and pauses.
    """
    agent = Agent("billing")

    @agent.on(Job, attempts=20)
    async def work(job: Job, ctx: AsyncContext) -> Echo:
        await asyncio.sleep(0)
        await ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
        await asyncio.sleep(0)
        return Echo(n=job.n)

    each, threads = 25, 4
    acked = Tally(each * threads)
    with (
        Postbox(home / "billing.db", agent=agent, workers=3, **BRISK) as billing,
        Postbox(home / "shop.db", agent="shop", **BRISK) as shop,
    ):
        table(billing)
        shop.on(Acked, acked.one)

        def send(thread: int) -> None:
            for n in range(each):
                shop.session(f"s{thread}").send("billing", Job(n=thread * each + n))

        in_threads(*[lambda t=t: send(t) for t in range(threads)])
        assert acked.reached()
        assert list(range(each * threads)) == effects(billing)


def test_hooks_that_send_and_read(home: Path) -> None:
    """A hook may use the postbox that called it, whichever thread it is called on."""
    agent = Agent("billing")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))

    heard = Tally(60)
    with (
        Postbox(home / "billing.db", agent=agent, **BRISK) as billing,
        Postbox(home / "shop.db", agent="shop", **BRISK) as shop,
    ):
        table(billing)

        def answer(_: object) -> None:
            billing.file.stats()
            billing.send("shop", Echo(n=1))
            heard.one()

        billing.on(Processed, answer)
        for n in range(60):
            shop.session(f"s{n % 7}").send("billing", Job(n=n))
        assert heard.reached()
        assert list(range(60)) == effects(billing)


def test_boxes_come_and_go(home: Path) -> None:
    """Threads that open, use and close postboxes on the same two files never disturb another."""
    sent: list[str] = []
    with Postbox(home / "billing.db", agent="billing", start=False) as billing:

        def come_and_go(thread: int) -> None:
            for n in range(12):
                with Postbox(home / "shop.db", agent="shop", **BRISK) as box:
                    sent.append(box.session(f"s{thread}").send("billing", Job(n=n)))

        in_threads(*[lambda t=t: come_and_go(t) for t in range(4)])
        with Postbox(home / "shop.db", agent="shop", **BRISK) as shop:
            until(lambda: {"sent"} == {shop.state(message) for message in sent})
        assert 48 == billing.file.stats()["received"]


def test_readers_share_a_queue(home: Path) -> None:
    """
    Six threads pull from one inbox: each message is taken once.

    It is acked in the transaction of its effect.
    """
    with (
        Postbox(home / "reader.db", agent="reader", **BRISK) as reader,
        Postbox(home / "shop.db", agent="shop", **BRISK) as shop,
    ):
        table(reader)
        stored = Tally(120)
        shop.on(Sent, stored.one)
        for n in range(120):
            shop.session(f"s{n % 11}").send("reader", Job(n=n))
        assert stored.reached()

        taken: list[int] = []

        def pull() -> None:
            while len(taken) < 120:
                message = reader.receive(Job, timeout=0.2)
                if message is not None:
                    with reader.begin() as tx:
                        tx.execute("INSERT INTO effects VALUES (?)", (message.body.n,))
                        message.ack()
                    taken.append(message.body.n)

        in_threads(*[pull] * 6)
        assert list(range(120)) == effects(reader)


def test_freezing_and_thawing_under_load(home: Path) -> None:
    """A switch that is thrown again and again delays mail, and loses and repeats none of it."""
    agent = Agent("billing")

    @agent.on(Job, attempts=20)
    def work(job: Job, ctx: Context) -> Echo:
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
        return Echo(n=job.n)

    acked = Tally(100)
    with (
        Postbox(home / "billing.db", agent=agent, **BRISK) as billing,
        Postbox(home / "shop.db", agent="shop", **BRISK) as shop,
    ):
        table(billing)
        shop.on(Acked, acked.one)

        def switch() -> None:
            for _ in range(15):
                billing.file.pause()
                billing.file.resume()

        def send() -> None:
            for n in range(100):
                shop.session(f"s{n % 3}").send("billing", Job(n=n))

        in_threads(switch, send)
        assert acked.reached()
        assert list(range(100)) == effects(billing)


def test_closing_in_the_middle_of_everything(home: Path) -> None:
    """
    A postbox that is closed under load settles or gives back what it holds.

    The next one does the rest, once.
    """
    agent = Agent("billing")
    begun = Flag()

    @agent.on(Job, attempts=20)
    def work(job: Job, ctx: Context) -> None:
        begun.set()
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))

    with Postbox(home / "shop.db", agent="shop", **BRISK) as shop:
        with Postbox(home / "billing.db", agent=agent, start=False) as made:
            table(made)
        shop.send_many([("billing", Job(n=n)) for n in range(400)])
        for _ in range(6):
            begun.clear()
            with Postbox(home / "billing.db", agent=agent, workers=2, **BRISK):
                begun.wait(0.3)
        with Postbox(home / "billing.db", agent=agent, workers=2, **BRISK) as billing:
            until(lambda: shop.file.stats()["acked"] == 400)
            assert list(range(400)) == effects(billing)
