"""Why a message waits in a pool: one reason after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.views.test_why import Home

from onceward import Agent
from onceward.file.read_only import opened
from onceward.ops.observe.detail import read_detail
from onceward.ops.views.why import agent_whys


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Return a home with an agent that sends to a pool."""
    with ExitStack() as stack:
        made = Home(tmp_path, stack)
        made.open("shop").pools.add("thumbs", "t1", credits=1)
        yield made


def reasons(home: Home) -> list[tuple[str, str]]:
    """Return the reasons of the agent's file, with what to do."""
    with opened(home.boxes["shop"].file.path) as source:
        return [
            (each.reason, each.cure or "") for each in agent_whys(source, home.clock.now() + 60_000)
        ]


def test_a_pool_without_members_says_so(home: Home) -> None:
    """It is not taken for a stopped dispatcher."""
    shop = home.boxes["shop"]
    shop.pools.remove("thumbs", "t1")
    sent = shop.send("thumbs", 1)
    home.settle()
    found = home.why(sent, "shop")

    assert ("no member", "Waits: no agent serves the pool thumbs") == (found.reason, found.parts[0])
    assert [("no member", "onceward pools ls --agent shop")] == reasons(home)


def test_members_that_are_full_or_gone_are_told_apart(home: Home) -> None:
    """A member that takes no more is busy; without one that works, act."""
    shop = home.boxes["shop"]
    home.open(Agent("t1"))
    shop.send("thumbs", 1)
    waiting = shop.send("thumbs", 2)
    shop.run_until_idle()
    busy, file = home.why(waiting, "shop"), reasons(home)
    shop._db.write(lambda tx: tx.run("UPDATE _onceward_pool_members SET works = 0"))
    gone = home.why(waiting, "shop")

    assert ("members busy", "wait") == (busy.reason, busy.level)
    assert [("members busy", "onceward pools ls --agent shop")] == file
    assert ("no member", "act") == (gone.reason, gone.level)


def test_a_conversation_waits_for_its_member(home: Home) -> None:
    """Another member has room, and does not get it."""
    shop = home.boxes["shop"]
    shop.pools.add("thumbs", "t2", credits=1)
    home.open(Agent("t1"))
    home.open(Agent("t2"))
    shop.send("thumbs", 1, ordering_key="k")
    waiting = shop.send("thumbs", 2, ordering_key="k")
    shop.run_until_idle()

    assert "lane elsewhere" == home.why(waiting, "shop").reason


def test_the_detail_of_top_lists_the_members(home: Home) -> None:
    """Those that do not work come first."""
    shop = home.boxes["shop"]
    shop.pools.add("thumbs", "t2", credits=3)
    home.open(Agent("t1"))
    home.open(Agent("t2"))
    shop.send("thumbs", 1)
    shop.run_until_idle()
    shop._db.write(
        lambda tx: tx.run("UPDATE _onceward_pool_members SET works = 0 WHERE agent = 't2'")
    )
    found = read_detail(shop.file.path).members

    assert [("t2", 0, 0, 3), ("t1", 1, 1, 1)] == [
        (each.agent, each.works, each.in_flight, each.credits) for each in found
    ]


def test_a_member_that_stopped_with_messages_is_named(home: Home) -> None:
    """A process must open its file, because no other member gets them."""
    shop = home.boxes["shop"]
    home.open(Agent("t1"))
    shop.send("thumbs", 1)
    shop.run_until_idle()
    calm = reasons(home)
    shop._db.write(lambda tx: tx.run("UPDATE _onceward_pool_members SET works = 0"))

    assert [] == [each for each in calm if each[0] == "member stopped"]
    assert ("member stopped", "onceward work --agent t1") in reasons(home)


def test_a_member_that_is_full_of_another_pool_is_busy(home: Home) -> None:
    """It has one room for all its pools."""
    shop = home.boxes["shop"]
    shop.pools.add("more", "t1", credits=1)
    home.open(Agent("t1"))
    shop.send("thumbs", 1)
    shop.run_until_idle()
    waiting = shop.send("more", 2)
    shop.run_until_idle()

    assert "members busy" == home.why(waiting, "shop").reason


def test_a_message_in_doubt_names_the_release(home: Home) -> None:
    """The file was restored: newer messages are not in doubt."""
    shop = home.boxes["shop"]
    shop.pools.remove("thumbs", "t1")
    old = shop.send("thumbs", 1)
    shop._db.write(
        lambda tx: tx.run(
            "UPDATE _onceward_peers SET redelivered_upto_seq ="
            " (SELECT max(seq) FROM _onceward_outbox) WHERE name = 'thumbs'"
        )
    )
    new = shop.send("thumbs", 2)
    found = home.why(old, "shop")

    assert ("in doubt", "onceward pools release thumbs --agent shop") == (found.reason, found.cure)
    assert "no member" == home.why(new, "shop").reason
    assert ["in doubt"] == [reason for reason, _ in reasons(home)]
