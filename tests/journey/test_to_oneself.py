"""Messages of an agent to itself: one file, no parcel, and all that holds between two files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.journey.conftest import World
from tests.journey.counted import Job, counting, effects
from tests.waiting import until

from onceward import Agent, Message, Postbox, Tuning
from onceward.message.events import Event, MessageBound, MessageEvent

LIMIT = 60.0
DAY = 86_400
STATES = "SELECT id, state FROM onceward_outbox ORDER BY seq"
PARCELS = """
SELECT (SELECT count(*) FROM onceward_peers),
       (SELECT count(*) FROM _onceward_sender_streams),
       (SELECT count(*) FROM _onceward_receipts)
"""

IN_FLIGHT = """
INSERT INTO _onceward_peers (name, epoch, in_flight_seqs, owner, lease_at)
VALUES ('shop', 'e', '[1]', 'another', 9000000000000)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of the agent."""
    return tmp_path / "shop.db"


def opened(file: Path, **options: object) -> Postbox:
    """Open the agent's file with engines and without handlers."""
    return Postbox(file, agent="shop", **options)  # type: ignore[arg-type]


def unsent(file: Path, *bodies: object, **options: object) -> list[str]:
    """Send messages to oneself by a process that has no engines; return their ids."""
    with opened(file, start=False, **options) as box:
        return [box.send("shop", body) for body in bodies]


def received(box: Postbox) -> list[object]:
    """Receive and acknowledge all that there is; return the bodies."""
    bodies: list[object] = []
    while (message := box.receive(timeout=0)) is not None:
        message.ack()
        bodies.append(message.body)
    return bodies


def test_it_is_in_both_boxes_with_its_send(file: Path) -> None:
    """Neither peer, stream nor receipt is written, and it is never asked about."""
    with opened(file) as box:
        sent = box.send("shop", 1)
        dates = "SELECT state, due_at, attempts FROM onceward_outbox"

        assert ([(0, 0, 0)], [("sent", None, 1)], [(sent,)]) == (
            box._db.read(PARCELS),
            box.query(dates),
            box.query("SELECT id FROM onceward_inbox WHERE state = 'pending'"),
        )


@pytest.mark.parametrize("end", [Message.ack, Message.drop])
def test_it_is_settled_by_the_transaction_that_handles_it(
    file: Path, end: Callable[[Message[Any]], None]
) -> None:
    """The outbox says so inside the transaction already; a rollback takes both back."""
    with opened(file) as box:
        box.send("shop", 1)
        message = box.receive(timeout=LIMIT)
        assert message is not None
        state = "SELECT state FROM onceward_outbox"
        with suppress(KeyError), box.begin() as tx:
            end(message)
            inside = tx.execute(state)
            raise KeyError
        undone = box.query(state)
        end(message)

        assert ([("acked",)], [("sent",)], [("acked",)]) == (inside, undone, box.query(state))


def test_a_process_without_engines_leaves_it_to_one_that_has_them(file: Path) -> None:
    """What waited comes before what is sent when the engines run, each once."""
    unsent(file, 1, 2)
    with opened(file, start=False) as box:
        # as a process with engines has it
        box._db.writer.packer = box._dispatcher._deliveries._packing
        box.send("shop", 3)

        assert [1, 2, 3] == received(box)


def test_an_urgent_one_overtakes_and_nothing_else_does(file: Path) -> None:
    """The order of a parcel holds: by priority, then as they were sent."""
    with opened(file) as box, box.begin() as tx:
        for body in (1, 2):
            tx.send("shop", body, priority="background")
        tx.send("shop", 3, priority="critical")
    with opened(file, start=False) as box:
        assert [3, 1, 2] == received(box)


def test_a_parcel_that_is_under_way_is_not_overtaken(world: World) -> None:
    """What is sent while a parcel of the agent to itself waits for its answer comes after it."""
    box = world.open(counting("shop"))
    box.send("shop", Job(n=1))
    box._db.write(lambda tx: tx.run(IN_FLIGHT))
    box.send("shop", Job(n=2))
    moved = box._db.write(box._own.deliver)
    box._db.write(lambda tx: tx.run("DELETE FROM _onceward_peers"))
    box.run_until_idle()

    assert (False, [1, 2]) == (moved, effects(world, "shop"))


def test_a_full_inbox_makes_it_wait(world: World) -> None:
    """It is taken once there is room, in its order."""
    box = world.open("shop", max_inbox=2)
    for body in range(4):
        box.send("shop", body)
        box.run_until_idle()
    waiting = [state for _, state in box.query(STATES)]
    first = received(box)
    world.clock.forward(DAY)
    box.run_until_idle()

    assert (["sent", "sent", "sending", "pending"], [0, 1], [2, 3]) == (
        waiting,
        first,
        received(box),
    )


def test_a_pause_keeps_it_where_it_is(world: World) -> None:
    """What waits in the outbox when the file is paused is taken when it is resumed."""
    box = world.open("shop")
    box.send("shop", 1)
    box.file.pause()
    box.run_until_idle()
    paused = box.query(STATES)[0][1]
    box.file.resume()
    box.run_until_idle()

    assert ("pending", [1]) == (paused, received(box))


def test_a_known_id_is_not_handled_again(world: World) -> None:
    """An id whose outbox row is pruned, used again, is told from its dedup record."""
    box = world.open(counting("shop"))
    box.send("shop", Job(n=1), message_id="m-1")
    box.run_until_idle()
    box._db.write(lambda tx: tx.run("DELETE FROM _onceward_outbox"))
    box._db.write(lambda tx: tx.run("DELETE FROM _onceward_inbox"))
    box.send("shop", Job(n=1), message_id="m-1")
    box.run_until_idle()

    assert ([1], [("m-1", "acked")]) == (effects(world, "shop"), box.query(STATES))


def test_the_same_key_is_the_same_message(file: Path) -> None:
    """A key that was sent before gives the first id back, and nothing is stored twice."""
    with opened(file) as box:
        first = box.send("shop", 1, key="k")

        assert (first, [1]) == (box.send("shop", 1, key="k"), received(box))


def test_retention_leaves_a_horizon(world: World) -> None:
    """Of messages to oneself too it is known up to which id dedup records may be gone."""
    box = world.open(counting("shop"), retention=DAY)
    sent = box.send("shop", Job(n=1))
    box.run_until_idle()
    world.clock.forward(3 * DAY)
    box.file.run_maintenance()
    box.send("shop", Job(n=2))
    box.run_until_idle()

    assert ([("shop", sent)], [1, 2], []) == (
        box.query("SELECT sender, horizon_id FROM onceward_streams"),
        effects(world, "shop"),
        box.file.check(),
    )


def test_a_message_older_than_the_horizon_is_new_all_the_same(world: World) -> None:
    """What never left is handled, however old it is, also where a parcel must carry it."""
    box = world.open(counting("shop"), retention=DAY)
    box.send("shop", Job(n=1), delay=5 * DAY)
    box.send("shop", Job(n=2))
    box.run_until_idle()
    world.clock.forward(3 * DAY)
    box.file.run_maintenance()
    world.clock.forward(3 * DAY)
    box.peers.allow("shop", types=["#"])
    box.run_until_idle()

    assert [2, 1] == effects(world, "shop")


def test_an_expired_one_is_a_dead_letter(world: World) -> None:
    """Its time ran out in the outbox: it is not stored, and has a reason."""
    box = world.open("shop")
    box.send("shop", 1, ttl=5)
    world.clock.forward(6)
    box.run_until_idle()

    assert ([], ["expired"]) == (received(box), [d.reason for d in box.dead_letters.list()])


def test_one_that_expires_in_the_inbox_fails(world: World) -> None:
    """Its sender, the agent itself, is told by the same commit."""
    box = world.open(counting("shop"))
    sent = box.send("shop", Job(n=1), ttl=5)
    assert box._db.write(box._own.deliver)
    world.clock.forward(6)
    box.run_until_idle()

    assert ([], [(sent, "failed")]) == (effects(world, "shop"), box.query(STATES))


def test_a_rejected_one_fails_and_a_replay_mends_it(world: World) -> None:
    """Outbox and dead letter tell of it in one commit; handled after a replay it is acked."""
    box = world.open("shop")
    box.send("shop", 1)
    box.run_until_idle()
    message = box.receive()
    assert message is not None
    message.reject("unfit")
    failed = box.query(STATES)[0][1]
    [dead] = box.dead_letters.list()
    box.dead_letters.replay(dead.id)
    again = received(box)

    assert ("failed", [1], "acked") == (failed, again, box.query(STATES)[0][1])


def test_what_the_inbox_refuses_is_a_dead_letter(world: World) -> None:
    """A message that too many led to is refused as by another agent; its neighbours arrive."""
    box = world.open("shop", max_hops=2)
    box._outbox.commit("default", "shop", 1, {"hops": 3})
    box.send("shop", 2)
    box.run_until_idle()

    assert ([2], ["hops_exceeded"]) == (received(box), [d.reason for d in box.dead_letters.list()])


def test_a_request_to_oneself_is_answered(file: Path) -> None:
    """Request and reply are both messages to oneself, and both are settled."""
    agent = Agent("shop")
    agent.on("json")(lambda body: body + 1)
    with Postbox(file, agent=agent) as box:
        answer = box.ask("shop", 1, reply=int, timeout=LIMIT)
        until(lambda: {"acked"} == {state for _, state in box.query(STATES)})

        assert (2, [(0, 0, 0)]) == (answer, box._db.read(PARCELS))


def test_a_long_body_is_whole(file: Path) -> None:
    """A body that stands beside its message in the outbox is in the frame of the inbox."""
    with opened(file) as box:
        box.send("shop", "long" * 40_000)

        assert ["long" * 40_000] == received(box)


def test_stored_may_be_enough(file: Path) -> None:
    """With ack='stored' it is acked in the commit of its send."""
    with opened(file, ack="stored") as box:
        box.send("shop", 1)

        assert (["acked"], [1]) == ([state for _, state in box.query(STATES)], received(box))


def test_more_than_a_parcel_is_taken_in_order(file: Path) -> None:
    """What exceeds the messages of a parcel follows, without another send."""
    with opened(file, tuning=Tuning(parcel_max_messages=3)) as box:
        with box.begin() as tx:
            for body in range(10):
                tx.send("shop", body)
        until(lambda: box.file.stats()["inbox_pending"] == 10)

        assert list(range(10)) == received(box)


def test_its_events_are_those_of_any_message(file: Path) -> None:
    """Each is told once, with the names of the message."""
    told: list[Event] = []
    with opened(file) as box:
        box.on(Event, told.append)
        sent = box.send("shop", 1)
        received(box)
    of_it = [each for each in told if isinstance(each, MessageEvent | MessageBound)]

    assert {(sent, "shop")} == {(each.message_id, each.peer) for each in of_it}
    assert {"Enqueued": 1, "Sent": 1, "Received": 1, "Processed": 1, "Acked": 1} == Counter(
        type(each).__name__ for each in of_it
    )


def test_a_url_of_its_own_leads_it_there(world: World) -> None:
    """An agent that reaches its own name at a url pushes to it, as to any other."""
    box = world.open("shop")
    box.peers.add("shop", "wire:shop")
    sent = box.send("shop", 1)
    box.run_until_idle()

    assert ([sent], [1]) == (world.wire.ids, received(box))


@pytest.mark.broken("a digest is wrong")
def test_a_damaged_one_is_not_taken(world: World) -> None:
    """A frame that is not what was written becomes a dead letter, not a message."""
    world.audited = False  # the dead letter stays damaged
    box = world.open("shop")
    box.send("shop", 1)
    box._db.write(lambda tx: tx.run("UPDATE _onceward_outbox SET digest = zeroblob(16)"))
    box.run_until_idle()

    assert ([], ["corrupt"]) == (received(box), [d.reason for d in box.dead_letters.list()])
