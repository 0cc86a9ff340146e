"""Waiting for notifications: none is lost, and what each one costs however many wait."""

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from unittest.mock import patch

import pytest

from onceward import Postbox
from onceward.core.run.async_bridge import AsyncWaiter
from onceward.file import notify, open_files
from onceward.file.database import Database
from onceward.file.notify import Notifier
from onceward.file.waiter import ONE, Waiter

LIMIT = 30.0
"""Seconds that a test waits for what happens at once."""
MANY = 50
DAY = 86_400.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Return an open file without engines."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        yield box._db


def waiting(waiter: Waiter, seconds: float | None) -> tuple[Thread, list[object]]:
    """Wait on a thread; return it once it waits, and where it puts its outcome."""
    found: list[object] = []

    def wait() -> None:
        try:
            found.append(waiter.wait(seconds))
        except Exception as error:  # noqa: BLE001 - the test compares it
            found.append(error)

    thread = Thread(target=wait, daemon=True)
    thread.start()
    pause = Event()
    while not (waiter._waits or found):
        pause.wait(0.001)
    return thread, found


def test_a_flag_that_another_thread_clears_still_ends_the_wait(db: Database) -> None:
    """A loop that was notified looks, although a caller saw and cleared its flag first."""
    waiter = db.waiter("in", 0)
    thread, found = waiting(waiter, None)
    with waiter._lock:  # the thread that waits goes on after that only
        waiter._flag.set()
        os.write(waiter._wakeup[1], ONE)  # type: ignore[index]
        waiter._flag.clear()
    thread.join(LIMIT)

    assert [True] == found
    waiter.close()


def test_a_wait_may_take_longer_than_the_system_allows_at_once(db: Database) -> None:
    """A time-out of many days is one: the system counts milliseconds in 31 bits."""
    waiter = db.waiter("in", 0)
    thread, found = waiting(waiter, 40 * DAY)
    waiter.set()
    thread.join(LIMIT)

    assert [True] == found
    waiter.close()


def test_waits_that_are_over_delay_no_look_of_the_others(db: Database) -> None:
    """Where no notification arrives, the file is asked in time after many have left at once."""
    others = [db.waiter("in", 0.1) for _ in range(MANY)]
    last = db.waiter("in", 0.1)
    for each in others:
        each.close()

    assert last._poll_at <= time.monotonic() + 1.0
    last.close()


def test_a_process_with_many_files_asks_each_less_often(db: Database) -> None:
    """A look wakes a thread: a hundred files cost no more looks a second than ten."""

    def pause(files: int, wanted: float) -> float:
        opened = {((0, number), ""): db for number in range(files)}
        with patch.dict(open_files.files, opened, clear=True):
            return db.notifier.next_poll(wanted) - time.monotonic()

    few, many, slow = pause(1, 0.1), pause(50, 0.1), pause(50, DAY)

    assert [True, True, True] == [few <= 0.1, 0.4 < many <= 0.6, 1.0 < slow <= DAY]


def test_the_first_look_tells_of_what_was_committed_before_it(db: Database) -> None:
    """A commit between a reading of the file and the first look at its version wakes readers."""
    told: list[int] = []
    db.notifier.listen("out", lambda: told.append(1))
    for _ in range(2):
        db.notifier.look(lambda: 7)

    assert [1] == told


def test_of_two_that_are_due_at_once_one_asks_the_file(db: Database) -> None:
    """Waits beyond those that can take turns cost no look of their own."""
    assert [True, False] == [db.notifier.is_due(DAY) for _ in range(2)]


def test_a_notification_tells_each_thread_once(db: Database) -> None:
    """Of many threads that see the same datagram, the one that reads it tells all."""
    told: list[int] = []
    db.notifier.listen("in", lambda: told.append(1))
    waiters = [db.waiter("in", 0) for _ in range(8)]
    threads = [waiting(each, LIMIT)[0] for each in waiters]
    Notifier(db.path).notify("in")
    for thread in threads:
        thread.join(LIMIT)

    assert [1] == told
    for each in waiters:
        each.close()


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(list(Path("/dev/fd").iterdir()))


def test_many_tasks_share_one_reader(db: Database) -> None:
    """A notification is read once for all tasks of a loop, which have one descriptor together."""
    told: list[int] = []
    db.notifier.listen("in", lambda: told.append(1))

    async def call(work: Callable[[], None]) -> None:
        work()

    async def main() -> tuple[int, int]:
        before = descriptors()
        waiters = [AsyncWaiter(db, "in", poll=0, call=call) for _ in range(MANY)]
        during = descriptors()
        waits = [asyncio.create_task(each.wait(LIMIT)) for each in waiters]
        await asyncio.sleep(0)
        Notifier(db.path).notify("in")
        await asyncio.gather(*waits)
        for each in waiters:
            each.close()
        return during - before, descriptors() - before

    assert ((1, 0), [1]) == (asyncio.run(main()), told)


def test_a_socket_that_was_bound_at_the_time_of_the_last_listing_is_found(db: Database) -> None:
    """The folder's time has the grain of the kernel's clock: two changes may bear the same one."""
    sender = Notifier(db.path)
    folder = sender._folder
    assert folder is not None
    before = db.waiter("out", 0)
    at = time.time_ns() + 10**10  # a listing of a folder that has just changed, on any machine
    os.utime(folder, ns=(at, at))
    sender.notify("in")
    late = db.waiter("in", 0)
    os.utime(folder, ns=(at, at))
    sender.notify("in")

    assert late.wait(LIMIT)
    for each in (before, late):
        each.close()


@pytest.mark.parametrize(
    ("number", "kept"),
    [
        (errno.ENOBUFS, True),
        (errno.ENOMEM, True),
        (errno.EAGAIN, True),
        (errno.ECONNREFUSED, False),
        (errno.ENOENT, False),
    ],
)
def test_only_the_socket_of_a_dead_process_is_removed(
    tmp_path: Path, number: int, kept: bool
) -> None:
    """A datagram that the system had no memory for leaves the socket of a live process there."""
    name = tmp_path / "1-abc.in"
    name.touch()

    class Refusing:
        def sendto(self, _: bytes, to: str) -> None:
            raise OSError(number, os.strerror(number), to)

    with patch.object(notify, "_sender", return_value=Refusing()):
        notify._send([str(name)])

    assert kept == name.exists()
