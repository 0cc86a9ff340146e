"""
Files that were restored greet their peers: both sides send again without new messages.

The peers of a file that is only opened again get nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.journey.counted import Job, counting, effects

from onceward import Agent, Context
from onceward.events import PeerRolledBack, StreamForked
from onceward.transports.function import FunctionTransport

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward.message.frame import Frame
    from onceward.message.parcel import Parcel

MINUTE, HOUR = 60.0, 3_600.0


def exchanged(world: World, name: str) -> None:
    """Let ``shop`` send three jobs to ``billing``; restore a file to the state after the first."""
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy(name)
    shop, _ = world.reopen("shop", "billing")
    for n in (2, 3):
        shop.send("billing", Job(n=n))
        world.settle()
    world.shut()
    world.wire.pushed.clear()
    world.restore(name)


def greetings(world: World) -> list[tuple[str, str]]:
    """Return sender and kind of the greetings that were pushed, without repetitions."""
    found = [
        (parcel.sender, parcel.greeting.partition(":")[0])
        for parcel in world.wire.pushed
        if parcel.greeting is not None
    ]
    return list(dict.fromkeys(found))


def test_a_restored_recipient_gets_everything_back_without_new_messages(world: World) -> None:
    """It greets its peers; the sender asks what it has lost, and sends that again."""
    exchanged(world, "billing")
    shop, _ = world.reopen("shop", "billing")
    heard: list[int] = []
    shop.on(PeerRolledBack, lambda event: heard.append(event.resent))
    before = effects(world)
    world.settle()

    assert ([1], [1, 2, 3]) == (before, effects(world))
    assert [2] == heard
    assert [("billing", "restored"), ("shop", "answer")] == greetings(world)


def test_a_restored_sender_learns_it_without_new_messages(world: World) -> None:
    """Its greeting is answered with a fork, so it has a new epoch before it sends anything."""
    exchanged(world, "shop")
    shop, _ = world.reopen("shop", "billing")
    causes: list[str] = []
    shop.on(StreamForked, lambda event: causes.append(event.cause))
    world.settle()
    shop.send("billing", Job(n=4))
    world.settle()

    assert ["own_file"] == causes
    assert [1, 2, 3, 4] == effects(world)
    assert ("shop", "restored") in greetings(world)


def test_both_files_may_be_restored_at_once(world: World) -> None:
    """Each greets the other; what neither has is gone, and nothing takes effect twice."""
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    world.keep_copy("shop")
    world.keep_copy("billing")
    shop, _ = world.reopen("shop", "billing")
    shop.send("billing", Job(n=2))
    world.settle()
    world.shut()
    world.restore("shop")
    world.restore("billing")
    shop, _ = world.reopen("shop", "billing")
    world.settle()
    shop.send("billing", Job(n=3))
    world.settle()

    assert [1, 3] == effects(world)


def test_a_file_that_is_opened_again_greets_no_peer(world: World) -> None:
    """Nothing is pushed if nothing waits."""
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    for _ in range(3):
        world.wire.pushed.clear()
        world.reopen("shop", "billing")
        world.wait(HOUR)

        assert [] == world.wire.pushed


def test_a_moved_file_greets_its_peers_once(world: World) -> None:
    """A file that other processes used elsewhere comes without the note beside it."""
    shop, _ = world.wired("shop", counting())
    shop.send("billing", Job(n=1))
    world.settle()
    world.shut()
    (world.home / "billing.db-run").unlink()
    world.wire.pushed.clear()
    world.reopen("shop", "billing")
    world.settle()
    first = greetings(world)
    world.wire.pushed.clear()
    world.reopen("shop", "billing")
    world.settle()

    assert [("billing", "restored"), ("shop", "answer")] == first
    assert ([], [1]) == (world.wire.pushed, effects(world))


@pytest.mark.parametrize("word", ["down", "error", "lost", "busy"])
def test_a_greeting_is_repeated_until_it_is_answered(world: World, word: str) -> None:
    """A peer that is away, or whose answer is lost, is greeted again after the backoff."""
    exchanged(world, "billing")
    world.reopen("shop", "billing")
    world.wire.of, world.wire.script = "billing", [word]
    world.settle()
    world.wait(MINUTE)
    world.wait(MINUTE)

    assert [1, 2, 3] == effects(world)


@pytest.mark.broken("X1: the sender is not asked what the file has lost")
def test_a_peer_that_refuses_a_greeting_is_greeted_no_more(world: World) -> None:
    """The url leads to another agent: the dispatcher does not try it for ever."""
    exchanged(world, "billing")
    world.reopen("shop", "billing")
    world.wire.of, world.wire.script = "billing", ["refuse"]
    world.settle()
    world.wait(HOUR)

    assert [("billing", "restored")] == greetings(world)
    assert 1 == len(world.wire.pushed)


def test_peers_that_no_greeting_can_reach_are_left_alone(world: World) -> None:
    """A peer whose url was removed, or that is a plain function, gets nothing and costs nothing."""
    calls: list[Frame] = []

    def keep(frames: list[Frame]) -> bool:
        calls.extend(frames)
        return True

    function = FunctionTransport(keep)
    shop = world.open("shop", transports={"function": function})
    shop.peers.add({"printer": "function:printer", "fax": "function:fax"})
    for name in ("printer", "fax"):
        shop.send(name, Job(n=1))
    world.settle()
    shop.peers.remove("fax")
    world.shut()
    (world.home / "shop.db-run").unlink()
    [shop] = world.reopen("shop")
    world.wait(HOUR)

    assert 2 == len(calls)
    assert [(0, None)] * 2 == [(peer.failures, peer.due_at) for peer in shop.peers.list()]


def test_a_message_on_its_way_carries_the_greeting(world: World) -> None:
    """A restored file that has something to push needs no parcel of its own for it."""
    exchanged(world, "billing")
    _, billing = world.reopen("shop", "billing")
    billing.send("shop", Job(n=9))
    world.settle()
    first = world.wire.pushed[0]

    assert ("billing", 1) == (first.sender, len(first.frames))
    assert first.is_from_restored
    assert [1, 2, 3] == effects(world)


def test_an_answer_from_before_a_second_restore_does_not_end_its_greeting(world: World) -> None:
    """The peer pushes again what was on its way when it was greeted: that answer is too old."""
    exchanged(world, "billing")
    world.reopen("shop", "billing")
    second = "f" * 24
    greeting: list[Parcel] = []

    def greet_once_more(parcel: Parcel) -> None:
        if parcel.is_from_restored:
            greeting.append(parcel)
        elif greeting and parcel.sender == "shop":
            world.wire.push_again(replace(greeting.pop(), greeting=f"restored:{second}"))
            world.wire.on_push = lambda _: None

    world.wire.on_push = greet_once_more
    world.settle()
    world.wait(MINUTE)
    answers = {p.greeting for p in world.wire.pushed if p.sender == "shop" and p.greeting}

    assert f"answer:{second}" in answers
    assert [1, 2, 3] == effects(world)


def test_what_a_restored_agent_sends_again_takes_effect_once(world: World) -> None:
    """It gets its work back from one peer, and repeats it to another, which drops it."""
    world.open(counting("ledger"))
    billing = Agent("billing")

    @billing.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.send("ledger", job)

    world.open(billing).peers.add("ledger", "wire:ledger")
    world.boxes["billing"].peers.add("shop", "wire:shop")
    world.boxes["ledger"].peers.add("billing", "wire:billing")
    world.open("shop").peers.add("billing", "wire:billing")
    world.settle()
    world.shut()
    world.keep_copy("billing")
    shop, *_ = world.reopen("shop", "billing", "ledger")
    for n in (1, 2, 3):
        shop.send("billing", Job(n=n))
        world.settle()
    world.shut()
    world.restore("billing")
    world.reopen("shop", "billing", "ledger")
    world.settle()

    assert [1, 2, 3] == effects(world, "ledger")
