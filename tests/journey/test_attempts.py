"""Attempts: each handing over counts as one, and presets end at the time that they state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, RetryPolicy, Settings, Tuning
from onceward.message.parcel import Receipt
from onceward.transports.function import FunctionTransport

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward import Postbox
    from onceward.transports import Frame


def taker(name: str = "billing") -> Agent:
    """Return an agent that handles all messages."""
    agent = Agent(name)
    agent.on("*")(lambda _: None)
    return agent


def attempts(box: Postbox, message_id: str) -> list[int]:
    """Return the attempts of a message in the outbox and in the dead letters."""
    where = "WHERE id = ?"
    sql = f"SELECT attempts FROM onceward_outbox {where} UNION ALL "
    sql += f"SELECT attempts FROM onceward_dead_letters {where}"
    return [n for (n,) in box.query(sql, (message_id, message_id))]


def until_dead(world: World, box: Postbox, message_id: str) -> float:
    """Return the seconds after which a message is a dead letter; time passes by half seconds."""
    begun = world.clock.now()
    for _ in range(2000):
        box.run_until_idle()
        if box.state(message_id) == "dead":
            break
        world.clock.forward(0.5)
    return (world.clock.now() - begun) / 1000


@pytest.mark.parametrize("script", [[], ["ok", "error", "lost", "down"]])
def test_a_message_that_the_peer_holds_is_no_dead_letter(world: World, script: list[str]) -> None:
    """Without re-attempts the sender still asks for the outcome of a message that was stored."""
    shop = world.open("shop", delivery_attempts=1)
    held = world.open("billing")
    shop.peers.add("billing", "wire:billing")
    world.wire.of, world.wire.script = "shop", script
    message = shop.send("billing", 1)
    for _ in range(12):
        shop.run_until_idle()
        world.clock.forward(61)
    held.close()
    held = world.open(taker())
    held.peers.add("shop", "wire:shop")
    for _ in range(12):
        world.wait(61)

    assert ("acked", []) == (shop.state(message), shop.dead_letters.list())


def test_a_message_that_is_handled_at_once_was_tried_once(world: World) -> None:
    """The push that stored it is the one attempt, whether an answer or a receipt settled it."""
    shop, _ = world.wired("shop", taker())
    message = shop.send("billing", 1)
    shop.run_until_idle()
    stored = attempts(shop, message)
    world.settle()

    assert ([1], [1], "acked") == (stored, attempts(shop, message), shop.state(message))


def test_each_push_counts(world: World) -> None:
    """Failed pushes, the one that stored the message and each question after that are attempts."""
    shop, billing = world.wired("shop", "billing")
    world.wire.script = ["error", "error"]
    message = shop.send("billing", 1)
    for _ in range(6):
        shop.run_until_idle()
        world.clock.forward(61)
    received = billing.receive()
    assert received is not None
    received.ack()
    world.settle()

    assert "acked" == shop.state(message)
    assert [world.wire.ids.count(message)] == attempts(shop, message)


def test_a_push_that_reached_no_peer_is_no_attempt(world: World) -> None:
    """Nothing was handed over, so nothing is counted."""
    shop, _ = world.wired("shop", taker())
    world.wire.script = ["down", "down"]
    message = shop.send("billing", 1)
    for _ in range(4):
        world.wait(61)

    assert ("acked", [1]) == (shop.state(message), attempts(shop, message))


def test_a_refused_parcel_was_tried_once(world: World) -> None:
    """A dead letter counts the push that was refused."""
    shop, _ = world.wired("shop", taker())
    world.wire.script = ["refuse"]
    message = shop.send("billing", 1)
    world.settle()

    assert ("dead", [1]) == (shop.state(message), attempts(shop, message))


ANSWERS: list[tuple[Any, str, int]] = [
    (True, "acked", 1),
    (Receipt("", "rejected", "invalid: no"), "dead", 1),
    (False, "dead", 3),
    (ValueError("no"), "dead", 3),
]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("invalid: no such field", ("invalid", "no such field")),
        ("not today: come again", ("rejected", "not today: come again")),
        (None, ("rejected", "")),
    ],
)
def test_a_reason_of_the_peers_own_is_kept_as_details(
    world: World, said: str | None, expected: tuple[str, str]
) -> None:
    """A refusal makes a dead letter with a known reason, and the words of the peer as details."""

    def refuse(frames: list[Frame]) -> list[Receipt]:
        return [Receipt(frame.id, "rejected", said) for frame in frames]

    shop = world.open("shop", transports={"function": FunctionTransport(refuse)})
    shop.peers.add("webhook", "function:x")
    shop.send("webhook", 1)
    world.settle()

    assert [expected] == [(dead.reason, dead.last_error) for dead in shop.dead_letters.list()]


@pytest.mark.parametrize(("answer", "state", "expected"), ANSWERS)
def test_each_call_of_a_function_counts(
    world: World, answer: Any, state: str, expected: int
) -> None:
    """A message counts as many attempts as the function was called with it."""
    calls: list[str] = []

    def send(frames: list[Frame]) -> Any:
        calls.extend(frame.id for frame in frames)
        if isinstance(answer, Exception):
            raise answer
        said = answer
        if isinstance(answer, Receipt):
            said = answer._replace(id=frames[0].id)
        return [said]

    shop = world.open("shop", transports={"function": FunctionTransport(send)}, delivery_attempts=3)
    shop.peers.add("webhook", "function:x")
    message = shop.send("webhook", 1)
    for _ in range(5):
        world.wait(61)

    assert (state, [expected]) == (shop.state(message), attempts(shop, message))
    assert expected == calls.count(message)


def test_each_call_of_a_handler_counts(world: World) -> None:
    """A message in the inbox has as many attempts as handlers were called with it, at its end."""
    calls: list[int] = []
    agent = Agent("billing")

    @agent.on("*")
    def work(body: int) -> None:
        calls.append(body)
        if calls.count(body) < body:
            raise ValueError("again")

    shop, billing = world.wired("shop", agent)
    once, thrice = (shop.session(name).send("billing", n) for name, n in (("a", 1), ("b", 3)))
    for _ in range(4):
        world.wait(61)
    counted = dict(billing.query("SELECT id, attempts FROM onceward_inbox"))

    assert {once: 1, thrice: 3} == counted
    assert [1, 3] == [calls.count(n) for n in (1, 3)]


@pytest.mark.parametrize(
    ("type_", "body", "expected"), [("unheard of", 1, 0), ("job", "no number", 0), ("job", 2, 2)]
)
def test_a_dead_letter_counts_the_calls_of_its_handler(
    world: World, type_: str, body: Any, expected: int
) -> None:
    """A message that no handler has seen has no attempt, one that failed to the end has all."""
    agent = Agent("billing")

    @agent.on("job", attempts=2)
    def work(body: int) -> None:
        raise ValueError(body)

    shop, billing = world.wired("shop", agent)
    message = shop.send("billing", body, type=type_)
    for _ in range(4):
        world.wait(61)
    [letter] = billing.dead_letters.list()

    assert (message, expected) == (letter.id, letter.attempts)


@pytest.mark.parametrize("failure", ["error", "down"])
def test_five_minutes_are_five_minutes(world: World, failure: str) -> None:
    """The preset gives up after 303 s, whether the transport raises or finds no peer."""
    shop = world.open("shop", settings=Settings.five_minutes())
    world.open("billing")
    shop.peers.add("billing", "wire:billing")
    world.wire.always = failure
    message = shop.send("billing", 1)

    assert 303.0 == until_dead(world, shop, message)
    assert [11] == attempts(shop, message)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [(RetryPolicy.ten_retries(), 303.0), (RetryPolicy.three_retries(ack_timeout=5), 22.0)],
)
def test_presets_of_a_policy_end_when_they_say(
    world: World, policy: RetryPolicy, seconds: float
) -> None:
    """The pauses of a preset are the pauses of its peer: no breaker makes them longer."""
    shop, _ = world.wired(
        "shop", "billing", delivery_retry=policy, tuning=Tuning(breaker_failures=2)
    )
    world.wire.always = "error"
    message = shop.send("billing", 1)

    assert seconds == until_dead(world, shop, message)
