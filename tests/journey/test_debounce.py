"""The last message of a key wins after quiet, and others are dropped for a time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Msg, Postbox, Retry
from onceward.errors import InvalidArgument
from onceward.testing import Controls

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward.message.handler_options import HandlerOptions

ENDED = "SELECT state, reason FROM onceward_inbox WHERE state <> 'pending' ORDER BY seq"
LANES = "SELECT count(*) FROM _onceward_lanes"


class Input(Msg, type="input"):
    """A text that a user has typed."""

    user: str
    n: int


class Other(Msg, type="other"):
    """A message without such options."""

    n: int


def noting(**options: Any) -> tuple[Agent, list[str]]:
    """Return an agent that notes users and numbers of inputs (with options), and of others."""
    agent, called = Agent("bob"), list[str]()
    agent.on(Input, **options)(lambda given: called.append(f"{given.user}{given.n}"))
    agent.on(Other)(lambda other: called.append(f"-{other.n}"))
    return agent, called


# -- debounce -----------------------------------------------------------------------------------


def test_the_last_message_is_handled_after_quiet(world: World) -> None:
    """Each message begins the time again; earlier ones are dropped, and their sender is told."""
    agent, called = noting(debounce=30)
    box = world.open(agent)
    first = box.send("bob", Input(user="a", n=1))
    world.settle()
    world.wait(20)
    box.send("bob", Input(user="a", n=2))
    world.settle()
    world.wait(20)
    before = [*called]
    world.wait(10)

    assert ([], ["a2"]) == (before, called)
    assert ["dropped", "processed"] == [state for state, _ in box.query(ENDED)]
    assert "dropped" == box.state(first)


def test_each_key_has_its_own_quiet_in_one_lane(world: World) -> None:
    """Messages of one session wait for their own keys only, and plain messages do not wait."""
    agent, called = noting(debounce=30, key="body.user")
    box = world.open(agent)
    for user, n in ("a", 1), ("b", 2), ("a", 3):
        box.send("bob", Input(user=user, n=n))
    box.send("bob", Other(n=4))
    world.settle()
    at_once = [*called]
    world.wait(20)
    box.send("bob", Input(user="a", n=5))
    world.settle()
    world.wait(10)
    then = [*called]
    world.wait(20)

    assert (["-4"], ["-4", "b2"], ["-4", "b2", "a5"]) == (at_once, then, called)


def test_many_messages_leave_one_of_each_key(world: World) -> None:
    """A thousand inputs of one session are one call, and no lane stays after them."""
    agent, called = noting(debounce=5, key="body.user")
    box = world.open(agent)
    with box.begin() as tx:
        for n in range(1000):
            tx.send("bob", Input(user="ab"[n % 2], n=n))
    world.settle()
    world.wait(5)
    world.clock.forward(86_400)
    box.file.run_maintenance()

    assert ["a998", "b999"] == called
    assert {"dropped": 998, "processed": 2} == Counter(state for state, _ in box.query(ENDED))


def test_a_message_that_is_old_enough_is_handled_at_once(world: World) -> None:
    """Messages that came while no worker ran are one call when it starts."""
    agent, called = noting(debounce=30)
    with Postbox(
        world.path("bob"), agent="bob", start=False, testing=Controls(clock=world.clock)
    ) as box:
        for n in (1, 2, 3):
            box.send("bob", Input(user="a", n=n))
        box.run_until_idle()
    world.clock.forward(60)
    world.open(agent)
    world.settle()

    assert ["a3"] == called


def test_a_restart_keeps_what_waits_for_quiet(world: World) -> None:
    """The date is in the file: the next process calls the handler in time."""
    agent, called = noting(debounce=30)
    box = world.open(agent)
    box.send("bob", Input(user="a", n=1))
    world.settle()
    world.wait(20)
    world.reopen("bob")
    world.wait(9)
    before = [*called]
    world.wait(1)

    assert ([], ["a1"]) == (before, called)


def test_a_later_message_takes_the_place_of_one_that_is_retried(world: World) -> None:
    """After a failed attempt, the next input replaces the failed one."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Input, debounce=10)
    def handle(given: Input) -> None:
        called.append(given.n)
        if given.n == 1:
            raise Retry(after=60)

    box = world.open(agent)
    box.send("bob", Input(user="a", n=1))
    world.settle()
    world.wait(10)
    box.send("bob", Input(user="a", n=2))
    world.settle()
    world.wait(10)
    world.wait(60)

    assert [1, 2] == called


def test_debounce_and_rate_hold_together(world: World) -> None:
    """What is quiet then waits for the rate of its key."""
    agent, called = noting(debounce=1, rate="1/m", key="body.user")
    box = world.open(agent)
    for n in (1, 2):
        box.send("bob", Input(user="a", n=n))
        world.settle()
        world.wait(1)
    before = [*called]
    world.wait(59)

    assert (["a1"], ["a1", "a2"]) == (before, called)


# -- throttle -----------------------------------------------------------------------------------


def test_a_throttle_handles_one_message_of_a_key_in_its_time(world: World) -> None:
    """Others of the key are dropped with a reason; other keys are handled."""
    agent, called = noting(throttle=60, key="body.user")
    box = world.open(agent)
    for user, n in ("a", 1), ("a", 2), ("b", 3):
        box.send("bob", Input(user=user, n=n))
    world.settle()
    world.wait(59)
    box.send("bob", Input(user="a", n=4))
    world.settle()
    world.wait(1)
    box.send("bob", Input(user="a", n=5))
    world.settle()

    assert ["a1", "b3", "a5"] == called
    reasons = [reason or "" for state, reason in box.query(ENDED) if state == "dropped"]
    assert [True, True] == [each.startswith("throttled") for each in reasons]


def test_a_throttle_without_a_key_is_that_of_the_handler(world: World) -> None:
    """Two processes share it, and a message that failed may be handled again."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Input, throttle=60)
    def handle(given: Input) -> None:
        called.append(given.n)
        if called == [1]:
            raise Retry(after=1)

    box = world.open(agent)
    box.send("bob", Input(user="a", n=1))
    world.settle()
    box.send("bob", Input(user="b", n=2), ordering_key="b")
    world.settle()
    world.wait(1)

    assert [1, 1] == called


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"debounce": 0}, "debounce=0"),
        ({"debounce": "soon"}, "debounce"),
        ({"throttle": -1}, "throttle"),
        ({"throttle": 1, "unique_for": 1}, "throttle and unique_for"),
        ({"throttle": 1, "debounce": 1}, "throttle keeps the first"),
        ({"debounce": 1, "batch": 2}, "no debounce"),
    ],
)
def test_a_wrong_time_is_refused_where_it_is_written(options: HandlerOptions, said: str) -> None:
    """The error names the option."""
    with pytest.raises(InvalidArgument, match=said):
        Agent("bob").on(Input, **options)(lambda _: None)
