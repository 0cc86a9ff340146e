"""A message to oneself whose lane is known enters both boxes as it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.core.test_statements import Counted
from tests.journey.test_to_oneself import received

from onceward import Postbox
from onceward.core.rows import outbox
from onceward.errors import FileLimit, OutboxLimit, Paused, RateLimited
from onceward.events import Enqueued, Received, Sent

LAST = "SELECT * FROM _onceward_{} ORDER BY seq DESC LIMIT 1"
OWN_FIELDS = {"seq", "id", "frame", "digest"}
MOMENTS = {"created_at", "sent_at", "received_at"}
STATES = "SELECT state FROM onceward_outbox ORDER BY seq"
HEADS = """
SELECT head_seq, (SELECT min(seq) FROM _onceward_inbox WHERE state = 'pending')
  FROM _onceward_lanes
"""
HALVES = "SELECT (SELECT count(*) FROM _onceward_outbox), (SELECT count(*) FROM _onceward_inbox)"
IN_FLIGHT = """
INSERT INTO _onceward_peers (name, epoch, in_flight_seqs, owner, lease_at)
VALUES ('shop', 'e', '[1]', 'another', 9000000000000)
"""
BROKEN = """
CREATE TRIGGER broken BEFORE INSERT ON _onceward_inbox BEGIN SELECT RAISE(ABORT, 'broken'); END
"""
Step = Callable[[Postbox], object]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Postbox]:
    """Return a postbox that has sent itself a message, so that its lane is known."""
    with Postbox(tmp_path / "shop.db", agent="shop", max_inbox=2) as box:
        box.send("shop", 0)
        received(box)
        yield box
        assert [] == box.file.check()


def written(box: Postbox, **options: Any) -> list[str]:
    """Send the agent a message; return the verbs and tables of the statements."""
    counted = Counted(box)
    box.send("shop", 1, **options)
    return [" ".join(sql.split()[:3]) for sql in counted.take()]


def at_once(box: Postbox, **options: Any) -> bool:
    """Send the agent a message; return whether its outbox row was written only once."""
    return "UPDATE _onceward_outbox SET" not in written(box, **options)


def row(box: Postbox, table: str) -> dict[str, Any]:
    """Return the last row of a table without what differs for each message."""
    [found] = box.query(LAST.format(table))
    fields = dict(found)
    return {name: fields[name] for name in fields.keys() - OWN_FIELDS - MOMENTS}


def test_each_row_is_written_once(shop: Postbox) -> None:
    """One look decides; then both rows, the head of the lane and the counters are written."""
    assert [
        "SELECT lane_id FROM",
        "INSERT INTO _onceward_outbox",
        "UPDATE _onceward_counters SET",
        "INSERT INTO _onceward_inbox",
        "UPDATE _onceward_lanes SET",
    ] == written(shop)


@pytest.mark.parametrize(
    "options",
    [{}, {"topic": "a.b", "correlation_id": "c", "causation_id": "d", "ttl": 60, "reply_to": "b"}],
    ids=["plain", "with options"],
)
def test_its_rows_are_those_of_a_message_that_moves(shop: Postbox, options: dict[str, Any]) -> None:
    """Outbox and inbox cannot tell in which way a message came."""
    with shop.begin() as tx:
        tx.send("shop", 1, **options)
    moved = row(shop, "outbox"), row(shop, "inbox")
    sent_at_once = at_once(shop, **options)
    sent = row(shop, "outbox"), row(shop, "inbox")
    for one, other in zip(moved, sent, strict=True):
        expiry = other.pop("expires_at"), one.pop("expires_at")
        assert len({at is None for at in expiry}) == 1

    assert (True, moved, [1, 1]) == (sent_at_once, sent, received(shop))


def test_its_events_come_in_the_order_of_one_that_moves(shop: Postbox) -> None:
    """Hooks hear that it was enqueued before they hear that it was received and sent."""
    heard: list[str] = []
    for kind in (Enqueued, Received, Sent):
        shop.on(kind, lambda event: heard.append(type(event).__name__))
    with shop.begin() as tx:
        tx.send("shop", 1)
    sent_at_once = at_once(shop)

    assert (True, heard[:3]) == (sent_at_once, heard[3:])
    assert [1, 1] == received(shop)


def test_its_outcome_is_that_of_any_receipt(shop: Postbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never was in a parcel is acked by a shorter statement, which leaves the same row."""
    rows: list[dict[str, Any]] = []
    for shorter in (outbox.ack_own, lambda *_: False):
        monkeypatch.setattr(outbox, "ack_own", shorter)
        shop.send("shop", 1)
        received(shop)
        rows.append(row(shop, "outbox") | {"ended_at": None})

    assert rows[0] == rows[1]
    assert "acked" == rows[0]["state"]


def test_an_acknowledgement_counts_once(shop: Postbox) -> None:
    """The counters of both boxes change by one statement."""
    shop.send("shop", 1)
    message = shop.receive()
    assert message is not None
    counted = Counted(shop)
    message.ack()
    changed = [sql for sql in counted.take() if "_onceward_counters" in sql]

    stats = shop.file.stats()

    assert (1, 2, 2, 0) == (len(changed), stats["processed"], stats["acked"], stats["sent"])


def test_its_lane_begins_with_it(tmp_path: Path) -> None:
    """Triggers that write other rows with it do not change what its lane hands out next."""
    with Postbox(tmp_path / "audit.db", agent="audit", transitions=True) as box:
        for body in range(3):
            box.send("audit", body)
        heads = box.query(HEADS)

        assert ([(1, 1)], [0, 1, 2]) == (heads, received(box))


@pytest.mark.parametrize(
    "options",
    [{"key": "k"}, {"message_id": "m-1"}, {"ephemeral": True}, {"in_reply_to": "another"}],
    ids=" ".join,
)
def test_what_must_be_judged_moves_instead(shop: Postbox, options: dict[str, Any]) -> None:
    """A message that may be known, or that a feature looks at, is read before it is accepted."""
    assert (False, [1]) == (at_once(shop, **options), received(shop))


def full(box: Postbox) -> None:
    """Fill the inbox."""
    for body in range(2):
        box.send("shop", body)


@pytest.mark.parametrize(
    "prepare",
    [
        full,
        lambda box: box._db.write(lambda tx: tx.run(IN_FLIGHT)),
        lambda box: box.peers.allow("shop", types=["#"]),
        lambda box: box.limits.set("accept", rate=1, burst=1),
    ],
    ids=["full inbox", "parcel in flight", "inbound rule", "rate of acceptance"],
)
def test_it_waits_where_parcels_must_judge(shop: Postbox, prepare: Step) -> None:
    """Its second half is not stored while another message or a limit comes first."""
    prepare(shop)
    before = shop.query(HALVES)
    message = shop._outbox.compose("default", "shop", 1)

    assert (False, before) == (
        shop._db.write(lambda tx: shop._own.store(tx, message)),
        shop.query(HALVES),
    )


def test_an_awaited_type_is_read_first(shop: Postbox) -> None:
    """Where handlers wait for types, each message is read before it is accepted."""
    shop._db.write(lambda tx: tx.run("INSERT INTO _onceward_awaited_types (type) VALUES ('x')"))

    assert not at_once(shop)


def test_what_waits_in_the_outbox_comes_first(shop: Postbox) -> None:
    """A message that a process without engines left is not overtaken by the next one."""
    packer, shop._db.writer.packer = shop._db.writer.packer, None
    shop.send("shop", 1)
    shop._db.writer.packer = packer
    shop.send("shop", 2)

    assert [1, 2] == received(shop)


@pytest.mark.parametrize(
    ("scope", "limit"),
    [("outbox", {"messages": 1}), ("send", {"rate": 1e-9, "burst": 1}), ("file", {"size": 1})],
    ids=str,
)
def test_limits_hold(shop: Postbox, scope: Any, limit: dict[str, Any]) -> None:
    """A limit refuses it as it refuses any other message."""
    shop.limits.set(scope, **limit)
    with pytest.raises((OutboxLimit, RateLimited, FileLimit)):
        for _ in range(2):
            shop.send("shop", 1)

    assert [1] * (scope != "file") == received(shop)


def test_a_pause_holds(shop: Postbox) -> None:
    """A paused file takes no message."""
    shop.file.pause()
    with pytest.raises(Paused):
        shop.send("shop", 3)
    shop.file.resume()

    assert [] == received(shop)


def test_an_error_leaves_neither_half(shop: Postbox) -> None:
    """A send that fails after its first half is undone, also inside the caller's block."""
    before = shop.query(HALVES)
    shop._db.write(lambda tx: tx.run(BROKEN))
    with pytest.raises(apsw.ConstraintError):
        shop.send("shop", 1)
    with shop.begin(), suppress(apsw.ConstraintError):
        shop.send("shop", 2)
    after = shop.query(HALVES)
    shop._db.write(lambda tx: tx.run("DROP TRIGGER broken"))

    assert before == after


def test_the_same_work_again_finds_it(shop: Postbox) -> None:
    """A send whose commit had an unknown outcome is repeated, and finds its message."""
    message = shop._outbox.compose("default", "shop", 1)
    ids = [shop._db.write(lambda tx: shop._outbox.add_own(tx, message)) for _ in range(2)]

    assert ([message.id] * 2, [1]) == (ids, received(shop))
