"""Time to live and delay, at each station of the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward import Agent, Msg, RetryPolicy, Tuning
from onceward.events import DeadLettered

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


def noting(ran: list[int], name: str = "billing") -> Agent:
    """Return an agent that notes the numbers of its jobs."""
    agent = Agent(name)

    @agent.on(Job)
    def work(job: Job) -> None:
        ran.append(job.n)

    return agent


def test_mail_expires_in_the_outbox(world: World) -> None:
    """A message not pushed in time is a dead letter with that reason, and hooks hear of it."""
    ran: list[int] = []
    shop, _ = world.wired("shop", noting(ran))
    heard: list[str] = []
    shop.on(DeadLettered, lambda event: heard.append(event.name))
    message = shop.send("billing", Job(n=1), ttl=10)
    world.wait(10)

    assert ("dead", ["dead_lettered"], []) == (shop.state(message), heard, ran)
    assert ["expired"] == [letter.reason for letter in shop.dead_letters.list()]


def test_mail_expires_behind_an_unreachable_peer(world: World) -> None:
    """Expiry does not wait for the peer to be tried again."""
    ran: list[int] = []
    shop, _ = world.wired("shop", noting(ran))
    world.wire.always = "down"
    old = shop.send("billing", Job(n=1))
    for wait in (0, 1, 2, 4, 8):
        world.wait(wait)
    message = shop.send("billing", Job(n=2), ttl=3)
    world.wait(3)

    assert ("dead", "sending") == (shop.state(message), shop.state(old))


def test_totals_hold_while_an_expired_message_is_in_flight(world: World) -> None:
    """The numbers agree with the rows when one message of the parcel in flight has been buried."""
    shop, _ = world.wired("shop", noting([]))
    world.wire.always = "down"
    shop.send("billing", Job(n=1), ttl=3)
    shop.send("billing", Job(n=2))
    for wait in (0, 1, 2):
        world.wait(wait)

    assert {"pending": 1, "sending": 1} == {
        name: shop.file.stats()[name] for name in ("pending", "sending")
    }


def test_mail_that_expires_on_the_way_is_refused(world: World) -> None:
    """A frame that is too late at the door is never kept; the sender has it as a dead letter."""
    ran: list[int] = []
    shop, billing = world.wired("shop", noting(ran))
    message = shop.send("billing", Job(n=1), ttl=10)
    world.wire.on_push = lambda _: world.clock.forward(11)
    shop.run_until_idle()

    assert ("dead", []) == (shop.state(message), ran)
    assert ["expired"] == [letter.reason for letter in shop.dead_letters.list()]
    assert 1 == billing.file.stats()["refused"]


def test_mail_expires_in_the_inbox(world: World) -> None:
    """A message stored in time but not handled in time ends expired, and its sender is told so."""
    ran: list[int] = []
    shop, billing = world.wired("shop", noting(ran))
    message = shop.send("billing", Job(n=1), ttl=10)
    shop.run_until_idle()
    world.wait(11)

    assert ([], "failed", 1) == (ran, shop.state(message), billing.file.stats()["expired"])


def test_the_janitor_expires_what_no_reader_took(world: World) -> None:
    """Without a claim expired messages end all the same, and what waited behind them is next."""
    shop, billing = world.open("shop"), world.open("billing")
    shop.send("billing", Job(n=1), ttl=10)
    shop.send("billing", Job(n=2))
    shop.run_until_idle()
    world.clock.forward(11)
    billing.file.run_maintenance()
    message = billing.receive(Job)

    assert message is not None
    assert (2, 1) == (message.body.n, billing.file.stats()["expired"])
    message.ack()


def test_a_message_that_was_processed_in_time_is_not_reported_expired(world: World) -> None:
    """When the outcome is late, the sender asks before it calls a stored message expired."""
    ran: list[int] = []
    shop, billing = world.wired("shop", noting(ran))
    message = shop.send("billing", Job(n=1), ttl=10)
    shop.run_until_idle()
    world.wire.script = ["down"]
    billing.run_until_idle()
    world.clock.forward(38)
    shop.run_until_idle()

    assert ([1], "acked") == (ran, shop.state(message))


def test_delayed_mail_leaves_when_it_is_due(world: World) -> None:
    """A delayed message stays where it is until then, also through a restart, while others pass."""
    ran: list[int] = []
    shop, _ = world.wired("shop", noting(ran))
    shop.send("billing", Job(n=1), delay=60)
    shop.send("billing", Job(n=2))
    world.settle()
    world.wait(59.999)
    before = list(ran)
    world.reopen()
    world.wait(0.001)

    assert ([2], [2, 1]) == (before, ran)


def test_delayed_mail_expires_before_it_is_due(world: World) -> None:
    """A time to live counts from sending, not from the end of the delay."""
    ran: list[int] = []
    shop, _ = world.wired("shop", noting(ran))
    message = shop.send("billing", Job(n=1), delay=60, ttl=30)
    world.wait(31)

    assert ("dead", []) == (shop.state(message), ran)


def test_a_clock_that_runs_backwards_moves_no_deadline(world: World) -> None:
    """A wall clock set back does not revive what was expired, nor hold back what was due."""
    ran: list[int] = []
    shop, _ = world.wired("shop", noting(ran))
    world.clock.forward(100)
    world.settle()
    shop.send("billing", Job(n=1))
    shop.state("x")
    world.clock.forward(-90)
    shop, _ = world.reopen("shop", "billing")
    world.settle()
    shop.send("billing", Job(n=2), delay=1)
    world.wait(1)
    world.wait(100)

    assert [1, 2] == ran


def test_a_policy_of_ones_own_goes_before_the_settings(world: World) -> None:
    """A postbox with a preset pauses and gives up as the preset says, whatever its settings say."""
    policy = RetryPolicy.three_retries()
    shop = world.open(
        "shop",
        hold_unknown=True,
        delivery_retry=policy,
        count_unreachable_attempts=True,
        tuning=Tuning(breaker_failures=100),
    )
    shop.peers.add("billing", "wire:billing")
    world.wire.always = "down"
    start = world.clock.now()
    message = shop.send("billing", {"n": 1})
    pushes: list[int] = []
    world.wire.on_push = lambda _: pushes.append((world.clock.now() - start) // 1000)
    for _ in range(12):
        world.settle()
        world.clock.forward(1)

    assert ([0, 1, 3, 7], "dead") == (pushes, shop.state(message))
    assert ["attempts_spent"] == [letter.reason for letter in shop.dead_letters.list()]
