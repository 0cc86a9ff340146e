"""A message to a pool goes to one of its members, and the file of its sender decides which one."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from onceward import Agent
from onceward.errors import AnswerTimeout, Conflict, InvalidArgument, UnknownRecipient
from onceward.message.names import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward import Postbox


class Worker:
    """A member of the pool ``thumbs``, which notes what it has handled."""

    def __init__(self, name: str, *, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.done: list[int] = []
        self.agent = Agent(name, serves="thumbs")
        self.agent.on("job")(self.job)
        self.fails = fails

    def job(self, body: int) -> int:
        """Note a body; return twice as much."""
        if self.fails(body):
            raise ValueError(body)
        self.done.append(body)
        return 2 * body


def rows(box: Postbox) -> list[tuple[Any, ...]]:
    """Return where the messages of an outbox are, and in which state."""
    return [tuple(each) for each in box.query("SELECT recipient, pool, state FROM onceward_outbox")]


def pool_of(world: World, *names: str, **settings: Any) -> tuple[Postbox, list[Worker]]:
    """Open members of the pool, and an agent that sends to it."""
    workers = [Worker(name) for name in names]
    for each in workers:
        world.open(each.agent, **settings)
    return world.open("shop", **settings), workers


def test_members_share_the_messages_of_a_pool(world: World) -> None:
    """Each message is handled once, by the member that has the fewest then."""
    shop, (one, two) = pool_of(world, "t1", "t2")
    for body in range(8):
        shop.send("thumbs", body, type="job")
    world.settle()

    assert list(range(8)) == sorted(one.done + two.done)
    assert [4, 4] == [len(one.done), len(two.done)]
    assert {("t1", "thumbs", "acked"), ("t2", "thumbs", "acked")} == set(rows(shop))


def test_a_name_that_no_agent_serves_is_unknown(world: World) -> None:
    """Sending to it fails at once, as to any other unknown agent."""
    shop, _ = pool_of(world, "t1")

    with pytest.raises(UnknownRecipient, match="thumb'"):
        shop.send("thumb", 1, type="job")


def test_a_member_gets_no_more_than_its_credits(world: World) -> None:
    """The others wait at the sender, and the list tells how many."""
    shop, _ = pool_of(world, "t1", workers=1)
    for body in range(5):
        shop.send("thumbs", body, type="job")
    shop.run_until_idle()
    [pool] = shop.pools.list()

    assert ("thumbs", 3, 2, 0) == (pool.pool, pool.waiting, pool.in_flight, pool.in_doubt)
    assert [("t1", 2, 2)] == [(each.agent, each.credits, each.in_flight) for each in pool.members]
    assert [("t1", "thumbs", "sent")] * 2 + [("thumbs", None, "pending")] * 3 == rows(shop)


def test_a_conversation_stays_with_one_member(world: World) -> None:
    """While a member has some of its messages, the others wait for that member, in order."""
    shop, workers = pool_of(world, "t1", "t2", workers=1)
    for body in range(10):
        shop.send("thumbs", body, type="job", ordering_key="k")
    world.settle()
    both = [each.done for each in workers]

    assert [[], list(range(10))] == sorted(both)


def test_a_conversation_changes_its_member_once_it_has_no_work(world: World) -> None:
    """The next message goes to the member with the fewest."""
    shop, (one, two) = pool_of(world, "t1", "t2")
    shop.send("thumbs", 1, type="job", ordering_key="k")
    world.settle()
    shop.send("thumbs", 2, type="job")
    shop.run_until_idle()
    shop.send("thumbs", 3, type="job", ordering_key="k")
    shop.run_until_idle()
    world.settle()

    assert [[1, 2], [3]] == [one.done, two.done]


def test_the_sender_gets_results_and_replies(world: World) -> None:
    """They come from the member that has handled the message."""
    shop, _ = pool_of(world, "t1", "t2")
    sent = shop.send("thumbs", 4, type="job")
    ticket = shop.request("thumbs", 5, type="job")
    world.settle()

    assert (8, 10) == (shop.result(sent, reply=int), shop.result(ticket, reply=int, timeout=0))


def test_a_key_belongs_to_the_pool(world: World) -> None:
    """The same key gives the same message, also once a member has it; another body conflicts."""
    shop, (one, two) = pool_of(world, "t1", "t2")
    first = shop.send("thumbs", 1, type="job", key="k")
    world.settle()

    assert first == shop.send("thumbs", 1, type="job", key="k")
    with pytest.raises(Conflict):
        shop.send("thumbs", 2, type="job", key="k")
    with pytest.raises(Conflict):
        shop.send("thumbs", 1, type="job", key="k", message_id="another")
    world.settle()
    assert [1] == one.done + two.done


def test_a_message_from_sql_is_assigned(world: World) -> None:
    """Its key belongs to the pool, too."""
    shop, (one, two) = pool_of(world, "t1", "t2")
    shop.send("thumbs", 0, type="job")
    with shop.begin() as tx:
        tx.execute(
            "INSERT INTO onceward_send (recipient, type, body, key)"
            " VALUES ('thumbs', 'job', 3, 'k')"
        )
    world.settle()

    assert [0, 3] == sorted(one.done + two.done)


def test_waiting_messages_are_cancelled_and_expire(world: World) -> None:
    """Without a member that works, they wait; their time to live runs."""
    shop, (one,) = pool_of(world, "t1")
    shop.send("thumbs", 0, type="job")
    world.settle()
    world.boxes.pop("t1").close()
    gone = shop.send("thumbs", 1, type="job")
    late = shop.send("thumbs", 2, type="job", ttl=5)
    left = shop.send("thumbs", 3, type="job")
    shop.run_until_idle()
    cancelled = shop.cancel(gone)
    world.wait(6)
    states = [shop.state(each) for each in (gone, late, left)]
    [dead] = shop.dead_letters.list()
    world.open(one.agent)
    world.settle()

    assert (True, ["cancelled", "dead", "pending"]) == (bool(cancelled), states)
    assert ("expired", "thumbs") == (dead.reason, dead.recipient)
    assert [0, 3] == one.done


def test_an_urgent_message_is_assigned_first(world: World) -> None:
    """Priorities hold among the messages that wait."""
    shop, (one,) = pool_of(world, "t1", workers=1)
    for body in range(4):
        shop.send("thumbs", body, type="job")
    shop.send("thumbs", 9, type="job", priority="urgent")
    world.settle()

    assert 9 == one.done[0]


def test_a_member_that_leaves_gets_no_more(world: World) -> None:
    """What it has accepted it still handles; ``drain`` tells whether nothing is left."""
    shop, (one, two) = pool_of(world, "t1", "t2")
    shop.send("thumbs", 0, type="job")
    shop.run_until_idle()
    first = world.boxes["t1"]
    before = first.pools.drain("thumbs", timeout=0)
    shop.send("thumbs", 1, type="job")
    world.settle()

    assert ([0], [1]) == (one.done, two.done)
    assert (False, True) == (before, first.pools.drain("thumbs", timeout=0))
    assert not first.pools.leave("thumbs")


def test_a_member_that_joins_by_hand_joins_at_each_opening(world: World) -> None:
    """Its file remembers it until it leaves."""
    done: list[int] = []
    worker = Agent("t1")
    worker.on("job")(done.append)
    world.open(worker).pools.join("thumbs", credits=1)
    shop = world.open("shop")
    shop.send("thumbs", 1, type="job")
    world.settle()
    world.reopen()
    shop = world.boxes["shop"]
    shop.send("thumbs", 2, type="job")
    world.settle()

    assert [1, 2] == done
    assert [1] == [each.credits for pool in shop.pools.list() for each in pool.members]


def test_a_pool_has_no_agents_name(world: World) -> None:
    """An agent of the home with that name would get its messages."""
    world.open("t1")
    box = world.open("shop")

    wrong: list[Callable[[], object]] = [
        lambda: box.pools.join("t1"),
        lambda: box.pools.join("shop"),
        lambda: box.pools.add("t1", "t2"),
        lambda: box.pools.join("thumbs", credits=0),
        lambda: box.pools.add("thumbs", "t2", credits=0),
    ]
    for call in wrong:
        with pytest.raises(InvalidArgument):
            call()


def test_a_new_agent_cannot_have_a_pools_name(world: World) -> None:
    """It would get the messages of the pool; once no agent serves the name it is free."""
    _, (one,) = pool_of(world, "t1")

    with pytest.raises(InvalidArgument, match="thumbs is a pool of this home, which t1 serves"):
        world.open("thumbs")
    assert not (world.home / "thumbs.db").exists()
    world.boxes["t1"].pools.leave("thumbs")
    assert "thumbs" == world.open("thumbs").agent
    assert [] == one.done


def test_an_agent_does_not_serve_the_name_of_another(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so when it is opened, and handles the messages to its own name."""
    world.open("thumbs")
    shop, (one,) = pool_of(world, "t1")
    shop.send("t1", 1, type="job")
    world.settle()

    assert "thumbs is an agent of this home" in caplog.text
    assert ([1], ()) == (one.done, tuple(shop.pools.list()))


def test_two_pools_share_the_room_of_a_member(world: World) -> None:
    """A sender gives it no more for both than it takes."""
    shop, _ = remote(world, "t1")
    for pool in ("work", "more"):
        shop.pools.add(pool, "t1", credits=3)
    world.boxes["t1"].pools.join("thumbs", credits=3)
    for body in range(5):
        shop.send("work", body, type="job")
        shop.send("more", body, type="job")
    shop.run_until_idle()
    known = [(each.in_flight, each.waiting) for each in shop.pools.list()]

    assert (3, 7) == (sum(one for one, _ in known), sum(other for _, other in known))


def remote(world: World, *names: str) -> tuple[Postbox, list[Worker]]:
    """Open members that their sender reaches by the wire, and names by hand."""
    shop = world.open("shop")
    workers = [Worker(name) for name in names]
    for name, each in zip(names, workers, strict=True):
        world.open(each.agent).peers.add("shop", "wire:shop")
        shop.peers.add(name, f"wire:{name}")
        shop.pools.add("work", name, credits=2)
    return shop, workers


def test_named_members_share_a_pool(world: World) -> None:
    """The home need not know them."""
    shop, (one, two) = remote(world, "t1", "t2")
    for body in range(6):
        shop.send("work", body, type="job")
    world.settle()

    assert [3, 3] == [len(one.done), len(two.done)]


def fill(world: World) -> tuple[Postbox, list[Worker]]:
    """Open a member that takes two messages, and has two of another agent."""
    shop, workers = remote(world, "t1")
    world.boxes["t1"].pools.join("thumbs", credits=2)
    other = world.open("other")
    for _ in range(2):
        other.send("t1", 0, type="job")
    other.run_until_idle()
    return shop, workers


def test_a_member_tells_how_many_it_takes(world: World) -> None:
    """One that has enough of other senders gets the next message once it has handled one."""
    shop, (one,) = fill(world)
    for body in range(1, 5):
        shop.send("work", body, type="job")
        shop.run_until_idle()
    [pool] = shop.pools.list()
    world.settle()

    assert (3, 1, 1) == (pool.waiting, pool.in_flight, pool.members[0].takes)
    assert [0, 0, 1, 2, 3, 4] == sorted(one.done)


def test_a_fast_member_gets_more_than_the_sender_would_guess(world: World) -> None:
    """Its answer to the first message tells that it takes seven more."""
    shop, _ = remote(world, "t1")
    shop.pools.add("work", "t1", credits=1)
    world.boxes["t1"].pools.join("thumbs", credits=8)
    for body in range(10):
        shop.send("work", body, type="job")
    shop.run_until_idle()
    [pool] = shop.pools.list()

    assert (8, 8, 2) == (pool.members[0].takes, pool.in_flight, pool.waiting)


def test_a_member_that_takes_nothing_is_asked_again(world: World) -> None:
    """What it told once does not hold for ever: it gets one message when it has none."""
    shop, (one,) = fill(world)
    member = world.boxes["t1"]
    world.wire.script = ["lost"]
    shop.send("work", 1, type="job")
    shop.run_until_idle()
    member.run_until_idle()
    other = world.boxes["other"]
    for _ in range(2):
        other.send("t1", 0, type="job")
    other.run_until_idle()
    world.wire.always = "ok"
    world.clock.forward(600)
    shop.run_until_idle()
    [((told,),)] = [shop.query("SELECT room FROM _onceward_peers WHERE name = 't1'")]
    shop.send("work", 2, type="job")
    world.settle()

    assert 0 == told
    assert [0, 0, 0, 0, 1, 2] == sorted(one.done)


def test_a_directory_that_cannot_be_read_stops_no_pool(world: World) -> None:
    """Named members get their messages all the same."""
    shop, (one,) = remote(world, "t1")
    shop.agents.list()
    world.shut()
    (world.home / DIRECTORY).write_bytes(b"no database" * 500)
    world.reopen()
    world.boxes["shop"].send("work", 1, type="job")
    world.settle()

    assert [1] == one.done


def test_a_home_whose_directory_knows_no_pools_has_none(world: World) -> None:
    """Another version created it: a name that is no agent's is unknown, and named members work."""
    shop, (one,) = remote(world, "t1")
    shop.agents.list()
    world.shut()
    with closing(apsw.Connection(str(world.home / DIRECTORY))) as con:
        con.execute("DROP TABLE pool_members")
    world.reopen()
    shop = world.boxes["shop"]
    shop.send("work", 1, type="job")
    world.settle()

    assert [1] == one.done
    with pytest.raises(UnknownRecipient):
        shop.send("nothing", 1, type="job")


def test_what_a_member_cannot_know_goes_to_another(world: World) -> None:
    """A parcel without an answer stays with its member, and is handled there once."""
    shop, (one, two) = remote(world, "t1", "t2")
    down = {"t1"}
    world.wire.on_push = lambda parcel: _refuse(world, parcel.recipient in down)
    for body in range(6):
        shop.send("work", body, type="job")
    world.settle()
    handled = sorted(two.done)
    waiting = [each.in_flight for pool in shop.pools.list() for each in pool.members]
    down.clear()
    world.wait(600)

    assert list(range(6)) == sorted(one.done + two.done)
    assert 4 <= len(handled)
    assert 2 >= waiting[0]


def _refuse(world: World, is_down: bool) -> None:
    world.wire.always = "down" if is_down else "ok"


def test_an_answer_that_was_lost_keeps_its_member(world: World) -> None:
    """The member has the messages: no other one gets them, however long it is away."""
    shop, (one, two) = remote(world, "t1", "t2")
    world.wire.script = ["lost"]
    first = shop.send("work", 1, type="job")
    shop.run_until_idle()
    world.wire.on_push = lambda parcel: _refuse(world, parcel.recipient == "t1")
    world.wait(3600)
    world.wire.on_push = lambda _: None
    world.wire.always = "ok"
    world.wait(600)

    assert ([1], []) == (one.done, two.done)
    assert "acked" == shop.state(first)


def test_a_restored_sender_assigns_nothing_that_a_member_may_have(world: World) -> None:
    """It knows no more which one had it; the user decides, and new messages leave."""
    shop, (one, two) = pool_of(world, "t1", "t2", workers=1)
    first = shop.send("thumbs", 1, type="job")
    world.shut()
    world.keep_copy("shop")
    world.reopen()
    world.settle()
    before = list(one.done)
    world.shut()
    world.restore("shop")
    world.reopen()
    shop = world.boxes["shop"]
    world.settle()
    [pool] = shop.pools.list()
    cancelled = shop.cancel(first, timeout=0)
    shop.send("thumbs", 2, type="job")
    world.settle()

    assert ("too_late", "pending") == (cancelled.outcome, cancelled.state)
    assert ([1], 1, 1) == (before, pool.waiting, pool.in_doubt)
    assert [1, 2] == sorted(one.done + two.done)
    world.boxes["t1"].pools.leave("thumbs")
    assert 1 == shop.pools.release("thumbs")
    world.settle()
    assert 1 in two.done


def test_a_reply_that_never_comes_is_a_timeout(world: World) -> None:
    """A request waits for a member like any message."""
    shop, _ = pool_of(world, "t1")
    world.boxes.pop("t1").close()
    ticket = shop.request("thumbs", 1, type="job", timeout=2)
    world.wait(3)

    with pytest.raises(AnswerTimeout):
        shop.result(ticket, reply=int, timeout=0)


def test_a_member_sends_to_its_own_pool(world: World) -> None:
    """It may get the message itself."""
    _, (one,) = pool_of(world, "t1")
    world.boxes["t1"].send("thumbs", 1, type="job")
    world.settle()

    assert [1] == one.done


def test_an_agent_without_pools_loads_nothing_of_them(tmp_path: Path) -> None:
    """Opening its file reads one row, and imports no module of the feature."""
    program = (
        "import sys; from onceward import Agent, Postbox;"
        f"Postbox({str(tmp_path / 'a.db')!r}, agent=Agent('a')).close();"
        "print([name for name in sys.modules if name.startswith('onceward.features.pools.')])"
    )

    command = [sys.executable, "-c", program]  # a fresh interpreter: no fork of one that has all
    assert "[]\n" == subprocess.run(command, capture_output=True, check=True, text=True).stdout


def test_a_message_knows_its_pool(world: World) -> None:
    """Its frame names the pool and the member."""
    told: list[Any] = []
    worker = Agent("t1", serves=["thumbs", "more"])
    worker.on("job")(lambda _body, ctx: told.append(ctx.message))
    world.open(worker)
    shop = world.open("shop")
    shop.send("more", 1, type="job")
    world.settle()
    [(frame,)] = world.boxes["t1"].query("SELECT frame FROM onceward_inbox")

    assert '"recipient":"t1","pool":"more"' in frame
    assert 1 == len(told)
