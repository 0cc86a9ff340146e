"""
State machines: every move that the tables name is possible, every other one fails.

That holds for every caller and every means.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from onceward import Postbox
from onceward.core.end import received, sent
from onceward.core.end.received import SettledMessage
from onceward.core.handle import claim
from onceward.core.rows import lanes
from onceward.core.rows.lanes import LeasedMessage
from onceward.errors import InvalidMessage, LeaseLost, StoreCorrupt
from onceward.file.transaction import StoreTransaction
from onceward.message.frame import digest
from onceward.message.parcel import Receipt
from onceward.message.vocabulary import (
    INBOX,
    INBOX_STATES,
    OUTBOX,
    OUTBOX_STATES,
    Dead,
    Done,
    RetryAt,
    Settlement,
)

pytestmark = pytest.mark.broken("rows are moved by hand")

SENT = (
    "UPDATE _onceward_outbox SET state = 'sent', sent_at = 1, due_at = 5, parcel_ordinal = 1"
    " WHERE seq = 1"
)
ROUTE: dict[str, list[str]] = {
    "pending": [],
    "sent": [
        SENT,
        "UPDATE _onceward_counters SET value = 1 WHERE name IN ('sent', 'ended_pending')",
    ],
    "acked": [
        (
            "UPDATE _onceward_outbox"
            " SET state = 'acked', sent_at = 1, ended_at = 2, parcel_ordinal = 1"
        ),
        "UPDATE _onceward_counters SET value = 1 WHERE name IN ('acked', 'ended_pending')",
    ],
    "failed": [
        (
            "UPDATE _onceward_outbox"
            " SET state = 'failed', sent_at = 1, ended_at = 2, parcel_ordinal = 1"
        ),
        "UPDATE _onceward_counters SET value = 1 WHERE name IN ('failed', 'ended_pending')",
    ],
    "cancelled": [
        "UPDATE _onceward_outbox SET state = 'cancelled', ended_at = 2",
        "UPDATE _onceward_counters SET value = 1 WHERE name IN ('cancelled', 'ended_pending')",
    ],
    "dropped": [
        "UPDATE _onceward_outbox SET state = 'dropped', ended_at = 2",
        "UPDATE _onceward_counters SET value = 1 WHERE name IN ('outbox_dropped', 'ended_pending')",
    ],
}
OUT_MOVE = """
UPDATE _onceward_outbox SET state = '{0}', sent_at = 1, due_at = NULL,
    ended_at = CASE WHEN '{0}' IN ('pending', 'sent') THEN NULL ELSE 2 END WHERE seq = 1
"""
IN_MOVE = (
    "UPDATE _onceward_inbox"
    " SET state = '{0}', ended_at = CASE WHEN '{0}' = 'pending' THEN NULL ELSE 2 END WHERE seq = 1"
)
PUT = """
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, rank, state, frame, digest,
    received_at, ended_at)
VALUES ('b', 'm', 1, 's', 't', 2, ?, '{}', x'00', 1, ?)
"""
ARRIVE = """
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, rank, frame, digest, received_at)
VALUES ('b', 'm', 1, 's', 't', 2, ?, ?, 1)
"""

out_pairs = pytest.mark.parametrize(
    ("was", "then"),
    list(itertools.product(OUTBOX_STATES, [*OUTBOX_STATES, "sending", "nonsense", ""])),
)
in_pairs = pytest.mark.parametrize(
    ("was", "then"),
    list(itertools.product(INBOX_STATES, [*INBOX_STATES, "processing", "dead", ""])),
)


def out_in(box: Postbox, state: str) -> str:
    """Put one message into the outbox and bring it into a state; return its id."""
    message_id = box.send("b", 1)
    for sql in ROUTE[state]:
        box._db.write(lambda tx, sql=sql: tx.run(sql))  # type: ignore[misc]
    return message_id


def in_in(box: Postbox, state: str) -> None:
    """Put one message into the inbox in a state."""
    box._db.write(
        lambda tx: tx.run(
            "INSERT INTO _onceward_lanes (sender, name, rank, session) VALUES ('b', 's', 2, 's')"
        )
    )
    box._db.write(lambda tx: tx.run(PUT, (state, None if state == "pending" else 2)))


def legal(moves: dict[tuple[str, str], str], was: str, then: str) -> bool:
    """Return whether a move is in the table; staying is not a move."""
    return was == then or (was, then) in moves


@out_pairs
def test_the_outbox_knows_its_moves(box: Postbox, was: str, then: str) -> None:
    """A plain UPDATE of a message's state passes exactly where the table has the move."""
    out_in(box, was)
    if legal(OUTBOX, was, then):
        box._db.write(lambda tx: tx.run(OUT_MOVE.format(then)))
    else:
        with pytest.raises((InvalidMessage, StoreCorrupt)):
            box._db.write(lambda tx: tx.run(OUT_MOVE.format(then)))

    assert [(then if legal(OUTBOX, was, then) else was,)] == box._db.read(
        "SELECT state FROM _onceward_outbox"
    )


@in_pairs
def test_the_inbox_knows_its_moves(box: Postbox, was: str, then: str) -> None:
    """A plain UPDATE of a received message's state passes exactly where the table has the move."""
    in_in(box, was)
    if legal(INBOX, was, then):
        box._db.write(lambda tx: tx.run(IN_MOVE.format(then)))
    else:
        with pytest.raises((InvalidMessage, StoreCorrupt)):
            box._db.write(lambda tx: tx.run(IN_MOVE.format(then)))

    assert [(then if legal(INBOX, was, then) else was,)] == box._db.read(
        "SELECT state FROM _onceward_inbox"
    )


def test_illegal_moves_fail_in_other_programs_too(
    opened: Callable[..., Postbox], elsewhere: Callable[..., list[Any]]
) -> None:
    """The standard library's sqlite3 in another process meets the same guards, pair by pair."""
    for was in OUTBOX_STATES:
        box = opened(f"a-{was}")
        out_in(box, was)
        for then in OUTBOX_STATES:
            [_, found, _] = elsewhere(box.file.path, "BEGIN", OUT_MOVE.format(then), "ROLLBACK")
            assert legal(OUTBOX, was, then) == (found == []), (was, then, found)
    for was in INBOX_STATES:
        box = opened(f"b-{was}")
        in_in(box, was)
        for then in INBOX_STATES:
            [_, found, _] = elsewhere(box.file.path, "BEGIN", IN_MOVE.format(then), "ROLLBACK")
            assert legal(INBOX, was, then) == (found == []), (was, then, found)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE _onceward_outbox SET frame = '{}'",
        "UPDATE _onceward_outbox SET id = 'x'",
        "UPDATE _onceward_outbox SET recipient = 'c'",
        "UPDATE _onceward_outbox SET seq = 99",
        "UPDATE _onceward_outbox SET rowid = 99",
        "UPDATE _onceward_outbox SET _rowid_ = 99",
        "UPDATE _onceward_outbox SET oid = 99",
        "DELETE FROM _onceward_outbox",
        "UPDATE OR REPLACE _onceward_outbox SET state = 'acked'",
        "UPDATE _onceward_outbox SET state = 'sent'",
        "UPDATE _onceward_outbox SET ended_at = 1",
        "UPDATE _onceward_outbox SET rank = 9",
        "UPDATE _onceward_outbox SET seq = 'x'",
        "UPDATE _onceward_inbox SET frame = '{}'",
        "UPDATE _onceward_inbox SET id = 'x'",
        "UPDATE _onceward_inbox SET sender = 'x'",
        "UPDATE _onceward_inbox SET rowid = 99",
        "DELETE FROM _onceward_inbox",
        "UPDATE _onceward_inbox SET ended_at = 1",
        "UPDATE _onceward_lanes SET owner = 'x'",
        "UPDATE _onceward_lanes SET leased_seqs = '[1]'",
        "UPDATE _onceward_peers SET owner = 'x'",
        "UPDATE _onceward_peers SET in_flight_seqs = 'x'",
        "UPDATE _onceward_peers SET breaker = 'broken'",
        (
            "INSERT INTO _onceward_file_info"
            " SELECT 2, agent, file_id, durability, 1, 1, 1, NULL, 0, 1, NULL, 1, 1, '', 1, NULL,"
            " NULL, NULL, NULL, NULL FROM _onceward_file_info"
        ),
        "UPDATE _onceward_file_info SET durability = 'none'",
    ],
)
def test_rows_cannot_be_bent_by_hand(
    box: Postbox, elsewhere: Callable[..., list[Any]], sql: str
) -> None:
    """
    A stray statement cannot change or delete a promised or received message.

    It neither rewrites it nor changes half of it.
    """
    box.send("b", 1)
    box.peers.add("b", "memory:b")
    in_in(box, "pending")

    [found] = elsewhere(box.file.path, sql)

    assert isinstance(found, str), sql
    assert found.startswith("IntegrityError"), found
    assert (1, 1) == (
        box._db.read("SELECT count(*) FROM _onceward_outbox")[0][0],
        box._db.read("SELECT count(*) FROM _onceward_inbox")[0][0],
    )


NOTHING = {state: state for state in OUTBOX_STATES}


def settled(state: str, *, ends: bool = False) -> Callable[[StoreTransaction, str], object]:
    """Return the verb that takes one receipt."""
    return lambda tx, message_id: sent.settle(
        tx,
        "b",
        [Receipt(message_id, state)],  # type: ignore[arg-type]
        ask_at=9,
        stored_ends=ends,
        parcel=7,
    )


def wake_spent(tx: StoreTransaction) -> None:
    """Wake what is due, with messages that were asked about before and have no budget left."""
    tx.run("UPDATE _onceward_outbox SET attempts = 2")
    sent.requeue_due(tx, 10, lambda _: True)


VERBS: dict[str, tuple[Callable[[StoreTransaction, str], object], dict[str, str]]] = {
    "stored": (settled("stored"), {"pending": "sent"}),
    "duplicate": (settled("duplicate"), {"pending": "sent"}),
    "stored that ends": (
        settled("stored", ends=True),
        {"pending": "acked", "sent": "acked", "failed": "acked"},
    ),
    "processed": (settled("processed"), {"pending": "acked", "sent": "acked", "failed": "acked"}),
    "dead": (settled("dead"), {"pending": "failed", "sent": "failed"}),
    "dropped": (
        settled("dropped"),
        {"pending": "dropped", "sent": "dropped", "acked": "dropped"},
    ),
    "busy": (settled("busy"), {}),
    "cancel": (sent.cancel, {"pending": "cancelled"}),
    "wake": (lambda tx, _: sent.requeue_due(tx, 10, lambda _: False), {"sent": "pending"}),
    "wake without budget": (lambda tx, _: wake_spent(tx), {}),
    "resend": (
        lambda tx, _: sent.resend(tx, "b", after=0),
        {"sent": "pending", "acked": "pending", "failed": "pending"},
    ),
    "bury": (
        lambda tx, _: sent.bury(tx, [1], reason="rejected"),
        {"pending": "dead", "sent": "dead"},
    ),
}


@pytest.mark.parametrize("state", OUTBOX_STATES)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_on_every_state_of_the_outbox(box: Postbox, verb: str, state: str) -> None:
    """
    A verb moves a message where the table says and leaves it alone everywhere else.

    Counters and rows agree afterwards.
    """
    call, moves = VERBS[verb]
    message_id = out_in(box, state)

    for _ in range(2):  # receipts come twice
        box._db.write(lambda tx: call(tx, message_id))
        expected = moves.get(state, state)
        found = box._db.read(
            "SELECT state FROM _onceward_outbox UNION ALL SELECT 'dead' FROM _onceward_dead_letters"
        )
        if verb in {"resend", "wake"} and expected == "pending":
            assert [("pending",)] == found
            break
        assert [(expected,)] == found
        if moves.get(expected, expected) != expected:
            break

    assert [] == box.file.check()
    assert expected in (state, "dead") or (state, expected) in OUTBOX


@pytest.mark.parametrize("state", OUTBOX_STATES)
def test_another_peers_word_moves_nothing(box: Postbox, state: str) -> None:
    """A receipt from an agent that is not the recipient is not a receipt."""
    message_id = out_in(box, state)
    for word in ("stored", "processed", "dead"):
        box._db.write(
            lambda tx, word=word: sent.settle(  # type: ignore[misc]
                tx, "c", [Receipt(message_id, word)], ask_at=9, stored_ends=True
            )
        )

    assert ([(state,)], []) == (
        box._db.read("SELECT state FROM _onceward_outbox"),
        box.file.check(),
    )


def told(*words: tuple[str, str]) -> Callable[[StoreTransaction], object]:
    """Return the verb that takes one answer: an id and its state for each receipt."""
    receipts = [Receipt(message_id, word) for message_id, word in words]  # type: ignore[arg-type]
    return lambda tx: sent.settle(tx, "b", receipts, ask_at=9, stored_ends=False)


def test_an_answer_settles_what_receipts_before_it_have_left(box: Postbox) -> None:
    """Of two messages in a parcel, one was handled already; the answer makes the other sent."""
    first, second = box.send("b", 1), box.send("b", 2)

    def both(tx: StoreTransaction) -> None:
        told((first, "processed"))(tx)
        told((first, "stored"), (second, "stored"))(tx)

    box._db.write(both)

    assert ([(first, "acked"), (second, "sent")], []) == (
        box.query("SELECT id, state FROM onceward_outbox ORDER BY seq"),
        box.file.check(),
    )


def test_an_answer_settles_what_receipts_that_were_undone_have_named(box: Postbox) -> None:
    """Receipts that fail in a commit with an answer keep it from no message."""
    message_id = box.send("b", 1)

    def fails(tx: StoreTransaction) -> None:
        with tx.nested():
            told((message_id, "processed"))(tx)
            raise KeyError

    def both(tx: StoreTransaction) -> None:
        with suppress(KeyError):
            fails(tx)
        told((message_id, "stored"))(tx)

    box._db.write(both)

    assert ([("sent",)], []) == (box.query("SELECT state FROM onceward_outbox"), box.file.check())


def leased(box: Postbox) -> LeasedMessage:
    """Claim the one waiting message."""
    claimed = box._db.write(
        lambda tx: claim.claim(
            tx, claim.ClaimRequest(messages=1), owner="me", until=tx.now + 30_000
        )
    )
    return claimed[0][0]


@pytest.fixture
def receiver(box: Postbox) -> Postbox:
    """Return a postbox with one received message."""
    text = "{}"
    box._db.write(
        lambda tx: tx.run(
            "INSERT INTO _onceward_lanes (sender, name, rank, session, head_seq)"
            " VALUES ('b', 's', 2, 's', 1)"
        )
    )
    box._db.write(
        lambda tx: tx.run(
            ARRIVE,
            (text, digest(text)),
        )
    )
    return box


ENDINGS: list[tuple[Settlement, str | None, str | None]] = [
    (Done(), "processed", "processed"),
    (Done("dropped"), "dropped", "dropped"),
    (Done("expired"), "expired", "expired"),
    (RetryAt(5, "later"), "pending", None),
    (Dead("rejected", "why"), None, "dead"),
]


@pytest.mark.parametrize(("settlement", "state", "mark"), ENDINGS, ids=str)
def test_every_ending_of_a_lease(
    receiver: Postbox, settlement: Settlement, state: str | None, mark: str | None
) -> None:
    """
    A settlement ends the message and marks it in one commit.

    The second settlement of the same lease is refused.
    """
    held = leased(receiver)
    receiver._db.write(lambda tx: received.settle(tx, [SettledMessage(held, settlement)], {}))

    assert ([(state,)] if state else []) == receiver._db.read("SELECT state FROM _onceward_inbox")
    assert ([(mark,)] if mark else []) == receiver._db.read(
        "SELECT outcome FROM _onceward_processed_messages"
    )
    assert [] == receiver.file.check()
    with pytest.raises(LeaseLost):
        receiver._db.write(lambda tx: received.settle(tx, [SettledMessage(held, settlement)], {}))
    assert [] == receiver.file.check()


@pytest.mark.parametrize(("settlement", "state", "mark"), ENDINGS, ids=str)
def test_a_lost_lease_settles_nothing(
    receiver: Postbox, settlement: Settlement, state: str | None, mark: str | None
) -> None:
    """A worker that comes back after its lease ran out changes nothing, whatever it settles."""
    del state, mark
    late = leased(receiver)
    receiver._db.write(lambda tx: tx.run("UPDATE _onceward_lanes SET due_at = 1"))
    taken = leased(receiver)

    with pytest.raises(LeaseLost):
        receiver._db.write(lambda tx: received.settle(tx, [SettledMessage(late, settlement)], {}))

    assert (False, 2) == (
        receiver._db.write(lambda tx: lanes.extend(tx, late.lane, until=9)),
        taken.attempt,
    )
    assert ([("pending",)], [], []) == (
        receiver._db.read("SELECT state FROM _onceward_inbox"),
        receiver._db.read("SELECT * FROM _onceward_processed_messages"),
        receiver.file.check(),
    )
