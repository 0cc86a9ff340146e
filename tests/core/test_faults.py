"""Faults in COMMIT: the outcome is looked up, repeated or said to be unknown, and never guessed."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import apsw
import pytest

from onceward import Postbox
from onceward.core.deliver.transport import Features
from onceward.core.end import sent
from onceward.errors import LeaseLost, OutcomeUnknown, StoreFault
from onceward.message.parcel import Answer, Parcel, Receipt
from onceward.message.settings import Controls

Open = Callable[..., Postbox]


class Flaky(apsw.VFS):
    """
    The usual file system, on which the sync of a WAL fails as often as *failing* says.

    It logs its syncs.
    """

    def __init__(self, name: str) -> None:
        self.failing = 0
        self.synced: list[str] = []
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> "FlakyFile":  # noqa: N802 - SQLite's name
        """Open a file whose syncs are ours."""
        return FlakyFile(self, name, flags)


class FlakyFile(apsw.VFSFile):
    """A file of the flaky file system."""

    def __init__(self, vfs: Flaky, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        self._name = str(name.filename() if isinstance(name, apsw.URIFilename) else name)
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        """Sync, or fail as a disk does."""
        self._vfs.synced.append(self._name.rpartition("-")[2])
        if self._vfs.failing > 0 and self._name.endswith("-wal"):
            self._vfs.failing -= 1
            error = apsw.IOError("sync failed")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]  # the stubs do not know it
            raise error
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Flaky]:
    """Return a file system that can fail."""
    made = Flaky("onceward-flaky")
    yield made
    made.failing = 0
    made.unregister()


@pytest.fixture
def shaky(opened: Open, disk: Flaky) -> Postbox:
    """Return a postbox on that file system, with a table of the user's own."""
    box = opened(testing=Controls(vfs="onceward-flaky"))
    with box.begin() as tx:
        tx.execute("CREATE TABLE t (x)")
    return box


def test_opening_makes_a_durable_commit_before_anything_is_read(opened: Open, disk: Flaky) -> None:
    """Every opening, of a fast file too, bumps a counter in a synced commit: the open barrier."""
    first = opened(durability="fast")
    first.close()
    disk.synced.clear()

    again = opened(testing=Controls(vfs="onceward-flaky"))

    assert [(2,)] == again._db.read("SELECT opened FROM _onceward_file_info")
    assert "wal" in disk.synced
    assert "fast" == again.file.health().durability


@pytest.mark.parametrize("failures", [1, 2])
def test_a_send_whose_sync_failed_is_there_once(shaky: Postbox, disk: Flaky, failures: int) -> None:
    """
    A send that met a failing sync returns its id or says that the outcome is unknown.

    The message is never there twice.
    """
    disk.failing = failures
    try:
        message_id = shaky.send("b", 1)
    except OutcomeUnknown as error:
        [message_id] = error.message_ids
    disk.failing = 0

    again = shaky.send("b", 1, message_id=message_id)

    assert (message_id, "pending", 1, []) == (
        again,
        shaky.state(message_id),
        shaky.file.stats()["enqueued"],
        shaky.file.check(),
    )


def test_a_block_whose_sync_failed_is_unknown_and_can_be_asked(shaky: Postbox, disk: Flaky) -> None:
    """
    Writes that a user made by hand cannot be repeated for the user.

    The error names the messages, and state tells all or nothing.
    """
    disk.failing = 1
    with pytest.raises(OutcomeUnknown) as caught, shaky.begin() as tx:
        tx.execute("INSERT INTO t VALUES (1)")
        ids = (tx.send("b", 1), tx.send("c", 2))

    assert ids == caught.value.message_ids
    states = {shaky.state(each) for each in ids}
    rows = shaky._db.read("SELECT count(*) FROM t")[0][0]
    assert ({"pending"}, 1) == (states, rows) or ({"absent"}, 0) == (states, rows)
    assert [] == shaky.file.check()


def test_a_request_whose_sync_failed_names_its_id(shaky: Postbox, disk: Flaky) -> None:
    """The error of a request whose commit is unknown carries the id that it may have."""
    disk.failing = 99
    with pytest.raises(OutcomeUnknown) as caught:
        shaky.request("b", 1)
    [message_id] = caught.value.message_ids

    assert message_id == caught.value.message_id
    assert "" != caught.value.reason


def test_a_nested_rollback_takes_its_ids_from_the_error(shaky: Postbox, disk: Flaky) -> None:
    """The error names messages that may be there, not those taken back inside the block."""
    disk.failing = 1
    with pytest.raises(OutcomeUnknown) as caught, shaky.begin() as tx:
        kept = tx.send("b", 1)
        with pytest.raises(KeyError), shaky.begin() as inner:
            inner.send("b", 2)
            raise KeyError

    assert (kept,) == caught.value.message_ids


def test_a_disk_that_keeps_failing_is_reported_each_time(shaky: Postbox, disk: Flaky) -> None:
    """While syncs fail nothing is acknowledged; afterwards the file is sound and works."""
    disk.failing = 1_000
    for _ in range(3):
        with pytest.raises((OutcomeUnknown, StoreFault)):
            shaky.send("b", 1)
    disk.failing = 0

    assert "pending" == shaky.state(shaky.send("b", 2))
    assert [] == shaky.file.check()


def test_a_request_whose_sync_failed_has_its_ticket(shaky: Postbox, disk: Flaky) -> None:
    """Message and ticket are one commit, repeated or not."""
    disk.failing = 1
    ticket = shaky.request("b", 1)

    assert [(ticket.id, "open")] == shaky._db.read(
        "SELECT id, state FROM _onceward_pending_replies"
    )
    assert 1 == shaky.file.stats()["enqueued"]


@pytest.fixture
def received(opened: Open, disk: Flaky) -> Postbox:
    """Return a postbox on the flaky disk that holds one message and is open only here."""
    opened("b").close()
    sender = opened("a")
    sender.send("b", 1)
    sender.run_until_idle()
    sender.close()
    return opened("b", testing=Controls(vfs="onceward-flaky"))


@pytest.mark.parametrize(
    ("call", "state", "outcome"),
    [
        ("ack", "processed", "processed"),
        ("drop", "dropped", "dropped"),
        ("reject", None, "dead"),
        ("retry", "pending", None),
    ],
)
def test_settling_through_a_failed_sync_never_lies(
    received: Postbox, disk: Flaky, call: str, state: str | None, outcome: str | None
) -> None:
    """A settlement whose sync failed succeeds once or is unknown; never is the lease lost."""
    message = received.receive()
    assert message is not None
    disk.failing = 1
    try:
        getattr(message, call)()
    except LeaseLost:
        raise
    except OutcomeUnknown:
        pass
    disk.failing = 0

    assert ([(state,)] if state else []) == received._db.read("SELECT state FROM _onceward_inbox")
    assert ([(outcome,)] if outcome else []) == received._db.read(
        "SELECT outcome FROM _onceward_processed_messages"
    )
    assert [] == received.file.check()


def test_cancelling_through_a_failed_sync_never_lies(shaky: Postbox, disk: Flaky) -> None:
    """A withdrawal whose sync failed is not reported as impossible when it happened."""
    message_id = shaky.send("b", 1)
    disk.failing = 1
    try:
        answer = shaky.cancel(message_id)
    except OutcomeUnknown:
        return
    assert (shaky.state(message_id) == "cancelled") == bool(answer)


def test_replaying_through_a_failed_sync_never_lies(shaky: Postbox, disk: Flaky) -> None:
    """A replay whose sync failed is not reported as unknown id when it happened."""
    message_id = shaky.send("b", 1)
    shaky._db.write(lambda tx: sent.bury(tx, [1], reason="rejected"))
    disk.failing = 1
    with contextlib.suppress(OutcomeUnknown):
        shaky.dead_letters.replay(message_id)

    assert (1, []) == (
        len(shaky.history(state="pending").messages) + len(shaky.dead_letters.list()),
        shaky.file.check(),
    )


class Stored:
    """A transport to a peer that stores everything, during whose answer the sender's disk fails."""

    features = Features(schemes=frozenset({"stored"}))

    def __init__(self, disk: Flaky, failures: int) -> None:
        self._disk, self._failures = disk, failures
        self.numbers: list[int] = []

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Store."""
        del url
        self.numbers.append(parcel.number)
        self._disk.failing, self._failures = self._failures, 0
        return Answer(
            verdict="accepted", receipts=tuple(Receipt(each.id, "stored") for each in parcel.frames)
        )

    def close(self) -> None:
        """Nothing to close."""


def test_settling_a_parcel_through_a_failed_sync_skips_no_number(opened: Open, disk: Flaky) -> None:
    """A stream's numbers stay without gaps when the commit that settles a parcel is repeated."""
    peer = Stored(disk, 1)
    box = opened(testing=Controls(vfs="onceward-flaky"), transports={"stored": peer})
    box.peers.add("b", "stored:b")
    ids = [box.send("b", k) for k in range(2)]
    for _ in range(3):
        try:
            box.run_until_idle()
        except (OutcomeUnknown, LeaseLost):
            continue
    box.send("b", 3)
    box.run_until_idle()

    assert sorted(set(peer.numbers)) == list(range(1, max(peer.numbers) + 1))
    assert ({"sent"}, []) == ({box.state(each) for each in ids}, box.file.check())


def test_the_fault_names_no_certainty_that_it_does_not_have(shaky: Postbox, disk: Flaky) -> None:
    """An unknown outcome does not claim in the same breath that nothing was written."""
    disk.failing = 1
    with pytest.raises(OutcomeUnknown) as caught, shaky.begin() as tx:
        tx.send("b", 1)

    assert "nothing was written" not in str(caught.value)
