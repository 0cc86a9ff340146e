"""Statements: an operation's cost depends neither on the machine nor on the messages it moves."""

from collections.abc import Callable
from typing import Any

import apsw
import pytest

from onceward import Postbox
from onceward.core.end import received
from onceward.core.end.received import SettledMessage
from onceward.core.handle import claim
from onceward.core.maintenance import drop_ephemeral
from onceward.errors import OutboxLimit
from onceward.file.transaction import ROWS_PER_INSERT, listed
from onceward.message.vocabulary import Done

Open = Callable[..., Postbox]


class Counted:
    """Counts the statements of a postbox's transactions; reads have a connection of their own."""

    def __init__(self, box: Postbox, *, every: bool = False) -> None:
        self._con, self._every = box._db._con, every
        with box._db._reading:  # an engine may be about to open one, which would replace it
            if box._db._reader is None:
                box._db._open_reader()
        self.seen: list[str] = []
        assert self._con is not None
        self._con.exec_trace = self._trace

    def _trace(self, _: object, sql: str, __: object) -> bool:
        self.seen.append(" ".join(sql.split()))
        return True

    def take(self) -> list[str]:
        """Return the statements since the last look; unless *every* counts, no BEGIN and COMMIT."""
        found, self.seen = self.seen, []
        if self._every:
            return found
        return [sql for sql in found if sql not in {"BEGIN IMMEDIATE", "COMMIT"}]


def test_a_send_is_one_insert(box: Postbox) -> None:
    """A plain send is one statement between BEGIN and COMMIT, on its own and inside a block."""
    box.send("b", 0)
    counted = Counted(box)
    box.send("b", 1)
    assert ["INSERT INTO _onceward_outbox"] == [sql[:28] for sql in counted.take()]
    with box.begin() as tx:
        tx.send("b", 2)
        tx.send("c", 3)
    assert ["INSERT INTO _onceward_outbox"] * 2 == [sql[:28] for sql in counted.take()]


def test_a_send_under_a_key_looks_once(box: Postbox) -> None:
    """A key costs one look into the dead letters."""
    box.send("b", 0)  # the first message reads whether the file has limits
    counted = Counted(box)
    box.send("b", 1, key="k")

    assert ["SELECT id FROM _onceward_dea", "INSERT INTO _onceward_outbox"] == [
        sql[:28] for sql in counted.take()
    ]


def dispatched(opened: Open, count: int) -> tuple[int, int, int]:
    """
    Return how many statements a push of so many messages costs.

    They are those of the sender, of the recipient and of the recipient's settling.
    """
    names = f"s{count}", f"r{count}"
    receiver, sender = opened(names[1]), opened(names[0])
    sender.send_many([(names[1], k) for k in range(count)])
    ours, theirs = Counted(sender), Counted(receiver)
    sender.run_until_idle()
    costs = len(ours.take()), len(theirs.take())
    claimed = receiver._db.write(lambda tx: _claim(tx, count))
    theirs.take()
    receiver._db.write(lambda tx: _settle(tx, claimed))
    settled = len(theirs.take())
    assert (0, count, []) == (
        sender.file.stats()["pending"],
        receiver.file.stats()["processed"],
        sender.file.check() + receiver.file.check(),
    )
    return *costs, settled


def _claim(tx: Any, count: int) -> Any:
    return claim.claim(tx, claim.ClaimRequest(messages=count), owner="me", until=tx.now + 30_000)


def _settle(tx: Any, claimed: Any) -> None:
    received.settle(tx, [SettledMessage(each, Done()) for lane in claimed for each in lane], {})


def test_an_opening_without_ephemeral_messages_only_looks_for_them(box: Postbox) -> None:
    """Dropping none costs no changing statement, which each open file would keep prepared."""
    counted = Counted(box)
    box._db.write(lambda tx: drop_ephemeral(tx, after=0, limit=10))

    assert ["SELECT"] * 2 == [sql[:6] for sql in counted.take()]


def test_a_long_message_is_ended_in_place(opened: Open) -> None:
    """Ending a message does not write its frame again: its row keeps its size."""
    receiver, sender = opened("r"), opened("s")
    sender.send("r", "x" * 400_000)
    sender.run_until_idle()
    claimed = receiver._db.write(lambda tx: _claim(tx, 1))
    con = receiver._db._con
    assert con is not None
    con.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)
    receiver._db.write(lambda tx: _settle(tx, claimed))
    pages, _ = con.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)

    assert 12 >= pages, pages


def test_a_hundred_messages_cost_as_many_statements_as_twenty(opened: Open) -> None:
    """
    Packing, accepting and settling are set-based: statements do not grow with the messages.

    The exception is one statement per bunch of rows kept.
    """
    twenty, hundred = dispatched(opened, ROWS_PER_INSERT), dispatched(opened, 5 * ROWS_PER_INSERT)

    assert twenty[0] == hundred[0] <= 12
    assert twenty[1] + 4 == hundred[1]
    assert twenty[2] == hundred[2] <= 8


@pytest.mark.parametrize(
    "count",
    [0, 1, ROWS_PER_INSERT - 1, ROWS_PER_INSERT, ROWS_PER_INSERT + 1, 2 * ROWS_PER_INSERT + 5],
)
def test_rows_of_any_number_are_inserted_in_order(box: Postbox, count: int) -> None:
    """Bunches and the rest keep the order of the given rows, which is the order of the lane."""
    bodies = [f"message {k}" for k in range(count)]
    ids = box.send_many([("b", body) for body in bodies])

    assert ids == [id_ for (id_,) in box._db.read("SELECT id FROM _onceward_outbox ORDER BY seq")]
    assert bodies == [
        body
        for (body,) in box._db.read("SELECT frame ->> '$.data' FROM _onceward_outbox ORDER BY seq")
    ]


def test_a_row_that_is_refused_takes_its_bunch_along(opened: Open) -> None:
    """Where a limit refuses the middle one of many, none is there, and earlier messages stay."""
    box = opened("narrow", max_pending=2 * ROWS_PER_INSERT)
    box.send("b", "before")

    with pytest.raises(OutboxLimit):
        box.send_many([("b", k) for k in range(2 * ROWS_PER_INSERT)])

    assert [("before",)] == box._db.read("SELECT frame ->> '$.data' FROM _onceward_outbox")


@pytest.mark.parametrize("found", ["", "NOT "])
@pytest.mark.parametrize("values", [["m2"], ["m2", "m3"], []])
def test_one_value_is_compared_and_others_are_listed(
    box: Postbox, found: str, values: list[str]
) -> None:
    """A statement finds the same rows whether its list is bound as one value or as JSON."""
    ids = [box.send("b", k, message_id=f"m{k}") for k in range(5)]
    sql = f"SELECT id FROM _onceward_outbox WHERE id {found}IN (SELECT value FROM json_each(?))"
    statement, bound = listed(values, sql)

    assert (len(values) == 1) == ("json_each" not in statement)
    assert [each for each in ids if (each in values) != bool(found)] == [
        message_id for (message_id,) in box._db.read(f"{statement} ORDER BY seq", (bound,))
    ]


def test_a_message_to_oneself_takes_few_statements(box: Postbox) -> None:
    """
    Sending, receiving and acknowledging one is 21 statements, and none of them opens a list.

    Its lane is known, so it is read and not written again.
    """
    box._db.writer.packer = box._dispatcher._deliveries._packing
    counted = Counted(box, every=True)
    for _ in range(2):
        counted.take()
        box.send("a", 1)
        message = box.receive()
        assert message is not None
        message.ack()
    seen = counted.take()

    assert [] == [sql for sql in seen if "json_each" in sql or "INTO _onceward_lanes" in sql]
    assert 21 == len(seen), seen
