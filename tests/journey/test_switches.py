"""Pause, hooks and limits: what they stop, what they tell, and that they lose nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Context, Msg, Postbox, Tuning
from onceward.errors import OutboxLimit, Paused
from onceward.message.events import Event

if TYPE_CHECKING:
    from tests.journey.conftest import World

DAY = 86_400.0


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


class Done(Msg, type="done"):
    """Its answer."""

    n: int


def noting(ran: list[int], **options: Any) -> Agent:
    """Return an agent that notes its jobs and answers."""
    agent = Agent("billing")

    @agent.on(Job, **options)
    def work(job: Job) -> Done:
        ran.append(job.n)
        return Done(n=job.n)

    return agent


def test_a_frozen_sender_sends_and_pushes_nothing(world: World) -> None:
    """While paused no process accepts or sends anything; resumed, all that waited goes on."""
    ran: list[int] = []
    shop, _ = world.wired("shop", noting(ran))
    message = shop.send("billing", Job(n=1))
    shop.file.pause()
    with pytest.raises(Paused):
        shop.send("billing", Job(n=2))
    shop, _ = world.reopen("shop", "billing")
    world.wait(100)
    paused = shop.state(message), list(world.wire.pushed), shop.file.health().paused
    shop.file.resume()
    world.settle()

    assert ("pending", [], True) == paused
    assert ("acked", [1]) == (shop.state(message), ran)


def test_a_frozen_receiver_takes_in_and_handles_nothing(world: World) -> None:
    """
    A paused agent keeps what arrives and neither handles it nor hands it out.

    No attempt is spent.
    """
    ran: list[int] = []
    shop, billing = world.wired("shop", noting(ran, attempts=1))
    billing.file.pause()
    shop.send("billing", Job(n=1))
    for _ in range(5):
        world.wait(80)
    held = list(ran), billing.receive(), billing.file.stats()["inbox_pending"]
    billing.file.resume()
    world.settle()

    assert ([], None, 1) == held
    assert [1] == ran


def test_freezing_stops_a_push_after_the_parcel_under_way(world: World) -> None:
    """A queue of many parcels is not emptied after the switch was thrown."""
    shop, _ = world.wired("shop", noting([]), tuning=Tuning(parcel_max_messages=1))
    shop.send_many([("billing", Job(n=n)) for n in range(5)])
    world.wire.on_push = lambda _: shop.file.pause()
    shop.run_until_idle()
    shop.file.resume()

    assert 1 == len(world.wire.pushed)


def test_freezing_stops_a_worker_after_the_message_in_hand(world: World) -> None:
    """Messages that were claimed together are given back when the switch is thrown."""
    ran: list[int] = []
    agent = Agent("billing")

    @agent.on(Job)
    def work(job: Job) -> None:
        ran.append(job.n)
        world.elsewhere(billing.file.pause)

    shop, billing = world.wired("shop", agent)
    shop.send_many([("billing", Job(n=n)) for n in range(5)])
    shop.run_until_idle()
    world.claim_many(billing, 10)
    billing.run_until_idle()
    billing.file.resume()

    assert [0] == ran


def test_a_switch_thrown_inside_a_handler_costs_no_attempt(world: World) -> None:
    """
    A handler that cannot reply because of the switch is handled again after it.

    That holds though it may run only once.
    """
    ran: list[int] = []
    agent = Agent("billing")

    @agent.on(Job, attempts=1)
    def work(job: Job) -> Done:
        ran.append(job.n)
        if len(ran) == 1:
            world.elsewhere(billing.file.pause)
        return Done(n=job.n)

    shop, billing = world.wired("shop", agent)
    message = shop.send("billing", Job(n=1))
    world.settle()
    billing.file.resume()
    world.wait(61)

    assert [] == billing.dead_letters.list()
    assert "acked" == shop.state(message)


def test_the_environment_can_switch_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    ONCEWARD_DISABLED stops sending, pushing, handling and receiving in its process.

    Nothing is lost.
    """
    ran: list[int] = []
    shop, billing = world.wired("shop", noting(ran))
    message = shop.send("billing", Job(n=1))
    shop.run_until_idle()
    monkeypatch.setenv("ONCEWARD_DISABLED", "1")
    with pytest.raises(Paused):
        shop.send("billing", Job(n=2))
    world.wait(40)
    off = list(ran), billing.receive(), len(world.wire.pushed)
    monkeypatch.delenv("ONCEWARD_DISABLED")
    world.settle()

    assert ([], None, 1) == off
    assert "acked" == shop.state(message)


def test_hooks_hear_after_the_commit(world: World) -> None:
    """When a hook is told of an event, another connection can already see what it is about."""
    shop, billing = world.wired("shop", noting([]))
    seen: list[tuple[str, object]] = []

    def look(event: Event) -> None:
        box = shop if event.agent == "shop" else billing
        assert not box._db.writer.held
        counts = box._db.read(
            "SELECT (SELECT count(*) FROM _onceward_outbox),"
            " (SELECT count(*) FROM _onceward_inbox WHERE state <> 'pending')"
        )
        seen.append((f"{event.agent} {event.name}", counts[0]))

    shop.on(Event, look)
    billing.on(Event, look)
    with shop.begin() as tx:
        tx.send("billing", Job(n=1))
        inside = list(seen)
    with pytest.raises(ZeroDivisionError), shop.begin() as tx:
        tx.send("billing", Job(n=2))
        raise ZeroDivisionError
    world.settle()

    assert [] == inside
    assert ("shop enqueued", (1, 0)) == seen[0]
    assert {
        "shop enqueued",
        "billing received",
        "shop sent",
        "billing processed",
        "shop acked",
    } <= {name for name, _ in seen}
    assert 1 == [name for name, _ in seen].count("shop enqueued")


def test_a_raising_hook_harms_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A hook that raises is logged; its neighbours are told and the journey goes on."""
    shop, billing = world.wired("shop", noting([]))
    heard: list[str] = []

    def fail(_: Event) -> None:
        raise ValueError

    for box in (shop, billing):
        box.on(Event, fail)
        box.on(Event, lambda event: heard.append(event.name))
    message = shop.send("billing", Job(n=1))
    world.settle()

    assert "acked" == shop.state(message)
    assert {"enqueued", "sent", "received", "processed", "acked"} <= set(heard)
    assert caplog.records


def test_a_full_outbox_refuses_and_drains(world: World) -> None:
    """Beyond max_pending nothing is written; as soon as mail has left there is room again."""
    shop, _ = world.wired("shop", noting([]), max_pending=2)
    shop.send_many([("billing", Job(n=n)) for n in range(2)])
    with pytest.raises(OutboxLimit):
        shop.send("billing", Job(n=2))
    with pytest.raises(OutboxLimit):
        shop.send_many([("billing", Job(n=n)) for n in range(3)])
    pending = shop.file.stats()["pending"]
    world.settle()
    shop.send("billing", Job(n=3))

    assert 2 == pending


def test_a_full_inbox_is_busy_and_drains(world: World) -> None:
    """
    A receiver over its limit refuses the parcel whole.

    Nothing is lost, and the parcel is taken when there is room.
    """
    ran: list[int] = []
    billing = world.open(noting(ran), max_inbox=3)
    shop = world.open("shop", tuning=Tuning(parcel_max_messages=2), delivery_attempts=3)
    shop.peers.add("billing", "wire:billing")
    shop.send_many([("billing", Job(n=n)) for n in range(8)])
    shop.run_until_idle()
    held = billing.file.stats()["inbox_pending"]
    for _ in range(12):
        world.wait(61)

    assert 3 >= held
    assert list(range(8)) == ran


def test_a_parcel_larger_than_the_inbox_gets_through(world: World) -> None:
    """
    A queue that is longer than the receiver's inbox arrives bit by bit.

    That holds however large the sender's parcels are.
    """
    ran: list[int] = []
    world.open(noting(ran), max_inbox=3)
    shop = world.open("shop")
    shop.peers.add("billing", "wire:billing")
    shop.send_many([("billing", Job(n=n)) for n in range(8)])
    for _ in range(30):
        world.wait(61)

    assert list(range(8)) == ran


def test_the_receivers_limit_holds_for_every_writer(world: World) -> None:
    """A sender that writes into the file of a stopped agent keeps to that agent's limit."""
    world.open("billing", max_inbox=3)
    world.shut()
    shop = world.open("shop", tuning=Tuning(parcel_max_messages=1))
    shop.send_many([("billing", Job(n=n)) for n in range(8)])
    world.settle()
    billing = world.open("billing")

    assert 3 == billing.file.stats()["inbox_pending"]


def test_questions_are_answered_by_a_full_inbox(world: World) -> None:
    """A receiver without room still says what it has."""
    billing = world.open("billing", max_inbox=2)
    shop = world.open("shop")
    shop.peers.add("billing", "wire:billing")
    shop.send_many([("billing", Job(n=n)) for n in range(2)])
    for _ in range(3):
        world.wait(80)
    [peer] = shop.peers.list()

    assert (0, None) == (peer.failures, peer.last_error)
    assert 2 == billing.file.stats()["inbox_pending"]


def test_tables_are_pruned(world: World) -> None:
    """After the retention nothing is left of mail that ended well; totals stay."""
    shop, billing = world.wired("shop", noting([]))
    for n in range(5):
        shop.send("billing", Job(n=n))
    world.settle()
    for message in shop.receive_each(timeout=0):
        message.ack()
    world.settle()
    world.clock.forward(8 * DAY)
    for box in (shop, billing):
        box.file.run_maintenance()

    assert {} == left(shop) | left(billing)
    assert 5 == shop.file.stats()["acked"]


def left(box: Postbox) -> dict[str, int]:
    """Return how many rows tables still have, those that have some."""
    names = (
        "outbox",
        "inbox",
        "processed_messages",
        "receipts",
        "lanes",
        "blocked_lanes",
        "pending_replies",
    )
    counts = {
        f"{box.agent} {name}": box._db.read(f"SELECT count(*) FROM _onceward_{name}")[0][0]
        for name in names
    }
    return {name: count for name, count in counts.items() if count}


def test_mail_that_failed_at_the_peer_is_pruned(world: World) -> None:
    """What the peer gave up, and keeps, is forgotten here after the retention."""
    shop, _ = world.wired("shop", noting([]))
    world.audited = False
    shop.send("billing", {"n": "x"}, type="job")
    world.settle()
    world.clock.forward(8 * DAY)
    shop.file.run_maintenance()

    assert {} == left(shop)
    assert 1 == shop.file.stats()["failed"]


def test_a_dead_letter_may_outlive_its_mark(world: World) -> None:
    """A file whose marks were pruned while a dead letter is kept is in order."""
    shop, billing = world.wired("shop", noting([]))
    world.audited = False
    shop.send("billing", {"n": "x"}, type="job")
    world.settle()
    world.clock.forward(8 * DAY)
    billing.file.run_maintenance()

    assert 1 == len(billing.dead_letters.list())
    assert [] == billing.file.check()


def test_totals_and_rows_agree_in_the_middle(world: World) -> None:
    """At every station stats() tells what a count of the rows tells."""
    shop, billing = world.wired("shop", noting([]))
    shop.send_many([("billing", Job(n=n)) for n in range(4)])
    shop.send("billing", Job(n=9), delay=60)
    wanted = [shop.file.stats() | {"station": 0}]
    shop.run_until_idle()
    wanted.append(shop.file.stats() | {"station": 1})
    message = billing.receive()
    assert message is not None
    held = billing.file.stats()
    message.ack()
    world.settle()
    wanted.append(shop.file.stats() | {"station": 2})
    names = ("enqueued", "pending", "sending", "sent", "acked")

    assert [(5, 5, 0, 0, 0), (5, 1, 0, 4, 0), (5, 1, 0, 0, 4)] == [
        tuple(told[name] for name in names) for told in wanted
    ]
    assert (3, 1) == (held["inbox_pending"], held["inbox_processing"])


def test_a_second_opener_gets_its_settings(world: World) -> None:
    """Who opens a file that this process holds already still gets the limit it asks for."""
    world.open("billing")
    shop = world.open("shop")
    shop.send("billing", Job(n=1))
    shop.run_until_idle()
    with Postbox(world.path("billing"), agent="billing", start=False, max_pending=1) as box:
        box.send("shop", Job(n=1))
        with pytest.raises(OutboxLimit):
            box.send("shop", Job(n=2))


def test_context_names(world: World) -> None:
    """A handler knows which message, attempt and session it works for."""
    seen: list[tuple[str, int, str]] = []
    agent = Agent("billing")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        seen.append((ctx.message.id, ctx.message.attempt + job.n, ctx.session))

    shop, _ = world.wired("shop", agent)
    message = shop.session("run-42").send("billing", Job(n=0))
    world.settle()

    assert [(message, 1, "run-42")] == seen
