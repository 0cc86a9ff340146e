"""
Order: kept within a lane through retries, restarts and several dispatchers.

Between lanes and priorities it is given up.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from onceward import Agent, Context, Msg, Postbox, Tuning
from onceward.message.names import PriorityName
from onceward.testing import Controls

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Job(Msg, type="job"):
    """A task with a number, of some lane."""

    lane: str
    n: int


def noting(name: str = "billing") -> Agent:
    """Return an agent that notes its jobs in the order of handling."""
    agent = Agent(name)

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS effects (lane, n)")
        ctx.tx.execute("INSERT INTO effects VALUES (?, ?)", (job.lane, job.n))

    return agent


def effects(box: Postbox, lane: str | None = None) -> list[int]:
    """Return the numbers in the order of their effects, of one lane or of all."""
    return [
        n
        for (n,) in box._db.read(
            "SELECT n FROM effects WHERE ? IS NULL OR lane = ? ORDER BY rowid", (lane, lane)
        )
    ]


@pytest.mark.parametrize("seed", range(8))
def test_lanes_keep_their_order_through_whatever_happens(world: World, seed: int) -> None:
    """
    Each of three lanes takes effect in order, each job once.

    The wire has random faults, and processes crash and restart at random.
    """
    dice = random.Random(seed)
    shop, billing = world.wired(
        "shop", noting(), tuning=Tuning(parcel_max_messages=2), delivery_attempts=10_000
    )
    sent = dict.fromkeys("abc", 0)
    for _ in range(60):
        for _ in range(dice.randrange(3)):
            lane = dice.choice("abc")
            shop.session(lane).send("billing", Job(lane=lane, n=sent[lane]))
            sent[lane] += 1
        world.wire.script = [
            dice.choice(["ok", "ok", "down", "error", "lost", "busy", "cut", "died"])
        ]
        for box in dice.sample([shop, billing], 2):
            try:
                box.run_until_idle()
            except world.crash:
                shop, billing = world.reopen("shop", "billing")
                break
        world.clock.forward(dice.choice([0, 0, 1, 40, 70]))
    world.wire.script = []
    for _ in range(4):
        world.wait(70)

    assert {lane: list(range(count)) for lane, count in sent.items()} == {
        lane: effects(billing, lane) for lane in sent
    }
    assert sum(sent.values()) == shop.file.stats()["acked"]


def test_two_dispatchers_take_turns(world: World) -> None:
    """Two engines on one file never push to one peer at a time, and the order always holds."""
    shop, billing = world.wired("shop", noting(), tuning=Tuning(parcel_max_messages=1))
    rival = Postbox(
        world.path("shop"),
        agent="shop",
        start=False,
        testing=Controls(clock=world.clock),
        transports={"wire": world.wire},
    )
    for n in range(6):
        shop.send("billing", Job(lane="x", n=n))
    inside: list[int] = []

    def rival_tries(_: object) -> None:
        if not inside:
            inside.append(1)
            inside.append(rival.run_until_idle())

    world.wire.on_push = rival_tries
    shop.run_until_idle()
    rival.close()
    world.settle()

    assert [1, 0] == inside
    assert list(range(6)) == effects(billing)


def test_a_dispatcher_that_lost_its_lease_changes_nothing(world: World) -> None:
    """
    A push that took longer than its lease is settled by the new owner.

    The late answer is passed over.
    """
    shop, billing = world.wired("shop", noting())
    rival = Postbox(
        world.path("shop"),
        agent="shop",
        start=False,
        testing=Controls(clock=world.clock),
        transports={"wire": world.wire},
    )
    message = shop.send("billing", Job(lane="x", n=1))
    took: list[int] = []

    def overtake(_: object) -> None:
        if not took:
            took.append(0)
            world.clock.forward(61)
            rival.run_until_idle()
            rival.send("billing", Job(lane="x", n=2))
            rival.run_until_idle()

    world.wire.on_push = overtake
    shop.run_until_idle()
    world.settle()
    outcome = shop.state(message), shop._db.read("SELECT generation, number FROM _onceward_peers")
    rival.close()

    assert [1, 2] == effects(billing)
    assert ("acked", [(1, 2)]) == outcome


def test_urgent_mail_overtakes(world: World) -> None:
    """Mail that waits is handed over by priority first, by age second."""
    shop, billing = world.wired("shop", noting(), tuning=Tuning(parcel_max_messages=1))
    names: tuple[PriorityName, ...] = ("background", "low", "normal", "high", "urgent", "critical")
    for n, priority in enumerate(names):
        shop.send("billing", Job(lane="x", n=n), priority=priority)
    world.settle()

    assert [5, 3, 4, 2, 1, 0] == effects(billing)
    pushed = [
        parcel.frames[0].id
        for parcel in world.wire.pushed
        if parcel.frames and parcel.sender == "shop"
    ]
    assert 6 == len(pushed)


def test_an_ordering_key_is_a_lane_across_sessions(world: World) -> None:
    """Messages of one key are handled in the order of their commits, across all sessions."""
    shop, billing = world.wired("shop", noting())
    for n in range(6):
        shop.session(f"s{n % 2}").send("billing", Job(lane="x", n=n), ordering_key="invoice-7")
    world.settle()

    assert list(range(6)) == effects(billing)


def test_a_session_receives_what_was_sent_in_it(world: World) -> None:
    """Messages that share an ordering key across sessions are received in their own session."""
    shop, billing = world.open("shop"), world.open("billing")
    for n in range(2):
        shop.session(f"s{n}").send("billing", Job(lane="x", n=n), ordering_key="k")
    shop.run_until_idle()
    message = billing.session("s0").receive(Job)

    assert message is not None
    assert ("s0", 0) == (message.session, message.body.n)
    message.ack()


def test_order_holds_after_questions(world: World) -> None:
    """Messages that were asked about do not change places with those behind them."""
    shop, billing = world.wired("shop", noting())
    for n in range(3):
        shop.send("billing", Job(lane="x", n=n))
        shop.run_until_idle()
        world.clock.forward(31)
        shop.run_until_idle()
    world.settle()

    assert [0, 1, 2] == effects(billing)


def test_order_holds_through_a_failing_handler(world: World) -> None:
    """Nothing of a lane is handled before its head has ended, in this worker or another."""
    agent = Agent("billing")
    seen: list[int] = []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        if job.n == 0 and ctx.message.attempt < 4:
            raise ValueError
        seen.append(job.n)

    shop, _ = world.wired("shop", agent)
    for n in range(3):
        shop.send("billing", Job(lane="x", n=n))
    for _ in range(12):
        world.wait(1)

    assert [0, 1, 2] == seen
