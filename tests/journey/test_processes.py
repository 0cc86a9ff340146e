"""Several processes on one file, some of them killed: the promises where they are needed."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Agent, Msg, Postbox

CHILD = Path(__file__).with_name("child.py")
BRISK: dict[str, Any] = {
    "lease": 2.0,
    "deliver_timeout": 2.0,
    "delivery_retry": "0.05s..0.2s ±0%",
    "handler_retry": "0.05s..0.2s ±0%",
    "ack_timeout": 5.0,
    "delivery_attempts": 101,  # a stalled machine gives no message up
    "tuning": {"breaker_open_for": 0.2},
}
LONG = 60.0


class Job(Msg, type="job"):
    """A task, as the children know it."""

    n: int
    do: str = ""


def child_of(task: str, home: Path, name: str) -> Child:
    """Start a process that speaks lines."""
    return Child([*PYTHON, CHILD, task, home, name], "stdin", "stdout")


@contextmanager
def running(task: str, home: Path, name: str) -> Iterator[Child]:
    """Run a child for a block, behind which it ends by itself."""
    with child_of(task, home, name) as child:
        yield child
        child.ended()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """
    Return a folder with a sender and an agent that has a table for its effects.

    Both files are checked afterwards.
    """
    with Postbox(tmp_path / "billing.db", agent="billing", start=False) as box, box.begin() as tx:
        tx.execute("CREATE TABLE effects (id, session, n)")
    with Postbox(tmp_path / "shop.db", agent="shop", start=False):
        pass
    yield tmp_path
    for name in ("shop", "billing"):
        with Postbox(tmp_path / f"{name}.db", start=False) as box:
            assert [] == box.file.check()


def effects(home: Path) -> list[tuple[Any, ...]]:
    """Return (id, session, n) of all effects, in their order."""
    with Postbox(home / "billing.db", start=False) as box:
        return box._db.read("SELECT id, session, n FROM effects ORDER BY rowid")


def test_a_killed_worker_is_replaced(home: Path) -> None:
    """
    Three processes share one inbox; one is killed inside its handler.

    Its lane moves on, each job has its effect once.
    """
    with ExitStack() as stack:
        shop = stack.enter_context(Postbox(home / "shop.db", agent="shop", **BRISK))
        children = [stack.enter_context(running("work", home, "billing")) for _ in range(3)]
        assert ["ready"] * 3 == [child.hear() for child in children]
        shop.session("x").send("billing", Job(n=0, do="wait"))
        for n in range(1, 40):
            shop.session("x" if n % 4 == 0 else f"s{n % 4}").send("billing", Job(n=n))
        first = _who_is_inside(home, children)
        for child in children:  # the next attempt does not wait, whether this one is counted or not
            if child is not first:
                child.tell("go on")
        first.kill()
        until(lambda: shop.file.stats()["acked"] == 40)
    done = effects(home)

    assert list(range(40)) == sorted(n for _, _, n in done)
    assert list(range(0, 40, 4)) == [n for _, session, n in done if session == "x"]


def _who_is_inside(home: Path, children: list[Child]) -> Child:
    """Return the child whose handler holds the lane: the only one that has said something."""
    import selectors  # noqa: PLC0415 - this helper only

    del home
    with selectors.DefaultSelector() as selector:
        for child in children:
            assert child.stdout is not None
            selector.register(child.stdout, selectors.EVENT_READ, child)
        [(key, _)] = selector.select(LONG)[:1]
        found: Child = key.data
    assert "inside 0" == found.hear()
    return found


@pytest.mark.proof
def test_a_killed_sender_loses_nothing_it_was_told_and_repeats_nothing(home: Path) -> None:
    """
    A sender is killed thirty times at random instants while another process drains.

    Each acknowledged send has one effect.
    """
    dice = random.Random(30)
    acknowledged: list[str] = []
    with running("work", home, "billing") as drain:
        assert "ready" == drain.hear()
        for _ in range(30):
            with child_of("send", home, "shop") as sender:
                acknowledged += [sender.hear() for _ in range(dice.randrange(1, 12))]
                rest, _ = sender.stop(signal.SIGKILL)
            acknowledged += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        with Postbox(home / "shop.db", agent="shop", **BRISK) as shop:
            until(lambda: shop.file.stats()["acked"] == shop.file.stats()["enqueued"])
            sent = {i for (i,) in shop._db.read("SELECT id FROM _onceward_outbox")}
    done = [i for i, _, _ in effects(home)]

    assert set() == {line.strip() for line in acknowledged} - set(done)
    assert sorted(sent) == sorted(done)


@pytest.mark.proof
def test_order_holds_through_killed_senders(home: Path) -> None:
    """A session's messages take effect in the order of its commits, whichever process dies."""
    dice = random.Random(5)
    with running("work", home, "billing") as drain:
        assert "ready" == drain.hear()
        for _ in range(8):
            with child_of("send", home, "shop") as sender:
                for _ in range(dice.randrange(1, 20)):
                    sender.hear()
        with Postbox(home / "shop.db", agent="shop", **BRISK) as shop:
            until(lambda: shop.file.stats()["acked"] == shop.file.stats()["enqueued"])
    numbers = [n for _, _, n in effects(home)]

    assert list(range(len(numbers))) == numbers


@pytest.mark.proof
def test_a_killed_worker_while_mail_pours_in(home: Path) -> None:
    """Workers that are killed one after the other under load lose nothing and do nothing twice."""
    dice = random.Random(11)
    with Postbox(home / "shop.db", agent="shop", **BRISK) as shop:
        for round_ in range(8):
            with running("work", home, "billing") as child:
                assert "ready" == child.hear()
                for n in range(40):
                    shop.session(f"s{n % 5}").send("billing", Job(n=40 * round_ + n))
                goal = min(40 * round_ + dice.randrange(1, 40), shop.file.stats()["enqueued"])
                until(lambda goal=goal: shop.file.stats()["acked"] >= goal)  # type: ignore[misc]  # bound now, called now
                child.kill()
        with running("work", home, "billing") as child:
            assert "ready" == child.hear()
            until(lambda: shop.file.stats()["acked"] == 320)
    done = effects(home)

    assert list(range(320)) == sorted(n for _, _, n in done)
    for lane in range(5):
        numbers = [n for _, session, n in done if session == f"s{lane}"]
        assert sorted(numbers) == numbers


def test_a_message_that_ends_its_process_is_found(home: Path) -> None:
    """
    Poison is buried after its attempts, though each of them took a whole process.

    Its neighbours have their effect once.
    """
    with Postbox(home / "shop.db", agent="shop", **BRISK) as shop:
        for n in range(20):
            shop.session("x").send("billing", Job(n=n, do="exit" if n == 10 else ""))
        codes = []
        while shop.file.stats()["acked"] + shop.file.stats()["failed"] < 20:
            with running("work", home, "billing") as child:
                until(
                    lambda child=child: (  # type: ignore[misc]
                        child.poll() is not None or shop.file.stats()["acked"] == 19
                    )
                )
                if child.poll() is not None:
                    codes.append(child.returncode)
            assert len(codes) < 12
    with Postbox(home / "billing.db", start=False) as billing:
        buried = [letter.reason for letter in billing.dead_letters.list()]

    assert [n for n in range(20) if n != 10] == [n for _, _, n in effects(home)]
    assert ["attempts_spent"] == buried
    assert {7} == set(codes)


def test_a_slow_handler_holds_no_lock(home: Path) -> None:
    """While a handler works outside a transaction, another process writes to the file at once."""
    with (
        running("work", home, "billing") as child,
        Postbox(home / "shop.db", agent="shop", **BRISK) as shop,
    ):
        assert "ready" == child.hear()
        message = shop.send("billing", Job(n=1, do="wait"))
        assert "inside 1" == child.hear()
        with (
            Postbox(home / "billing.db", start=False, busy_timeout=60.0) as here,
            here.begin() as tx,
        ):
            tx.execute("CREATE TABLE mine (n)")
        child.tell("go on")
        until(lambda: shop.state(message) == "acked")

    assert [1] == [n for _, _, n in effects(home)]


def test_a_handler_beyond_its_runtime_is_overtaken(home: Path) -> None:
    """
    A handler that runs for longer than it may loses its lane to another process.

    Its later writes are undone.
    """
    with ExitStack() as stack:
        shop = stack.enter_context(Postbox(home / "shop.db", agent="shop", **BRISK))
        slow = stack.enter_context(running("limited", home, "billing"))
        assert "ready" == slow.hear()
        message = shop.send("billing", Job(n=1, do="wait"))
        assert "inside 1" == slow.hear()
        quick = stack.enter_context(running("work", home, "billing"))
        assert "ready" == quick.hear()
        until(lambda: shop.state(message) == "acked")
        slow.tell("go on")
        shop.send("billing", Job(n=2))
        until(lambda: shop.file.stats()["acked"] == 2)

    assert [1, 2] == [n for _, _, n in effects(home)]


def test_a_handler_within_its_runtime_is_not_overtaken(home: Path) -> None:
    """A handler that runs for several leases keeps its lane: its heartbeat speaks for it."""
    with ExitStack() as stack:
        shop = stack.enter_context(Postbox(home / "shop.db", agent="shop", **BRISK))
        slow = stack.enter_context(running("work", home, "billing"))
        assert "ready" == slow.hear()
        message = shop.send("billing", Job(n=1, do="wait"))
        assert "inside 1" == slow.hear()
        rival = stack.enter_context(running("work", home, "billing"))
        assert "ready" == rival.hear()
        [(token, due)] = shop_lane = _lane(home)
        until(lambda: _lane(home)[0][1] > due + 4000)
        slow.tell("go on")
        until(lambda: shop.state(message) == "acked")

    assert 1 == len(shop_lane)
    assert token == _lane(home)[0][0]
    assert [1] == [n for _, _, n in effects(home)]


def _lane(home: Path) -> list[tuple[Any, ...]]:
    with Postbox(home / "billing.db", start=False) as box:
        return box._db.read("SELECT token, due_at FROM _onceward_lanes")


def test_two_relays_of_one_file_keep_the_order(home: Path) -> None:
    """Two processes carry one agent's mail: each lane arrives in order and each message once."""
    agent, done = Agent("billing"), list[tuple[str, int]]()

    @agent.on(Job)
    def note(job: Job) -> None:
        done.append((job.do, job.n))

    with ExitStack() as stack:
        billing = stack.enter_context(Postbox(home / "billing.db", agent=agent, **BRISK))
        for child in [stack.enter_context(running("relay", home, "shop")) for _ in range(2)]:
            assert "ready" == child.hear()
        with Postbox(home / "shop.db", agent="shop", start=False) as shop:
            for n in range(300):
                shop.session(f"s{n % 5}").send("billing", Job(n=n, do=f"s{n % 5}"))
            until(lambda: billing.file.stats()["processed"] == 300)

    assert {f"s{lane}": list(range(lane, 300, 5)) for lane in range(5)} == {
        lane: [n for name, n in done if name == lane] for lane in ("s0", "s1", "s2", "s3", "s4")
    }
