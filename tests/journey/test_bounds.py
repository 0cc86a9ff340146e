"""Limits: each is hard and independent, every eviction is recorded, a refusal leaves no trace."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import PYTHON, run, side_by_side

from onceward import Agent, AsyncPostbox, Msg, Postbox, Tuning
from onceward.errors import FileLimit, InvalidArgument, OutboxLimit, RateLimited
from onceward.events import Dropped, NearlyFull
from onceward.message.events import Event

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.message.vocabulary import Overflow


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


def rows(box: Postbox) -> dict[str, list[Any]]:
    """
    Return the bodies in the outbox by state, oldest first.

    Summaries are lists of what they tell.
    """
    found: dict[str, list[Any]] = {}
    for past in reversed(box.history(limit=1000).messages):
        body = past.body
        found.setdefault(past.state, []).append(
            body.get("n", body.get("lines")) if isinstance(body, dict) else body
        )
    return found


def counted(box: Postbox) -> dict[str, int]:
    """Return what a plain count says of the bounded scopes."""
    names = {"session": "session", "lane": "recipient || '/' || lane", "outbox": "''"}
    open_rows = "state IN ('pending', 'sent') AND held_by IS NULL"
    return {
        f"{scope} {name}".rstrip(): count
        for scope, column in names.items()
        for name, count in box._db.read(
            f"SELECT {column}, count(*) FROM _onceward_outbox WHERE {open_rows} GROUP BY 1"
        )
    }


@pytest.mark.parametrize(
    ("scope", "name", "twin"),
    [
        ("outbox", "", {}),
        ("session", "s", {}),
        ("session", "*", {}),
        ("lane", "b/s", {}),
        ("lane", "*", {"ordering_key": "s"}),
    ],
)
def test_a_limit_is_hard_and_its_own(
    world: World, scope: Any, name: str, twin: dict[str, Any]
) -> None:
    """
    At the limit the next message is refused, and its id can be used again.

    Other scopes accept messages as before, and a settled message makes room.
    """
    shop = world.open("shop", hold_unknown=True)
    shop.limits.set(scope, name, messages=3)
    session = shop.session("s")
    first, *_ = [session.send("b", Job(n=n), **twin) for n in range(3)]
    before = shop.file.stats()
    for _ in range(2):
        with pytest.raises(OutboxLimit, match=scope):
            session.send("b", Job(n=3), message_id="again", **twin)
    assert before == shop.file.stats()
    if scope != "outbox":
        shop.session("t").send("b", Job(n=9))
    assert shop.cancel(first)

    assert "again" == session.send("b", Job(n=3), message_id="again", **twin)
    with pytest.raises(OutboxLimit):
        session.send("b", Job(n=4), **twin)
    full, real = shop.limits.fullness(), counted(shop)
    assert {key: real[key] for key in full} == {key: count for key, (count, _) in full.items()}


def test_a_limit_of_ones_own_goes_before_the_star(world: World) -> None:
    """A session with a limit of its own is not bound by the limit of every session."""
    shop = world.open("shop", hold_unknown=True)
    shop.limits.set("session", "*", messages=1)
    shop.limits.set("session", "big", messages=3)
    for n in range(3):
        shop.session("big").send("b", Job(n=n))
    shop.session("small").send("b", Job(n=0))
    for name in ("big", "small"):
        with pytest.raises(OutboxLimit):
            shop.session(name).send("b", Job(n=9))

    assert [("session", "*", 1), ("session", "big", 3)] == [
        (each.scope, each.name, each.messages) for each in shop.limits.list()
    ]


def test_bytes_are_counted_to_the_byte(world: World) -> None:
    """A limit of bytes takes what fits, refuses the rest, and tells which body can never fit."""
    shop = world.open("shop", hold_unknown=True)
    shop.send("b", "x" * 100)
    [(size,)] = shop._db.read("SELECT length(CAST(frame AS BLOB)) FROM _onceward_outbox")
    shop.limits.set("outbox", size=2 * size)
    shop.send("b", "y" * 100)
    with pytest.raises(OutboxLimit):
        shop.send("b", "")
    with pytest.raises(OutboxLimit, match="alone"):
        shop.send("b", "x" * 3 * size)

    assert {"outbox": (2, 2 * size)} == shop.limits.fullness()


def test_settling_pruning_and_dying_make_room(world: World) -> None:
    """
    A message that was acked, buried or sent back frees its place.

    The counters equal a count of the rows.
    """
    shop, billing = world.wired("shop", "billing")
    shop.limits.set("outbox", messages=4)
    shop.limits.set("session", "*", messages=4)
    for n in range(3):
        shop.send("billing", Job(n=n))
    shop.send("billing", Job(n=3), ttl=5, delay=4)
    with pytest.raises(OutboxLimit):
        shop.send("billing", Job(n=4))
    world.settle()
    with pytest.raises(OutboxLimit):
        shop.send("billing", Job(n=4))
    for message in billing.receive_each(timeout=0):
        message.ack()
    world.settle()
    assert {"outbox": 1, "session default": 1} == {
        key: count for key, (count, _) in shop.limits.fullness().items()
    }
    world.wait(6)

    assert ({}, 1) == (shop.limits.fullness(), shop.file.stats()["dead_letters"])
    shop.dead_letters.replay_all(as_new=True)
    assert {"outbox": 1, "session default": 1, "lane billing/default": 1} == counted(shop)
    assert 1 == shop.limits.fullness()["outbox"][0]


def test_drop_old_lets_the_oldest_go(world: World) -> None:
    """
    The newest messages are kept, and every dropped one is accounted for.

    It has an id, a reason, a time, a record, an event and a place in the counters.
    """
    shop = world.open("shop", hold_unknown=True)
    heard: list[Event] = []
    shop.on(Dropped, heard.append)
    shop.limits.set("session", "*", messages=3, overflow="drop_old")
    ids = [shop.send("b", Job(n=n)) for n in range(5)]

    assert {"dropped": [0, 1], "pending": [2, 3, 4]} == rows(shop)
    assert ["drop_old: the limit of session default is reached"] * 2 == [
        past.reason for past in shop.history(state="dropped").messages
    ]
    assert (
        ids[:2]
        == [event.message_id for event in heard]  # type: ignore[attr-defined]
        == [drop.id for drop in reversed(shop.limits.drops())]
    )
    assert (
        2
        == shop.file.stats()["dropped_by_policy"]
        == shop.file.stats()["outbox_dropped"]
        == len(shop._db.read("SELECT id FROM onceward_drops"))
    )


def test_drop_new_writes_the_new_one_down_only(world: World) -> None:
    """What waits stays; the new message has an id and a reason, and never leaves."""
    shop, billing = world.open("shop"), world.open("billing")
    shop.limits.set("outbox", messages=2, overflow="drop_new")
    ids = [shop.send("billing", Job(n=n), key=f"k{n}") for n in range(4)]
    again = shop.send("billing", Job(n=3), key="k3")
    world.settle()

    assert (ids[3], ["sent", "sent", "dropped", "dropped"]) == (
        again,
        [shop.state(each) for each in ids],
    )
    assert 2 == billing.file.stats()["received"]
    assert [("drop_new", ids[3]), ("drop_new", ids[2])] == [
        (drop.policy, drop.id) for drop in shop.limits.drops()
    ]


@pytest.mark.parametrize("policy", ["drop_new", "drop_old", "summarize"])
@pytest.mark.parametrize("body", ["task", "x" * 100_000])
def test_the_caller_of_a_task_is_told_that_a_limit_dropped_it(
    world: World, policy: Overflow, body: str
) -> None:
    """It gets the result of the task, whose error names the limit, once."""
    box = world.open("bob", hold_unknown=True)
    box.limits.set("outbox", messages=1, overflow=policy)
    if policy == "drop_new":
        box.send("other", "x")
    with box.session("caller").begin() as tx:
        task = tx.dispatch("worker", body)
    if policy != "drop_new":
        box.send("other", "x")
    world.settle()
    [told] = box.session("caller").receive_each(type="worker_result", timeout=0)

    assert (task, "undelivered") == (told.body["dispatch_id"], told.body["outcome"])
    assert f"{policy}: the limit of outbox is reached" == told.body["error"]


def test_a_summary_tells_what_was_dropped(world: World) -> None:
    """The recipient gets one message that shows and counts the dropped ones, before the rest."""
    shop, billing = world.open("shop"), world.open("billing")
    shop.limits.set("session", "*", messages=3, overflow="summarize")
    for n in range(6):
        shop.send("billing", {"n": n, "long": "x" * 500})
    world.settle()
    told = []
    for message in billing.receive_each(timeout=0):
        told.append(message.body)
        message.ack()

    assert (4, [5]) == (told[0]["dropped"], [each["n"] for each in told[1:]][-1:])
    assert [4, 160] == [len(told[0]["lines"]), max(map(len, told[0]["lines"]))]
    assert ['{"n":0', '{"n":1'] == [line[:6] for line in told[0]["lines"][:2]]
    assert {drop.summary_id for drop in shop.limits.drops()} == {shop.limits.drops()[0].summary_id}
    assert shop.limits.drops()[0].summary_id is not None


@pytest.mark.parametrize("overflow", ["drop_old", "summarize"])
def test_protected_messages_never_give_way(world: World, overflow: Any) -> None:
    """
    Messages that may not be dropped stay and may exceed the limit.

    These are critical ones, awaited replies and those that say so; if only they are left, the
    new one is refused.
    """
    shop = world.open("shop", hold_unknown=True)
    shop.limits.set("outbox", messages=2, overflow=overflow)
    shop.send("b", Job(n=0), priority="critical")
    shop.send("b", Job(n=1), headers={"protected": True})
    shop.send("b", Job(n=2), type="worker_result")
    before = shop.file.stats()
    with pytest.raises(OutboxLimit, match="may not be dropped"):
        shop.send("b", Job(n=3))

    assert ({"pending": [0, 1, 2]}, before) == (rows(shop), shop.file.stats())
    assert [] == shop.limits.drops()


def test_what_is_in_flight_is_nobodys_to_drop(world: World) -> None:
    """A message that has left, or is about to, is not dropped: the peer may have it."""
    shop, _ = world.wired("shop", "billing")
    world.wire.always = "down"
    shop.limits.set("outbox", messages=2, overflow="drop_old")
    for n in range(2):
        shop.send("billing", Job(n=n))
    shop.run_until_idle()

    with pytest.raises(OutboxLimit, match="may not be dropped"):
        shop.send("billing", Job(n=2))
    assert {"sending": [0, 1]} == rows(shop)


def test_hold_accepts_and_keeps_back(world: World) -> None:
    """
    Messages beyond the limit are accepted and leave in order only as others are settled.

    None is lost or overtaken.
    """
    shop, billing = world.wired("shop", "billing")
    shop.limits.set("session", "*", messages=2, overflow="hold")
    for n in range(6):
        shop.send("billing", Job(n=n))
    world.settle()
    assert (2, 4) == (
        billing.file.stats()["inbox_pending"],
        len(shop._db.read("SELECT seq FROM _onceward_outbox WHERE held_by IS NOT NULL")),
    )
    got: list[int] = []
    while (message := billing.receive(Job)) is not None:
        got.append(message.body.n)
        message.ack()
        world.settle()
        assert 2 >= shop.limits.fullness().get("session default", (0, 0))[0]
        if len(got) == 2:
            shop.send("billing", Job(n=6))

    assert (list(range(7)), 7) == (got, shop.file.stats()["acked"])
    assert [] == shop.file.check()


def test_hold_keeps_a_delay(world: World) -> None:
    """A delayed message is held, too, says so in the view, and leaves no earlier than its time."""
    shop, billing = world.wired("shop", "billing")
    shop.limits.set("session", "*", messages=1, overflow="hold")
    shop.send("billing", Job(n=0))
    shop.send("billing", Job(n=1), delay=60)
    held = "SELECT held_by, due_at > created_at FROM onceward_outbox WHERE held_by IS NOT NULL"
    before = shop.query(held)
    world.settle()
    first = billing.receive(Job)
    assert first is not None
    first.ack()
    world.settle()
    early = billing.receive(Job)
    world.wait(61)
    second = billing.receive(Job)

    assert [("limit:session:default", 1)] == before
    assert ([], None) == (shop.query(held), early)
    assert second is not None


def test_lifting_a_limit_frees_what_it_held(world: World) -> None:
    """Raised, the limit lets as many go as it has room for; removed, all."""
    shop = world.open("shop", hold_unknown=True)
    shop.limits.set("outbox", messages=1, overflow="hold")
    for n in range(6):
        shop.send("b", Job(n=n))
    held = "SELECT count(*) FROM _onceward_outbox WHERE held_by = 'limit:outbox:'"
    counts = [shop._db.read(held)[0][0]]
    shop.limits.set("outbox", messages=3, overflow="hold")
    counts += [shop._db.read(held)[0][0], shop.limits.fullness()["outbox"][0]]
    assert shop.limits.remove("outbox")
    counts += [shop._db.read(held)[0][0]]

    assert ([5, 3, 3, 0], False) == (counts, shop.limits.remove("outbox"))
    assert [] == shop._db.read(
        "SELECT name FROM sqlite_schema WHERE name GLOB '_onceward_limits_*' AND type = 'trigger'"
    )


def test_a_burial_frees_a_held_message_once(world: World) -> None:
    """The death of a message is a place for the next, counted once."""
    shop = world.open("shop", hold_unknown=True)
    shop.limits.set("outbox", messages=2, overflow="hold")
    shop.send("b", Job(n=0), ttl=5)
    for n in range(1, 5):
        shop.send("b", Job(n=n))
    world.wait(6)

    assert 2 == shop.limits.fullness()["outbox"][0] == counted(shop)["outbox"]
    assert 1 == shop.file.stats()["dead_letters"]


def test_the_store_counts_both_boxes(world: World) -> None:
    """
    A limit of the store counts messages that wait here in either direction.

    It refuses with an error of its own.
    """
    shop, billing = world.open("shop"), world.open("billing")
    for n in range(3):
        billing.send("shop", Job(n=n))
    world.settle()
    shop.limits.set("store", messages=4)
    shop.send("billing", Job(n=0))
    with pytest.raises(FileLimit):
        shop.send("billing", Job(n=1), priority="critical")
    for message in shop.receive_each(timeout=0):
        message.ack()

    assert shop.send("billing", Job(n=1))


def test_a_rate_says_when_to_come_again(world: World) -> None:
    """
    After the burst messages are refused until there is a token.

    Waiting exactly as long as the error says is enough.
    """
    shop = world.open("shop", hold_unknown=True)
    shop.limits.set("send", rate=2, burst=3)
    ids = [shop.send("b", Job(n=n)) for n in range(3)]
    with pytest.raises(RateLimited, match=r"agent shop .* limit of 2 .*try again") as refused:
        shop.send("b", Job(n=3), message_id="x")
    world.clock.forward(refused.value.retry_after)
    ids.append(shop.send("b", Job(n=3), message_id="x"))
    with pytest.raises(RateLimited):
        shop.send("b", Job(n=4))
    world.open("other", hold_unknown=True).send("b", Job(n=0))
    world.clock.forward(60)
    ids += [shop.send("b", Job(n=n)) for n in range(3)]
    with pytest.raises(RateLimited):
        shop.send("b", Job(n=4))
    shop.limits.remove("send")

    assert ("shop", 2.0) == (refused.value.sender, refused.value.limit)
    assert (0.5, 7) == (refused.value.retry_after, len(set(ids)))
    assert shop.send("b", Job(n=5))
    with pytest.raises(InvalidArgument):
        shop.limits.set("send", rate=0)


def test_a_rate_at_the_door_holds_for_each_sender(world: World) -> None:
    """
    A sender that brings more is told when to come again.

    Nothing is lost, no retry is spent, no breaker opens, and other senders pass.
    """
    billing, shop, other = (
        world.open("billing"),
        world.open("shop", tuning=Tuning(parcel_max_messages=3)),
        world.open("other"),
    )
    billing.limits.set("accept", rate=10, burst=4)
    ids = [shop.send("billing", Job(n=n)) for n in range(10)]
    assert billing.send("shop", Job(n=0)), "its own sending is not bounded by it"

    taken = []
    for _ in range(12):
        before = billing.file.stats()["received"]
        world.settle()
        taken.append(billing.file.stats()["received"] - before)
        peer = shop.peers.get("billing")
        assert peer is not None
        assert ("closed", 0) == (peer.breaker, peer.failures)
        if peer.due_at is None:
            break
        world.clock.forward((peer.due_at - world.clock.now()) / 1000)
    other.send("billing", Job(n=0))
    world.settle()

    tried = dict(shop._db.read("SELECT id, attempts FROM _onceward_outbox"))
    assert (11, [1] * 10) == (billing.file.stats()["received"], [tried[i] for i in ids])
    assert (3, 10) == (max(taken), sum(taken))
    assert 4 <= sum(count > 0 for count in taken), taken
    billing.limits.remove("accept")
    assert [] == billing._db.read("SELECT name FROM _onceward_rate_limits")


def test_a_full_file_takes_no_more_but_settles(world: World) -> None:
    """A file nine tenths full says so once; at the limit only new messages are refused."""
    shop, billing = world.wired("shop", "billing")
    heard: list[Event] = []
    shop.on(NearlyFull, heard.append)
    [(now,)] = shop._db.read(
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    )
    shop.limits.set("file", size=now + 400_000)
    sent = 0
    with pytest.raises(FileLimit):
        for _ in range(1000):
            shop.send("billing", "x" * 5000)
            sent += 1
    world.settle()
    for message in billing.receive_each(timeout=0):
        message.ack()
    world.settle()

    assert (1, sent, []) == (len(heard), shop.file.stats()["acked"], shop.file.check())
    shop.limits.remove("file")
    assert shop.send("billing", "x")


def test_a_refusal_inside_a_block_leaves_the_block(world: World) -> None:
    """A caller that catches the refusal goes on: the victims of the unwritten message stay."""
    shop = world.open("shop", hold_unknown=True, max_pending=3)
    shop.limits.set("session", "s", messages=2, overflow="drop_old")
    shop.limits.set("outbox", messages=3)
    with shop.session("s").begin() as tx:
        for n in range(2):
            tx.send("b", Job(n=n))
        shop.session("t").send("b", Job(n=7))
        with pytest.raises(OutboxLimit):
            tx.send("b", Job(n=2), delay=1)
        tx.execute("CREATE TABLE kept (x)")

    assert {"pending": [0, 1, 7]} == rows(shop)
    assert (0, [], []) == (
        shop.file.stats()["cancelled"],
        shop.limits.drops(),
        shop._db.read("SELECT x FROM kept"),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"scope": "room", "messages": 1},
        {"scope": "outbox"},
        {"scope": "outbox", "messages": 0},
        {"scope": "outbox", "size": -1},
        {"scope": "store", "messages": 1, "overflow": "drop_old"},
        {"scope": "session", "messages": 1, "overflow": "shrug"},
        {"scope": "session", "messages": 1.5},
    ],
    ids=str,
)
def test_a_limit_that_is_none_is_refused(world: World, wrong: dict[str, Any]) -> None:
    """Scope, policy and numbers are checked before anything is changed."""
    shop = world.open("shop")
    with pytest.raises(InvalidArgument):
        shop.limits.set(**wrong)
    assert [] == shop.limits.list()


def test_a_limit_holds_for_every_language(world: World) -> None:
    """A writer in plain SQL is refused at the limit under any policy: no trigger drops mail."""
    world.open("shop", hold_unknown=True).limits.set(
        "session", "*", messages=2, overflow="drop_old"
    )
    world.shut()
    con = sqlite3.connect(world.path("shop"), isolation_level=None)
    try:
        for _ in range(2):
            con.execute("INSERT INTO onceward_send (recipient, type, body) VALUES ('b', 't', '1')")
        with pytest.raises(sqlite3.IntegrityError, match="session_full"):
            con.execute("INSERT INTO onceward_send (recipient, type, body) VALUES ('b', 't', '1')")
        con.execute(
            "INSERT INTO onceward_send (recipient, type, body, priority)"
            " VALUES ('b', 't', '1', 'critical')"
        )
    finally:
        con.close()
    [shop] = world.reopen("shop")

    assert 3 == shop.file.stats()["pending"]
    assert shop.send("b", Job(n=1))
    assert (2, 2) == (shop.file.stats()["pending"], shop.limits.fullness()["session default"][0])


def test_a_limit_that_another_process_sets_is_noticed_when_it_is_reached(world: World) -> None:
    """A process that has the file open follows a new policy from the first message at the limit."""
    shop = world.open("shop", hold_unknown=True)
    setting = (
        "import sys; from onceward import Postbox\n"
        "with Postbox(sys.argv[1], start=False) as box:"
        " box.limits.set('session', '*', messages=2, overflow='drop_old')"
    )
    run([*PYTHON, "-c", setting, world.path("shop")])
    for n in range(4):
        shop.send("b", Job(n=n))

    assert {"dropped": [0, 1], "pending": [2, 3]} == rows(shop)


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("way", ["many", "publish"])
def test_what_is_sent_at_once_meets_a_limit_that_was_set_meanwhile(
    world: World, way: str, *, long: bool
) -> None:
    """
    Many messages at once follow their policy like single ones, the first time.

    Bodies that were stored for nothing are not kept.
    """
    shop = world.open("shop", hold_unknown=True)
    shop.peers.subscribe("b", "news")
    with Postbox(world.path("shop"), start=False) as other:
        other.limits.set("session", "*", messages=2, overflow="drop_old")
    pad = "x" * shop._settings.tuning.body_threshold if long else ""
    if way == "many":
        ids = shop.send_many(("b", f"{n}{pad}") for n in range(25))
    else:
        ids = [shop.publish("news", f"{n}{pad}")[0] for n in range(25)]

    states = [shop.state(each) for each in ids]
    bodies, kept = shop._db.read(
        "SELECT count(*), (SELECT count(*) FROM _onceward_outbox WHERE body_id IS NOT NULL)"
        " FROM _onceward_bodies"
    )[0]
    assert (25, ["dropped"] * 23 + ["pending"] * 2) == (len(set(ids)), states)
    assert (bodies, []) == (kept, shop.file.check())


def test_an_unbounded_file_has_no_trace_of_limits(world: World) -> None:
    """
    Triggers and indexes exist only while there is a limit.

    Sending is one statement before and after.
    """
    shop = world.open("shop", hold_unknown=True)
    extra = (
        "SELECT count(*) FROM sqlite_schema"
        " WHERE name GLOB '_onceward_limits_*' AND type <> 'table'"
    )
    counts = [shop._db.read(extra)[0][0]]
    shop.limits.set("outbox", messages=5)
    counts.append(shop._db.read(extra)[0][0])
    shop.limits.remove("outbox")
    counts.append(shop._db.read(extra)[0][0])

    assert [0, 0] == [counts[0], counts[2]]
    assert 5 < counts[1]


PRODUCER = """
import sys
from onceward import Postbox
from onceward.errors import OutboxLimit
for path in sys.argv[2:]:
    sent = refused = 0
    with Postbox(path, agent="shop", start=False, hold_unknown=True) as box:
        for n in range(60):
            try:
                box.session(f"s{n % 2}").send("b", {"n": n}, message_id=f"{sys.argv[1]}-{n}")
                sent += 1
            except OutboxLimit:
                refused += 1
    print(sent, refused)
"""


def test_eight_producers_never_exceed_a_limit(tmp_path: Path) -> None:
    """
    Eight processes send at once, to a file of each overflow: the limit holds.

    Every message is either written or refused.
    """
    overflows: tuple[Overflow, ...] = ("reject", "drop_old", "drop_new", "hold")
    paths = {overflow: tmp_path / f"{overflow}.db" for overflow in overflows}
    for overflow, path in paths.items():
        with Postbox(path, agent="shop", start=False) as box:
            box.limits.set("session", "*", messages=20, overflow=overflow)
    crew = ([*PYTHON, "-c", PRODUCER, number, *paths.values()] for number in range(8))
    lines = [said.splitlines() for said in side_by_side(crew)]
    told = [[tuple(map(int, line.split())) for line in each] for each in lines]

    assert {(4, 60)} == {(len(each), sum(pair)) for each in told for pair in each}
    for number, (overflow, path) in enumerate(paths.items()):
        _holds(path, overflow, sum(each[number][0] for each in told))


def _holds(path: Path, overflow: Overflow, sent: int) -> None:
    with Postbox(path, start=False) as box:
        stats, full = box.file.stats(), box.limits.fullness()
        rows_there, broken = (
            box._db.read("SELECT count(*) FROM _onceward_outbox")[0][0],
            box.file.check(),
        )
        drops = len(box.limits.drops(limit=1000))

    assert [] == broken
    assert {"session s0": 20, "session s1": 20} == {
        name: count for name, (count, _) in full.items()
    }
    assert sent == rows_there
    wanted = {"reject": (40, 0), "drop_old": (40, 440), "drop_new": (40, 440), "hold": (480, 0)}[
        overflow
    ]
    assert wanted == (stats["pending"], drops)


def test_asyncio_sets_and_looks_alike(world: World) -> None:
    """The awaitable twins do the same."""

    async def work() -> tuple[Any, ...]:
        async with AsyncPostbox(
            world.path("shop"), agent=Agent("shop"), start=False, hold_unknown=True
        ) as box:
            await box.limits.set("session", "*", messages=1, overflow="drop_old")
            await box.limits.set("send", rate=100, burst=10)
            await box.limits.set("accept", rate=100, burst=10)
            await box.limits.set("file", size=1 << 30)
            ids = [await box.send("b", {"n": n}) for n in range(2)]
            drops = await box.limits.drops()
            found = (
                [each.scope for each in await box.limits.list()],
                (await box.limits.fullness())["session default"][0],
            )
            for scope in ("session", "send", "accept", "file"):
                await box.limits.remove(scope)
            return [drop.id for drop in drops] == ids[:1], *found, await box.limits.list()

    assert (True, ["accept", "file", "send", "session"], 1, []) == asyncio.run(work())
