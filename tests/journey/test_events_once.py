"""Each event of a message is told once, and carries all the fields that its page lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceward import Agent
from onceward.message.events import DeliveryFailed, Event, MessageEvent, Retried

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward import Postbox


def heard(box: Postbox, *names: str) -> list[Event]:
    """Return the list to which the events of a postbox are added."""
    told: list[Event] = []
    box.on(Event, lambda event: told.append(event) if event.name in names else None)
    return told


def facts(events: list[Event]) -> list[tuple[str, str, str]]:
    """Return message, session and type of each event of a message."""
    return [(e.message_id, e.session, e.type) for e in events if isinstance(e, MessageEvent)]


def test_a_message_that_is_pushed_twice_is_sent_once(world: World) -> None:
    """A sender that asks for an outcome pushes the message again: the peer stored it before."""
    shop, _ = world.wired("shop", "billing")
    told = heard(shop, "sent")
    message = shop.send("billing", 1, type="job")
    for _ in range(3):
        shop.run_until_idle()
        world.clock.forward(601)

    assert 3 == world.wire.ids.count(message)
    assert [(message, "default", "job")] == facts(told)


def test_a_message_whose_answer_was_lost_is_sent_once(world: World) -> None:
    """The peer answers the second push that it knows the message, of which no event told yet."""
    shop, _ = world.wired("shop", "billing")
    world.wire.script = ["lost"]
    told = heard(shop, "sent")
    message = shop.send("billing", 1, type="job")
    for _ in range(3):
        shop.run_until_idle()
        world.clock.forward(61)

    assert [(message, "default", "job")] == facts(told)


def test_a_message_that_is_handled_before_its_answer_comes_was_sent_too(world: World) -> None:
    """Stored and processed are told together; what asks for the outcome later tells nothing."""
    billing = Agent("billing")
    billing.on("job")(lambda _: None)
    shop, box = world.wired("shop", billing)
    world.wire.script = ["lost"]
    told = heard(shop, "sent", "acked")
    message = shop.send("billing", 1, type="job")
    shop.run_until_idle()
    for _ in range(2):
        box.run_until_idle()
        world.clock.forward(61)
        shop.run_until_idle()

    assert ["sent", "acked"] == [event.name for event in told]
    assert [(message, "default", "job")] * 2 == facts(told)


def test_what_storing_settles_was_sent_and_acknowledged(world: World) -> None:
    """Where no outcome is asked for, both events are told."""
    shop, _ = world.wired("shop", "billing", ack="stored")
    told = heard(shop, "sent", "acked")
    message = shop.send("billing", 1, type="job")
    shop.run_until_idle()

    assert ["sent", "acked"] == [event.name for event in told]
    assert [(message, "default", "job")] * 2 == facts(told)


def test_a_push_that_raised_is_told_for_its_messages(world: World) -> None:
    """Each message of the parcel will be attempted again, at the time when the peer is tried."""
    shop, _ = world.wired("shop", "billing")
    world.wire.script = ["error", "error"]
    told = heard(shop, "retried", "delivery_failed")
    ids = [shop.session("s").send("billing", n, type="job") for n in (1, 2)]
    shop.run_until_idle()
    world.clock.forward(61)
    shop.run_until_idle()
    retried = [event for event in told if isinstance(event, Retried)]
    failed = [event for event in told if isinstance(event, DeliveryFailed)]

    assert [(i, "s", "job") for _ in range(2) for i in ids] == facts(told)
    assert [1, 1, 2, 2] == [event.attempt for event in retried]
    assert [(e.error, e.due_at) for e in failed for _ in ids] == [
        (e.error, e.due_at) for e in retried
    ]


def test_a_push_that_reached_no_peer_is_no_retry(world: World) -> None:
    """No attempt of a message was made, so the peer's event tells of it alone."""
    shop, _ = world.wired("shop", "billing")
    world.wire.script = ["down"]
    told = heard(shop, "retried", "delivery_failed")
    shop.send("billing", 1)
    shop.run_until_idle()

    assert ["delivery_failed"] == [event.name for event in told]


def test_a_message_that_is_given_up_is_not_retried(world: World) -> None:
    """The last attempt makes a dead letter, and no promise of another attempt."""
    shop, _ = world.wired("shop", "billing", delivery_attempts=2)
    world.wire.always = "error"
    told = heard(shop, "retried", "dead_lettered")
    shop.send("billing", 1)
    for _ in range(3):
        shop.run_until_idle()
        world.clock.forward(61)

    assert ["retried", "dead_lettered"] == [event.name for event in told]


@pytest.mark.parametrize("ttl", [None, 30])
def test_a_refused_frame_names_its_session_and_type(world: World, ttl: int | None) -> None:
    """The inbox stores nothing of it, too large or too late, so the event says what it was."""
    shop = world.open("shop")
    billing = world.open("billing", max_body=100)
    shop.peers.add("billing", "wire:billing")
    world.wire.on_push = lambda _: world.clock.forward(31)
    told = heard(billing, "rejected")
    body = "x" if ttl else "x" * 101
    message = shop.session("s").send("billing", body, type="job", ttl=ttl)
    world.settle()

    assert [(message, "s", "job")] == facts(told)
