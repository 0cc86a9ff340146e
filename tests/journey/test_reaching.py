"""
Peers that cannot be reached: how long they rest, whose budget it costs.

No other peer is delayed.
"""

from __future__ import annotations

import time
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Msg, Postbox, Tuning
from onceward.core.deliver import dispatcher
from onceward.core.deliver.delivery import Deliveries
from onceward.core.end import sent
from onceward.core.run import engine_loop as engine
from onceward.errors import StoreCorrupt, Unreachable
from onceward.events import Acked, BreakerClosed, BreakerOpened, DeliveryFailed
from onceward.transports import Frame, Parcel
from onceward.transports.function import FunctionTransport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.file.transaction import StoreTransaction


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


def quiet(name: str = "billing") -> Agent:
    """Return an agent that handles jobs and has nothing to say."""
    agent = Agent(name)

    @agent.on(Job)
    def work(job: Job) -> None:
        del job

    return agent


def number(frame: Frame) -> int:
    """Return the number of the job in a frame."""
    return Job.model_validate(frame.data).n


def push_times(world: World, shop: Postbox, seconds: int, step: float = 0.5) -> list[float]:
    """
    Return after how many seconds pushes happened.

    Time passes in steps, and the file is reopened at each.
    """
    begun, times, seen = world.clock.now(), [], len(world.wire.pushed)
    for _ in range(round(seconds / step)):
        shop.run_until_idle()
        if len(world.wire.pushed) > seen:
            seen = len(world.wire.pushed)
            times.append((world.clock.now() - begun) / 1000)
        world.clock.forward(step)
        (shop, _) = world.reopen("shop", "billing")
    return times


def test_backoff_doubles_and_survives_restarts(world: World) -> None:
    """A failing peer is tried again after 1, 2, 4 and 8 s, though the sender keeps restarting."""
    shop, _ = world.wired("shop", quiet())
    shop.send("billing", Job(n=1))
    world.wire.always = "down"

    assert [0, 1, 3, 7, 15] == push_times(world, shop, 20)


def test_five_failures_open_the_breaker_for_thirty_seconds(world: World) -> None:
    """
    The fifth failure opens the breaker.

    After 30 s one probe goes out, and its failure opens the breaker again.
    """
    shop, _ = world.wired("shop", quiet())
    shop.send("billing", Job(n=1))
    world.wire.always = "down"
    times = push_times(world, shop, 48)
    shop = world.boxes["shop"]
    [peer] = shop.peers.list()

    assert [0, 1, 3, 7, 15, 45] == times
    assert ("open", 6) == (peer.breaker, peer.failures)


def test_two_successes_close_the_breaker(world: World) -> None:
    """
    After a probe that arrived the breaker is half open, after a second push it is closed.

    Hooks hear of both ends.
    """
    shop, _ = world.wired("shop", quiet())
    heard: list[str] = []
    for kind in (BreakerOpened, BreakerClosed):
        shop.on(kind, lambda event: heard.append(event.name))
    shop.send("billing", Job(n=1))
    world.wire.script = ["down"] * 5
    for wait in (0, 1, 2, 4, 8):
        world.wait(wait)
    seen = [shop.peers.list()[0].breaker]
    world.wait(30)
    seen.append(shop.peers.list()[0].breaker)
    shop.send("billing", Job(n=2))
    world.settle()
    seen.append(shop.peers.list()[0].breaker)

    assert ["open", "half_open", "closed"] == seen
    assert ["breaker_opened", "breaker_closed"] == heard


def test_a_failure_while_half_open_starts_over(world: World) -> None:
    """
    One success and one failure of the probes leave the breaker open.

    Two more successes are needed.
    """
    shop, _ = world.wired("shop", quiet())
    shop.send("billing", Job(n=1))
    world.wire.of, world.wire.script = "shop", ["down"] * 5 + ["ok", "down"]
    for wait in (0, 1, 2, 4, 8, 30):
        world.wait(wait)
    shop.send("billing", Job(n=2))
    world.settle()
    seen = [shop.peers.list()[0].breaker]
    world.wait(60)
    seen.append(shop.peers.list()[0].breaker)
    shop.send("billing", Job(n=3))
    world.settle()
    seen.append(shop.peers.list()[0].breaker)

    assert ["open", "half_open", "closed"] == seen


def test_receipts_alone_are_successes_too(world: World) -> None:
    """A peer that took our receipts has answered: its breaker closes and its backoff is over."""
    shop, billing = world.wired("shop", quiet())
    for n in range(1, 4):
        shop.send("billing", Job(n=n))
        shop.run_until_idle()
        world.wire.script = ["down"]
        billing.run_until_idle()
        world.wait(61)
    [peer] = billing.peers.list()

    assert ("closed", 0, None) == (peer.breaker, peer.failures, peer.due_at)


def test_closing_the_breaker_by_hand_tries_at_once(world: World) -> None:
    """Who knows that the peer is back need not wait."""
    shop, _ = world.wired("shop", quiet())
    message = shop.send("billing", Job(n=1))
    world.wire.script = ["down"] * 5
    for wait in (0, 1, 2, 4, 8):
        world.wait(wait)
    shop.peers.reset("billing")
    world.settle()

    assert "acked" == shop.state(message)


def test_nobody_there_costs_no_budget(world: World) -> None:
    """By default mail for an unreachable peer waits as long as it takes."""
    shop, _ = world.wired("shop", quiet(), delivery_attempts=3)
    message = shop.send("billing", Job(n=1))
    world.wire.script = ["down"] * 20
    for _ in range(25):
        world.wait(61)

    assert "acked" == shop.state(message)


def test_nobody_there_may_cost_budget(world: World) -> None:
    """
    With count_unreachable_attempts such attempts count.

    The message is given up when they are used up.
    """
    shop, _ = world.wired("shop", quiet(), delivery_attempts=3, count_unreachable_attempts=True)
    message = shop.send("billing", Job(n=1))
    world.wire.always = "down"
    for _ in range(5):
        world.wait(61)
    letter = shop.dead_letters.get(message)

    assert letter is not None
    assert ("attempts_spent", 3) == (letter.reason, letter.attempts)
    assert 3 == len(world.wire.pushed)


def test_a_bug_of_a_transport_is_booked_on_no_message(world: World) -> None:
    """However often a transport raises what is not a verdict, its messages keep their budget."""

    def broken(parcel: Parcel) -> None:
        msg = f"a header of parcel {parcel.number}"
        raise ValueError(msg)

    shop, billing = world.wired("shop", quiet())
    told: list[str] = []
    shop.on(DeliveryFailed, lambda event: told.append(event.error))
    sent = shop.send("billing", Job(n=1))
    world.wire.on_push = broken
    for _ in range(15):
        world.wait(61)
    [peer] = shop.peers.list()
    [(attempts,)] = shop.query("SELECT attempts FROM onceward_outbox")
    state = shop.state(sent)
    world.wire.on_push = lambda _: None
    world.wait(61)

    assert ("sending", 0, "ValueError: a header of parcel 1") == (state, attempts, peer.last_error)
    assert len(told) > 10
    assert [1] == [past.body["n"] for past in billing.history().messages]


def test_a_failing_push_costs_budget(world: World) -> None:
    """
    The failure of a peer that was reached counts.

    By default there are ten attempts, then a dead letter with the error.
    """
    shop, _ = world.wired("shop", quiet())
    message = shop.send("billing", Job(n=1))
    world.wire.always = "error"
    for _ in range(15):
        world.wait(61)
    letter = shop.dead_letters.get(message)

    assert 10 == len(world.wire.pushed)
    assert letter is not None
    assert ("attempts_spent", "PushFailed: error") == (letter.reason, letter.last_error)


def test_retries_are_counted(world: World) -> None:
    """The total of retries tells how many attempts were repeats."""
    shop, _ = world.wired("shop", quiet())
    shop.send("billing", Job(n=1))
    world.wire.script = ["error", "error"]
    for _ in range(4):
        world.wait(61)

    assert 2 == shop.file.stats()["total_retries"]


def test_a_refused_parcel_is_dead_and_the_next_goes_on(world: World) -> None:
    """A peer that will never take a parcel costs only that parcel's messages, with its reason."""
    shop, billing = world.wired("shop", quiet())
    first = shop.send("billing", Job(n=1))
    world.wire.script = ["refuse"]
    shop.run_until_idle()
    second = shop.send("billing", Job(n=2))
    world.settle()

    assert ("dead", "acked") == (shop.state(first), shop.state(second))
    assert 0 == billing.file.stats()["forks"]


def test_an_idle_dispatcher_has_nothing_to_wait_for(world: World) -> None:
    """Once a resting peer's only message has expired, the dispatcher sleeps until it is called."""
    shop, _ = world.wired("shop", quiet())
    shop.send("billing", Job(n=1), ttl=5)
    world.wire.always = "down"
    for _ in range(5):
        world.wait(61)

    assert "expired" == shop.dead_letters.list()[0].reason
    assert shop._dispatcher._idle_for(shop._dispatcher._plan()) is None


def test_a_rest_that_is_over_hides_no_other(world: World) -> None:
    """
    A peer whose only message expired while it rested keeps the end of its rest.

    The next peer's retry is waited for all the same.
    """
    shop = world.open("shop", hold_unknown=True, delivery_retry="±0%", handler_retry="±0%")
    shop.send("gone", Job(n=1), ttl=0.5)
    shop.run_until_idle()
    world.wait(30)
    shop.run_until_idle()
    shop.send("late", Job(n=2))
    shop.run_until_idle()

    ends = {peer.name: peer.due_at for peer in shop.peers.list()}
    assert ends["gone"] is not None
    assert ends["late"] is not None
    assert ends["gone"] < world.clock.now() < ends["late"]
    wait = shop._dispatcher._idle_for(shop._dispatcher._plan())
    assert (ends["late"] - shop._db.now()) / 1000 == pytest.approx(wait, abs=0.01)


def test_what_falls_due_while_others_are_woken_is_not_slept_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that expires an instant after the one being buried is looked for again at once."""
    shop = world.open("shop", hold_unknown=True)
    with shop.begin() as tx:
        tx.send("nobody", Job(n=1), ttl=0.5)
        tx.send("nobody", Job(n=2), ttl=0.6)
    shop.run_until_idle()
    world.clock.forward(0.5)
    write = shop._db.write

    def slowly(work: Callable[[StoreTransaction], Any]) -> Any:
        found = write(work)
        world.clock.forward(0.2)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(shop._db, "write", slowly)
        wait = shop._dispatcher._idle_for(shop._dispatcher._plan())

    assert 0.0 == wait
    world.wait(61)
    shop.run_until_idle()
    assert 2 == len(shop.dead_letters.list())


@pytest.mark.parametrize("error", [StoreCorrupt("damaged"), TypeError("a receipt that is none")])
def test_a_peer_whose_rows_are_damaged_is_not_tried_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """
    A failure in our own file before anything is pushed writes no rest down.

    Its peer is left alone for a moment, and no other peer is.
    """
    tried: list[str] = []
    carry = Deliveries._deliver_all

    def carried(self: Deliveries, name: str, *given: Any) -> int:
        if name != "damaged":
            return carry(self, name, *given)
        tried.append(name)
        raise error

    monkeypatch.setattr(Deliveries, "_deliver_all", carried)
    monkeypatch.setattr(engine, "MAX_IDLE_SECONDS", 3600.0)
    with (
        Postbox(tmp_path / "billing.db", agent=quiet()),
        Postbox(tmp_path / "shop.db", agent="shop", hold_unknown=True) as shop,
    ):
        shop.send("damaged", Job(n=1))
        limit = time.monotonic() + 60
        for n in range(20):
            sent = shop.send("billing", Job(n=n))
            while shop.state(sent) != "acked" and time.monotonic() < limit:
                time.sleep(0.001)

        assert (["damaged"], "acked") == (tried, shop.state(sent))


def test_a_backlog_that_expires_is_buried_without_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Messages that expire together are buried slice after slice, without a ring.

    One slice is all that a commit takes.
    """
    monkeypatch.setattr(dispatcher, "WAKE_ROWS", 10)
    monkeypatch.setattr(engine, "MAX_IDLE_SECONDS", 3600.0)
    with Postbox(
        tmp_path / "shop.db",
        agent="shop",
        hold_unknown=True,
        tuning=Tuning(poll_interval=0),
        delivery_retry="3600s..3600s ±0%",
        handler_retry="3600s..3600s ±0%",
    ) as shop:
        shop.send("nobody", "the first finds that there is nobody: the peer rests")
        limit = time.monotonic() + 60
        while (
            not [peer for peer in shop.peers.list() if peer.name == "nobody" and peer.due_at]
            and time.monotonic() < limit
        ):
            time.sleep(0.01)
        with shop.begin() as tx:
            ids = [tx.send("nobody", k, ttl=0.2) for k in range(35)]
        while (states := {shop.state(each) for each in ids}) != {
            "dead"
        } and time.monotonic() < limit:
            time.sleep(0.01)

        assert {"dead"} == states


def test_what_becomes_due_while_others_are_buried_is_not_slept_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A message that expires while an earlier one is being buried is looked at at once.

    It does not wait for the next ring.
    """
    shop, _ = world.wired("shop", quiet())
    world.wire.always = "down"
    ids = [shop.send("billing", Job(n=1), ttl=5), shop.send("billing", Job(n=2), ttl=6)]
    for _ in range(3):
        shop.run_until_idle()
        world.clock.forward(1)
    bury = sent.bury

    def slowly(*given: Any, **named: Any) -> list[tuple[str, str]]:
        world.clock.forward(1)
        return bury(*given, **named)

    monkeypatch.setattr(sent, "bury", slowly)
    world.clock.forward(2)
    looks = [shop._dispatcher._dispatch_due() for _ in range(3)]

    assert (0.0, ["dead", "dead"]) == (looks[0], [shop.state(each) for each in ids])
    assert 0.0 not in looks[2:]  # and it comes to rest
    world.wait(61)


def test_receipts_after_a_failure_leave_nothing_to_wait_for(world: World) -> None:
    """A peer that took our receipts at the second attempt does not keep the dispatcher awake."""
    shop, billing = world.wired("shop", quiet())
    shop.send("billing", Job(n=1))
    shop.run_until_idle()
    world.wire.script = ["down"]
    billing.run_until_idle()
    world.wait(2)
    world.clock.forward(61)

    assert billing._dispatcher._idle_for(billing._dispatcher._plan()) is None


def test_a_hanging_peer_delays_no_other(world: World) -> None:
    """While one peer's push hangs, another peer gets its mail, from the same engines."""
    hang, hung = Flag(), Flag()

    def wait(frames: list[Frame]) -> bool:
        del frames
        hung.set()
        return hang.wait(60)

    transports = {"function": FunctionTransport(wait)}
    acked = Flag()
    with (
        Postbox(world.path("ok"), agent=quiet("ok")),
        Postbox(world.path("shop"), agent="shop", transports=transports) as shop,
    ):
        shop.on(Acked, lambda _: acked.set())
        shop.peers.add("slow", "function:x")
        shop.send("slow", Job(n=1))
        assert hung.wait(60)
        shop.send("ok", Job(n=2))
        assert acked.wait(60)
        hang.set()


def test_a_failing_peer_delays_no_other(world: World) -> None:
    """A round that finds one peer down still pushes to the others."""
    shop, _ = world.wired("shop", quiet())
    world.open(quiet("ok"))
    shop.send("billing", Job(n=1))
    other = shop.send("ok", Job(n=2))
    world.wire.always = "down"
    world.settle()

    assert "acked" == shop.state(other)


def test_stopping_does_not_wait_for_a_hanging_push(world: World) -> None:
    """stop(timeout) gives up waiting for a push that hangs; the parcel is pushed again later."""
    hang, hung, stopped = Flag(), Flag(), Flag()

    def wait(frames: list[Frame]) -> bool:
        del frames
        hung.set()
        stopped.wait(60)
        hang.set()
        return True

    transports = {"function": FunctionTransport(wait)}
    box = Postbox(world.path("shop"), agent="shop", transports=transports)
    box.peers.add("slow", "function:x")
    message = box.send("slow", Job(n=1))
    assert hung.wait(60)
    box.stop(timeout=0.05)
    early = hang.is_set()
    state = box.state(message)
    stopped.set()
    assert hang.wait(60)
    box.close()

    assert (False, "sending") == (early, state)


def test_stopping_drains_what_is_under_way(world: World) -> None:
    """
    A push that returns in time is settled before stop returns.

    The rest of the queue stays where it is.
    """
    pushing, go = Flag(), Flag()

    def carry(frames: list[Frame]) -> bool:
        assert 1 == len(frames)
        pushing.set()
        return go.wait(60)

    transports = {"function": FunctionTransport(carry)}
    box = Postbox(
        world.path("shop"),
        agent="shop",
        transports=transports,
        tuning=Tuning(parcel_max_messages=1),
        ack="stored",
    )
    box.peers.add("slow", "function:x")
    first, second = box.send_many([("slow", Job(n=1)), ("slow", Job(n=2))])
    assert pushing.wait(60)
    box._dispatcher._loop.stopping.set()
    go.set()
    box.stop(timeout=60)

    assert ("acked", "pending") == (
        box.state(first),
        box.state(second).replace("sending", "pending"),
    )
    box.close()


def test_a_silent_function_holds_only_the_lanes_it_failed(world: World) -> None:
    """
    Frames that a function did not confirm are tried again by themselves.

    Other lanes of the parcel are through.
    """
    pushed: list[list[int]] = []
    refuse = {1}

    def send(frames: list[Frame]) -> list[bool]:
        numbers = [number(frame) for frame in frames]
        pushed.append(numbers)
        return [n not in refuse for n in numbers]

    shop = world.open("shop", transports={"function": FunctionTransport(send)}, ack="stored")
    shop.peers.add("bridge", "function:x")
    shop.session("a").send("bridge", Job(n=1))
    shop.session("b").send("bridge", Job(n=2))
    shop.run_until_idle()
    shop.session("a").send("bridge", Job(n=3))
    shop.session("b").send("bridge", Job(n=4))
    shop.run_until_idle()
    refuse.clear()
    world.wait(1)

    assert [[1, 2], [4], [1], [3]] == pushed
    assert 4 == shop.file.stats()["acked"]


def test_a_lane_waits_for_its_oldest_failure(world: World) -> None:
    """A younger message of a lane that failed once waits while the older one waits longer."""
    done: list[int] = []
    fail = {1: 4, 2: 1}

    def send(frames: list[Frame]) -> list[bool]:
        said = []
        for frame in frames:
            n = number(frame)
            fail[n] = fail.get(n, 0) - 1
            said.append(fail[n] < 0)
            done.extend([n] * said[-1])
        return said

    shop = world.open("shop", transports={"function": FunctionTransport(send)}, ack="stored")
    shop.peers.add("bridge", "function:x")
    shop.send("bridge", Job(n=1))
    for wait in (0, 1, 2):
        world.wait(wait)
    shop.send("bridge", Job(n=2))
    for _ in range(60):
        world.wait(0.5)

    assert [1, 2] == done


def test_a_function_that_never_confirms_is_given_up(world: World) -> None:
    """A message that the function takes but whose outcome is never told is not pushed for ever."""
    calls: list[int] = []

    def send(frames: list[Frame]) -> bool:
        calls.append(len(frames))
        return True

    transports = {"function": FunctionTransport(send)}
    shop = world.open("shop", transports=transports, delivery_attempts=3)
    shop.peers.add("bridge", "function:x")
    shop.send("bridge", Job(n=1))
    for _ in range(20):
        world.wait(31)

    assert 3 >= len(calls)


def test_a_function_that_raises_unreachable_costs_nothing(world: World) -> None:
    """Unreachable from a function means what it says; anything else spends the budget."""
    said: list[Exception] = [Unreachable("no"), ValueError("no"), Unreachable("no")]

    def send(frames: list[Frame]) -> bool:
        del frames
        if said:
            raise said.pop()
        return True

    shop = world.open(
        "shop", transports={"function": FunctionTransport(send)}, delivery_attempts=2, ack="stored"
    )
    shop.peers.add("bridge", "function:x")
    message = shop.send("bridge", Job(n=1))
    for _ in range(6):
        world.wait(61)

    assert "acked" == shop.state(message)


def test_a_file_that_is_not_there_yet_gets_its_mail_later(world: World) -> None:
    """Mail for an agent that has not been created waits, and arrives when it is."""
    shop = world.open("shop", hold_unknown=True)
    message = shop.send("billing", Job(n=1))
    world.wait(1)
    world.open(quiet())
    world.wait(61)

    assert "acked" == shop.state(message)


@pytest.mark.parametrize("word", ["down", "error", "busy", "lost"])
def test_every_failure_is_seen_at_the_peer(world: World, word: str) -> None:
    """Whatever goes wrong, the peer's row says what and until when it rests."""
    shop, _ = world.wired("shop", quiet())
    shop.send("billing", Job(n=1))
    world.wire.script = [word]
    shop.run_until_idle()
    [peer] = shop.peers.list()

    assert (1, world.clock.now() + 1000) == (peer.failures, peer.due_at)
    assert peer.last_error


def test_a_file_that_moved_is_reached_at_its_new_address(tmp_path: Path) -> None:
    """
    A sender follows a file that it delivered to when its new address is registered.

    It needs no restart for that.
    """
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    there = tmp_path / "elsewhere" / "billing.db"
    with Postbox(tmp_path / "here" / "shop.db", agent="shop", start=False) as shop:
        with Postbox(tmp_path / "here" / "billing.db", agent=quiet(), start=False):
            shop.send("billing", Job(n=1))
            shop.run_until_idle()
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / "here" / f"billing.db{suffix}").rename(f"{there}{suffix}")
        message = shop.send("billing", Job(n=2))
        shop.run_until_idle()
        shop.peers.add("billing", f"file:{there}")
        shop.run_until_idle()

        assert "sent" == shop.state(message)
