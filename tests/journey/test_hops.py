"""Hops: a chain of messages that cause each other ends at ``max_hops``, in a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceward import Agent, Context, Reject, Run, Settings
from onceward.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.journey.conftest import World


def following(body: int) -> int:
    """Return the next number; end a loop that goes on for too long, as a failing test ends."""
    if body > 50:
        reason = "the loop goes on"
        raise Reject(reason)
    return body + 1


def by_reply(agent: Agent, other: str) -> None:
    """Answer each message through the context."""
    del other

    @agent.on("*")
    def answer(body: int, ctx: Context) -> None:
        ctx.reply(following(body))


def by_send(agent: Agent, other: str) -> None:
    """Send the next message through the context."""

    @agent.on("*")
    def send(body: int, ctx: Context) -> None:
        ctx.send(other, following(body))


def by_transaction(agent: Agent, other: str) -> None:
    """Send the next message through the handler's transaction."""

    @agent.on("*")
    def send(body: int, ctx: Context) -> None:
        ctx.tx.send(other, following(body))


def by_run(agent: Agent, other: str) -> None:
    """Send the next message from a run."""

    @agent.runs(debounce=0)
    def send(run: Run) -> None:
        run.send(other, following(run.message.body))


def by_run_reply(agent: Agent, other: str) -> None:
    """Answer from a run."""
    del other

    @agent.runs(debounce=0)
    def send(run: Run) -> None:
        run.reply(following(run.message.body))


WAYS = [by_reply, by_send, by_transaction, by_run, by_run_reply]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_loop_ends_in_a_dead_letter(world: World, way: Callable[[Agent, str], None]) -> None:
    """Two agents that answer each other for ever stop after ``max_hops`` messages."""
    left, right = Agent("left"), Agent("right")
    way(left, "right")
    way(right, "left")
    boxes = world.open(left, max_hops=6), world.open(right, max_hops=6)
    boxes[1].send("left", 0)
    for _ in range(10):
        world.wait(1)
    letters = [letter for box in boxes for letter in box.dead_letters.list()]
    handled = sum(box.file.stats()["processed"] for box in boxes)

    assert ["hops_exceeded"] == [letter.reason for letter in letters]
    assert "7 messages led to it; the limit is 6" in str(letters[0].last_error)
    assert 7 == handled  # the first message has no hop behind it


def test_the_default_is_64() -> None:
    """A chain of 64 messages is long enough for work, and short enough for a mistake."""
    assert 64 == Settings().max_hops


def test_a_message_from_outside_has_no_hops(world: World) -> None:
    """A send outside of a handler begins a chain; one that goes on with a chain may say so."""
    shop, billing = world.open("shop"), world.open("billing", max_hops=3)
    begins = shop.send("billing", 1)
    goes_on = shop.send("billing", 2, hops=3)
    too_far = shop.send("billing", 3, hops=4)
    world.settle()
    hops = [past.frame.hops for past in reversed(billing.history().messages)]

    assert ([0, 3], "dead") == (hops, shop.state(too_far))
    assert {"sent"} == {shop.state(begins), shop.state(goes_on)}


@pytest.mark.parametrize("hops", [-1, "3", True, 2**31])
def test_hops_are_a_number(world: World, hops: int) -> None:
    """A wrong number of hops is refused before anything is written."""
    shop = world.open("shop", hold_unknown=True)

    with pytest.raises(InvalidArgument, match="hops"):
        shop.send("billing", 1, hops=hops)
