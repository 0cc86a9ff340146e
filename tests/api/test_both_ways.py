"""
What routing does beside mailboxes and channels, asked of both facades.

It is about limits, dead letters, looking back and pausing.
"""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import InvalidArgument, Paused, QueueFull, RateLimited, StoreFull


def test_limits(home: Any) -> None:
    """A bound refuses or evicts; drops are listed; a lifted bound limits no more."""
    box = home.open("a", hold_unknown=True)
    run = box.session("run")
    box.limits.set("session", "run", messages=2, overflow="drop_old")
    ids = [run.send("b", n) for n in range(3)]
    assert ([ids[0]], {"session run": 2}) == (
        [drop.id for drop in box.limits.drops()],
        {k: v[0] for k, v in box.limits.fullness().items()},
    )
    box.limits.set("session", "run", messages=2)
    with pytest.raises(QueueFull):
        run.send("b", 3)
    box.limits.set("store", messages=3)
    box.send("b", 4)
    with pytest.raises(StoreFull):
        box.send("b", 5)
    assert [("session", "run"), ("store", "")] == [
        (limit.scope, limit.name) for limit in box.limits.list()
    ]
    assert [True, True, False] == [
        box.limits.remove("session", "run"),
        box.limits.remove("store"),
        box.limits.remove("store"),
    ]
    box.limits.rate(2, burst=1)
    box.send("b", 6)
    with pytest.raises(RateLimited) as refused:
        box.send("b", 7)
    assert 0.5 == refused.value.retry_after
    box.limits.rate(None)
    box.limits.file(1 << 30)
    assert box.send("b", 8)


def test_a_rate_at_the_door(home: Any) -> None:
    """A receiver takes from each sender what its bucket holds, and the rest when it was filled."""
    door, sender = home.open("door"), home.open("sender", parcel_max_messages=1)
    door.limits.accept_rate(1, burst=2)
    for n in range(3):
        sender.send("door", n)
    sender.run_until_idle()
    assert 2 == door.stats()["received"]
    home.clock.advance(1.0)
    sender.run_until_idle()
    assert 3 == door.stats()["received"]


def test_dead_letters(home: Any) -> None:
    """
    Dead letters are found by every filter, replayed, discarded and purged.

    A replay is of one or in bulk, dry or not.
    """
    a, b = home.open("a"), home.open("b")
    ids = [a.send("b", n, topic=f"t.{n % 2}") for n in range(4)]
    a.run_until_idle()
    while (message := b.receive()) is not None:
        message.reject("no")
    b.run_until_idle()
    letters = b.dead_letters

    assert ids == [letter.id for letter in letters.list()]
    assert ids[::2] == [
        letter.id
        for letter in letters.list(topic="t.0", peer="a", origin="inbox", reason="rejected")
    ]
    assert ("no", []) == (letters.get(ids[0]).last_error, letters.list(older_than=60.0))
    assert ids[1::2] == letters.replay_all(topic="t.1", dry_run=True).done
    assert 4 == len(letters.list())
    assert ids[1::2] == letters.replay_all(topic="t.1").done
    assert ids[0] == letters.replay(ids[0])
    again = b.receive()
    assert again.id in {ids[0], ids[1], ids[3]}
    again.ack()
    with pytest.raises(InvalidArgument):
        letters.replay(ids[2], as_new=True)
    assert [True, False] == [letters.discard(ids[2]), letters.discard(ids[2])]
    b.receive().reject("no")
    b.receive().reject("no")
    assert (1, 1) == (
        len(letters.discard_all(reason="rejected", limit=1)),
        letters.purge(older_than=0.0),
    )
    assert [] == letters.list()


def test_looking_back(home: Any) -> None:
    """Pages go on where they ended, a thread is whole and in order, search finds kept words."""
    a, b = home.open("a", search=True), home.open("b")
    asked = a.send("b", "where is the invoice")
    a.run_until_idle()
    message = b.receive()
    home.clock.advance(0.001)  # a thread is in the order of time
    message.reply("on the invoice pile")
    message.ack()
    b.run_until_idle()
    later = [a.session("s").send("b", n) for n in range(3)]

    first = a.history(limit=2, session="s")
    rest = a.history(limit=2, session="s", after=first.next)
    assert ([later[2], later[1]], [later[0]]) == (
        [past.id for past in first.messages],
        [past.id for past in rest.messages],
    )
    assert (3, True, False) == (first.total_count, first.has_more, rest.has_more)
    assert ["where is the invoice", "on the invoice pile"] == [
        past.body for past in a.thread(asked)
    ]
    assert 3 == a.session("s").history().total_count
    a.run_maintenance()
    assert {"where is the invoice", "on the invoice pile"} == {
        past.body for past in a.search("invoice").messages
    }


def test_the_kill_switch(home: Any) -> None:
    """Paused, nothing is sent, read, moved or ended; resumed, all goes on with nothing lost."""
    a, b = home.open("a"), home.open("b")
    a.send("b", 1, ttl=5.0)
    a.send("b", 2)
    a.run_until_idle()
    b.pause()
    home.clock.advance(10.0)
    with pytest.raises(Paused):
        b.send("a", 3)
    assert ([], None, 0) == (b.poll(), b.receive(), b.expire())
    assert 2 == b.stats()["inbox_pending"]
    b.resume()
    assert (1, [2]) == (b.expire(), [letter.body for letter in b.poll()])
