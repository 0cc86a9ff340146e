"""Writes that wait for a commit which another thread makes anyway."""

from collections.abc import Callable
from functools import partial
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import pytest
from tests.core.conftest import Open
from tests.file.commits import commits

from onceward import Postbox
from onceward.errors import StoreClosed
from onceward.file.transaction import StoreTransaction

NOTE = "INSERT INTO note VALUES (?)"
LONG = 3600.0


@pytest.fixture
def noted(box: Postbox) -> Callable[[], list[int]]:
    """Return what reads the numbers that were committed to a table of the test."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE note (n INTEGER PRIMARY KEY)")
    return lambda: [n for (n,) in box.query("SELECT n FROM note ORDER BY n")]


def _note(n: int, tx: StoreTransaction) -> int:
    return tx.run(NOTE, (n,))


class Patient:
    """A thread whose write waits for the commit of another one."""

    def __init__(self, box: Postbox, work: Callable[[StoreTransaction], object]) -> None:
        self.outcome: Any = None
        self.waits = Event()
        self._box, self._work = box, work
        self._thread = Thread(target=self._write)
        self._thread.start()
        assert self.waits.wait(60)

    def _asked(self) -> bool:
        self.waits.set()
        return False

    def _write(self) -> None:
        try:
            self.outcome = self._box._db.write_with_next(self._work, LONG, unless=self._asked)
        except Exception as error:  # noqa: BLE001 - the outcome under test
            self.outcome = error

    def end(self) -> Any:
        """Return what the write returned or raised."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.outcome


def test_a_patient_write_is_committed_with_the_next_one(
    box: Postbox, noted: Callable[[], list[int]]
) -> None:
    """Both are one commit, whether that is a block, a send or a write of the library."""
    others: list[Callable[[], object]] = [
        lambda: box.send("b", 1),
        lambda: box.send_many([("b", 2), ("b", 3)]),
        lambda: box._db.write(lambda tx: tx.run(NOTE, (100,))),
    ]
    for n, other in enumerate(others):
        patient = Patient(box, partial(_note, n))
        count = commits(box)
        other()

        assert (1, 1) == (patient.end(), count())
    assert [0, 1, 2, 100] == noted()


def test_it_is_committed_with_a_block_of_the_user(
    box: Postbox, noted: Callable[[], list[int]]
) -> None:
    """The block's own error rolls back the block alone: the patient write goes on waiting."""
    patient = Patient(box, lambda tx: tx.run(NOTE, (1,)))
    message = "mine"
    with pytest.raises(KeyError, match=message), box.begin() as tx:
        tx.execute(NOTE, (7,))
        raise KeyError(message)

    assert [] == noted()
    with box.begin() as tx:
        tx.execute(NOTE, (8,))
    assert (1, [1, 8]) == (patient.end(), noted())


def test_each_keeps_its_own_outcome(box: Postbox, noted: Callable[[], list[int]]) -> None:
    """A patient write that fails harms the commit that took it along by nothing, and is told."""

    def bad(tx: StoreTransaction) -> None:
        tx.run(NOTE, (1,))
        message = "mine"
        raise KeyError(message)

    patient = Patient(box, bad)
    with box.begin() as tx:
        tx.execute(NOTE, (2,))

    assert (KeyError, [2]) == (type(patient.end()), noted())


def test_without_another_commit_it_is_committed_alone(
    box: Postbox, noted: Callable[[], list[int]]
) -> None:
    """After its time, at once where there is a reason, and when it is told to hurry."""
    box._db.write_with_next(lambda tx: tx.run(NOTE, (1,)), 0.0)
    box._db.write_with_next(lambda tx: tx.run(NOTE, (2,)), LONG, unless=lambda: True)
    patient = Patient(box, lambda tx: tx.run(NOTE, (3,)))
    box._db.writer.queue.hurry()

    assert (1, [1, 2, 3]) == (patient.end(), noted())


def test_a_closed_file_refuses_it(box: Postbox) -> None:
    """What still waits when the last turn is over is refused at once, and nothing is run."""
    ran: list[object] = []
    patient = Patient(box, ran.append)
    box._db.writer.queue.close(60.0)

    assert (StoreClosed, []) == (type(patient.end()), ran)


def test_it_does_not_wait_for_a_commit_of_a_closed_file(box: Postbox) -> None:
    """A file that is closed between the first look and the wait refuses the write at once too."""
    queue, ran = box._db.writer.queue, list[object]()
    look = queue.check

    def check() -> None:
        look()
        queue.closed = True

    with pytest.raises(StoreClosed), patch.object(queue, "check", check):
        box._db.write_with_next(ran.append, LONG)

    assert [] == ran


def test_closing_the_postbox_ends_the_wait(
    opened: Open, box: Postbox, noted: Callable[[], list[int]]
) -> None:
    """The write is committed before the file is closed, or refused; its outcome says which."""
    assert [] == noted()
    patient = Patient(box, partial(_note, 1))
    box.close()

    told = patient.end()
    kept = [n for (n,) in opened().query("SELECT n FROM note")]
    assert ([1] if told == 1 else []) == kept
    assert told == 1 or isinstance(told, StoreClosed)
