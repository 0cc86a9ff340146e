"""Messages of pools are judged under the name of the member that has them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.mishaps import handling, post
from tests.fleet.world import World

from onceward.fleet import Report, Rules, reconcile


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a world in which two messages to a pool wait for a member."""
    with World(tmp_path / "agents") as made:
        near = made.open("near")
        near.pools.add("pool", "far-1")
        near.pools.remove("pool", "far-1")
        post(near, "pool", 2)
        made.run(near)
        yield made


def _judged(world: World) -> Report:
    """Judge the files an hour later, when nothing is within the grace."""
    world.rest()
    return reconcile(world.folder, rules=Rules(now=world.clock.now() + 3_600_000))


def _handled(world: World, name: str) -> None:
    """Let a member of the pool handle what waits."""
    near, far = world.open("near"), world.open(handling(name))
    near.pools.add("pool", name)
    world.turns(near, far, times=2)


def test_messages_wait_for_a_member(world: World) -> None:
    """They are told from those whose recipient cannot be reached; then they are those of it."""
    waiting = _judged(world)
    _handled(world, "far-1")

    assert {"waiting": 2} == dict(waiting.verdicts)
    assert [("pool", "member", 2)] == [
        (each["recipient"], each["waits_for"], each["messages"]) for each in waiting.waits
    ]
    assert {"delivered_once": 2} == dict(_judged(world).verdicts)


def test_an_earlier_copy_of_the_sender_counts_no_message_twice(
    world: World, tmp_path: Path
) -> None:
    """In the copy they still wait, under the name of the pool."""
    copy = world.keep("near")
    _handled(world, "far-1")
    world.rest()
    shutil.move(copy, tmp_path / "agents" / "near-copy.db")

    assert {"delivered_once": 2} == dict(_judged(world).verdicts)


@pytest.mark.broken("the messages are released after a restore, and given to another member")
def test_two_members_that_handled_one_message_processed_it_twice(world: World) -> None:
    """The sender's file, which was restored, knows one of them."""
    copy = world.keep("near")
    _handled(world, "far-1")
    world.restore("near", copy)
    one = _judged(world)
    near = world.open("near")
    near.pools.remove("pool", "far-1")
    near.pools.release("pool")
    _handled(world, "far-2")

    assert {"delivered_once": 2} == dict(one.verdicts)  # the restored file says that they wait
    assert {"double_processed": 2} == dict(_judged(world).verdicts)
