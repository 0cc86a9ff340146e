"""Pools of several homes: a home tells which pools its agents serve, and senders elsewhere know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.transports.homes import Home, two_homes
from tests.waiting import until

from onceward.api.routing import TransportRouter
from onceward.errors import AmbiguousRecipient, InvalidArgument, UnknownRecipient
from onceward.file import known_homes
from onceward.transports.network.homes import HomeKeys


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Home, Home]]:
    """Yield two homes that know each other; b0 and b1 of the far one serve a pool."""
    with two_homes(tmp_path, ("a0",), ("b0", "b1")) as (near, far):
        far.boxes["b0"].pools.join("thumbs", credits=3)
        far.boxes["b1"].pools.join("thumbs", credits=1)
        until(lambda: members(near) == {"b0": 3, "b1": 1})
        yield near, far


def members(home: Home) -> dict[str, int]:
    """Return the members of the pool that a home knows of other homes."""
    with HomeKeys(home.folder) as keys:
        return known_homes.pool_members(keys.directory.read, "thumbs")


def test_members_elsewhere_get_messages_without_a_command(both: tuple[Home, Home]) -> None:
    """The sender knows neither of them; its file spreads what it sends."""
    near, far = both
    shop = near.boxes["a0"]
    for body in range(4):
        shop.send("thumbs", body)
    shop.run_until_idle()
    got = [len(far.boxes[name].history().messages) for name in ("b0", "b1")]

    assert [3, 1] == got
    assert [("b0", 3), ("b1", 1)] == [
        (each.agent, each.credits) for pool in shop.pools.list() for each in pool.members
    ]


def test_sending_to_a_pool_asks_no_other_home(
    both: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its members are known already; homes are asked for a name that is unknown here."""
    near, _ = both
    asked: list[str] = []
    monkeypatch.setattr(TransportRouter, "tell_homes", lambda self: asked.append(self._db.agent))
    near.boxes["a0"].send("thumbs", 1)
    with pytest.raises(UnknownRecipient):
        near.boxes["a0"].send("nobody", 1)

    assert ["a0"] == asked


def test_leaving_is_told(both: tuple[Home, Home]) -> None:
    """The others get its share; a maintenance round of its process does not make it join again."""
    near, far = both
    shop = near.boxes["a0"]
    far.boxes["b0"].pools.drain("thumbs", timeout=0)
    far.boxes["b0"].file.run_maintenance()
    until(lambda: members(near) == {"b1": 1})
    shop.send("thumbs", 1)
    shop.run_until_idle()

    assert 1 == len(far.boxes["b1"].history().messages)


def test_a_member_that_is_no_longer_served_does_not_work(both: tuple[Home, Home]) -> None:
    """Its home tells it as a member that takes nothing now."""
    near, far = both
    far.close("b0")
    far.homes.ping("near")

    assert {"b0": 0, "b1": 1} == members(near)


def test_a_removed_home_has_no_members(both: tuple[Home, Home]) -> None:
    """Nothing of it is assigned any more."""
    near, _ = both
    near.homes.remove("far")

    assert {} == members(near)


def test_a_pool_and_an_agent_elsewhere_do_not_share_a_name(both: tuple[Home, Home]) -> None:
    """A pool cannot get the name of a known agent; if each home has one, sending says so."""
    near, far = both
    shop = near.boxes["a0"]
    with pytest.raises(InvalidArgument, match="b0 is an agent of the home far"):
        shop.pools.join("b0")
    with pytest.raises(InvalidArgument, match="b0 is an agent of the home far"):
        shop.pools.add("b0", "a1")
    near.homes.remove("far")
    shop.pools.join("b1")
    near.knows(far, "far")
    near.homes.ping("far")

    with pytest.raises(AmbiguousRecipient, match="b1 is a pool, and an agent of the home far"):
        shop.send("b1", 1)
