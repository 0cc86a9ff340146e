"""What flipped bits found once: each of these was a bug of ours."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import apsw
import pytest

from onceward import Postbox, Tuning
from onceward.errors import StoreCorrupt

STALE = "SELECT seq, state, attempts FROM _onceward_outbox WHERE ? AND state = 'sent' LIMIT ?"
SPOIL = (
    "DROP TRIGGER _onceward_outbox_frame_guard; "
    "UPDATE _onceward_outbox SET frame = replace(frame, 'one', 'two')"
)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """Return a postbox with one message to a neighbour, whose parcels hold one each."""
    Postbox(tmp_path / "b.db", agent="b", start=False).close()
    with Postbox(
        tmp_path / "a.db", agent="a", start=False, tuning=Tuning(parcel_max_messages=1)
    ) as made:
        made.send("b", "one")
        yield made


def test_a_row_that_is_offered_again_and_again(box: Postbox) -> None:
    """A set-aside row that a damaged index brings back ends the delivery, told at its peer."""
    box._db.write(lambda tx: tx.rows(SPOIL))

    with patch("onceward.core.end.sent.bury", lambda *_, **__: []):
        box.run_until_idle()
    assert "index is damaged" in str(box.peers.list()[0].last_error)
    box._db.write(
        lambda tx: tx.rows("UPDATE _onceward_outbox SET frame = replace(frame, 'two', 'one')")
    )


def test_a_row_that_only_an_index_calls_due(box: Postbox) -> None:
    """
    A message whose date has not come is not asked about, whatever a damaged index says.

    Or it would be pushed without a pause.
    """
    box.run_until_idle()
    pushed = box.peers.list()[0].number

    with patch("onceward.core.rows.outbox.DUE", STALE):
        box._db.write(lambda tx: tx.run("UPDATE _onceward_outbox SET due_at = due_at + 1"))
        box.run_until_idle()

    assert pushed == box.peers.list()[0].number
    assert 1 == box.file.stats()["sent"]


@pytest.mark.broken("the state of a row changed under its index")
def test_a_row_that_only_an_index_calls_pending(tmp_path: Path, box: Postbox) -> None:
    """A message that its peer has and whose row no answer can move is not pushed in a loop."""
    box.close()
    path = tmp_path / "a.db"
    spoilt = path.read_bytes().replace(b"\x02pending", b"\x02pendinf")
    assert spoilt != path.read_bytes()
    path.write_bytes(spoilt)

    with Postbox(path, agent="a", start=False) as again:
        again.run_until_idle()
        [peer] = again.peers.list()

    assert 1 == peer.number
    assert "no message of an answered parcel could be settled" in (peer.last_error or "")


def test_a_schema_that_is_not_what_it_was(tmp_path: Path, box: Postbox) -> None:
    """
    A letter of the schema that changed makes our own statements fail.

    That is a damaged file, not a stranger's error.
    """
    box.close()
    path = tmp_path / "a.db"
    whole = path.read_bytes()
    assert b"    agent TEXT" in whole
    path.write_bytes(whole.replace(b"    agent TEXT", b"    agenu TEXT"))

    with pytest.raises(StoreCorrupt, match="schema was altered"):
        Postbox(path, agent="a", start=False)


@pytest.mark.broken("a letter of its schema changed")
def test_a_default_that_is_not_what_it_was(tmp_path: Path, box: Postbox) -> None:
    """A row of ours that our own table refuses means a damaged file, for one message and many."""
    box.close()
    path = tmp_path / "a.db"
    path.write_bytes(path.read_bytes().replace(b"DEFAULT 'pending'", b"DEFAULT 'pendinf'"))

    with Postbox(path, agent="a", start=False, hold_unknown=True) as spoilt:
        with pytest.raises(StoreCorrupt, match="schema was altered"):
            spoilt.send("b", 1)
        with pytest.raises(StoreCorrupt, match="schema was altered"):
            spoilt.send_many([("b", 1), ("b", 2)])


@pytest.mark.broken("a letter of its schema changed")
def test_a_check_that_is_not_what_it_was(tmp_path: Path, box: Postbox) -> None:
    """
    The same for a row that an engine moves.

    Its file is damaged, and the peer that the row is for is told to have met that.
    """
    box.close()
    path = tmp_path / "a.db"
    path.write_bytes(
        path.read_bytes().replace(
            b"state = 'sent' OR state = 'acked'", b"state = 'rent' OR state = 'acked'"
        )
    )

    with Postbox(path, agent="a", start=False) as spoilt:
        spoilt.run_until_idle()
        assert "schema was altered" in str(spoilt.peers.list()[0].last_error)


@pytest.mark.parametrize("name", ["HEADS", "FRAMES", "INVARIANTS"])
def test_what_cannot_be_read_is_an_offender(box: Postbox, name: str) -> None:
    """
    A rule whose statement the damaged schema does not understand any more is told as broken.

    The others are asked all the same.
    """
    spoilt = "SELECT nothing FROM _onceward_outbox"
    ruled = {"S8": ("the frame is what was written", spoilt)}
    with patch(f"onceward.features.checks.invariants.{name}", spoilt if name == "HEADS" else ruled):
        assert ["unreadable"] == [found.offender.partition(":")[0] for found in box.file.check()]


def test_a_users_own_mistake_stays_the_users(box: Postbox) -> None:
    """SQLite's error about the user's own statement or row is passed on as it is."""
    with pytest.raises(apsw.SQLError), box.begin() as tx:
        tx.execute("SELECT nothing FROM nowhere")
    with pytest.raises(apsw.ConstraintError), box.begin() as tx:
        tx.execute("CREATE TABLE own (x CHECK (x > 0))")
        tx.execute("INSERT INTO own VALUES (0)")


def test_a_value_of_another_type_is_a_damaged_file(box: Postbox) -> None:
    """A value that a column's type refuses when an engine moves its row is not a foreign error."""
    with pytest.raises(StoreCorrupt, match="cannot store BLOB value in INTEGER column"):
        box._db.write(lambda tx: tx.run("UPDATE _onceward_outbox SET replays = x'01'"))
