"""
What routing does beside mailboxes and channels, asked of both facades.

It is about limits, dead letters, looking back and pausing.
"""

from __future__ import annotations

from typing import Any

import pytest

from onceward import Tuning
from onceward.errors import FileLimit, InvalidArgument, OutboxLimit, Paused, RateLimited


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
    with pytest.raises(OutboxLimit):
        run.send("b", 3)
    box.limits.set("store", messages=3)
    box.send("b", 4)
    with pytest.raises(FileLimit):
        box.send("b", 5)
    assert [("session", "run"), ("store", "")] == [
        (limit.scope, limit.name) for limit in box.limits.list()
    ]
    assert [True, True, False] == [
        box.limits.remove("session", "run"),
        box.limits.remove("store"),
        box.limits.remove("store"),
    ]
    box.limits.set("send", rate=2, burst=1)
    box.send("b", 6)
    with pytest.raises(RateLimited) as refused:
        box.send("b", 7)
    assert 0.5 == refused.value.retry_after
    box.limits.remove("send")
    box.limits.set("file", size=1 << 30)
    assert box.send("b", 8)
    box.limits.set("accept", rate="30/m", burst=5)
    assert [("accept", None, 0.5, 5.0), ("file", 1 << 30, None, None)] == [
        (limit.scope, limit.size, limit.rate, limit.burst) for limit in box.limits.list()
    ]
    assert [True, False, True, False] == [
        box.limits.remove(scope) for scope in ("file", "file", "accept", "accept")
    ]


@pytest.mark.parametrize(
    ("scope", "most"),
    [
        ("file", {"messages": 3}),
        ("file", {}),
        ("file", {"size": 0}),
        ("send", {"size": 3}),
        ("send", {"burst": 3}),
        ("session", {"rate": 3}),
        ("send", {"rate": 3, "overflow": "hold"}),
        ("door", {"messages": 3}),
    ],
)
def test_a_limit_that_its_scope_does_not_have_is_refused(
    home: Any, scope: str, most: dict[str, Any]
) -> None:
    """The error names what the scope takes, and nothing is changed."""
    box = home.open("a")
    with pytest.raises(InvalidArgument, match=r"a limit |scope=.* is not one of accept, "):
        box.limits.set(scope, **most)

    assert [] == box.limits.list()


def test_a_rate_at_the_door(home: Any) -> None:
    """A receiver takes from each sender what its bucket holds, and the rest when it was filled."""
    door, sender = home.open("door"), home.open("sender", tuning=Tuning(parcel_max_messages=1))
    door.limits.set("accept", rate=1, burst=2)
    for n in range(3):
        sender.send("door", n)
    sender.run_until_idle()
    assert 2 == door.file.stats()["received"]
    home.clock.advance(1.0)
    sender.run_until_idle()
    assert 3 == door.file.stats()["received"]


def test_dead_letters(home: Any) -> None:
    """
    Dead letters are found by every filter, replayed and discarded.

    A replay is of one or in bulk, dry or not.
    """
    a, b = home.open("a"), home.open("b")
    ids = [a.send("b", n, topic=f"t.{n % 2}") for n in range(4)]
    a.run_until_idle()
    while (message := b.receive()) is not None:
        message.reject("no")
    b.run_until_idle()
    letters = b.dead_letters

    assert ids[::-1] == [letter.id for letter in letters.list()]
    assert ids[:1:-1] == [letter.id for letter in letters.list(limit=2)]
    assert ids[2::-2] == [
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
        len(letters.discard_all(older_than=0.0)),
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
    a.file.run_maintenance()
    assert {"where is the invoice", "on the invoice pile"} == {
        past.body for past in a.search("invoice").messages
    }


def test_a_message_by_its_id(home: Any) -> None:
    """It has each row of the message, the last of them first in mind, and its changes of state."""
    a = home.open("a", transitions=True)
    sent = a.send("a", {"n": 1}, type="job", topic="t")
    a.run_until_idle()
    a.receive().reject("no")
    found = a.journey(sent)

    assert [("out", "failed"), ("inbox", "dead")] == [
        (each.box, each.state) for each in found.records
    ]
    assert ({"n": 1}, "rejected", "t", "a") == (
        found.record.body, found.record.reason, found.record.topic, found.record.sender,
    )  # fmt: skip
    assert ["dead"] == [each.outcome for each in found.processed]
    assert [
        ("outbox", "pending"), ("inbox", "pending"), ("outbox", "sent"), ("inbox", "dead"),
        ("outbox", "failed"),
    ] == [(each.box, each.to_state) for each in found.transitions]  # fmt: skip
    assert a.journey("none") is None


def test_the_kill_switch(home: Any) -> None:
    """Paused, nothing is sent, read, moved or ended; resumed, all goes on with nothing lost."""
    a, b = home.open("a"), home.open("b")
    a.send("b", 1, ttl=5.0)
    a.send("b", 2)
    a.run_until_idle()
    b.file.pause()
    home.clock.advance(10.0)
    with pytest.raises(Paused):
        b.send("a", 3)
    assert ([], None, 0) == (b.sessions.poll(), b.receive(), b.file.expire())
    assert 2 == b.file.stats()["inbox_pending"]
    b.file.resume()
    assert (1, [2]) == (b.file.expire(), [letter.body for letter in b.sessions.poll()])
