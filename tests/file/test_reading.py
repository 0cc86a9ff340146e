"""Connections of a file that is read: the writer's while no thread writes, else a second one."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from threading import Event, Thread

import apsw
from tests.interrupts import interrupted

from onceward import Postbox
from onceward.file import database, group_commit, readers

Open = Callable[..., Postbox]
ROOMS = {str(database.__file__), str(group_commit.__file__)}
CHANGE = "UPDATE _onceward_file_info SET opened = opened + 1"
COUNT = "SELECT count(*) FROM onceward_outbox"


@contextmanager
def written(box: Postbox) -> Iterator[None]:
    """Let another thread send in a block that lasts as long as this one."""
    begun, end = Event(), Event()

    def hold() -> None:
        with box.begin() as tx:
            tx.send("b", 1)
            begun.set()
            end.wait()

    holder = Thread(target=hold, daemon=True)
    holder.start()
    begun.wait()
    yield
    end.set()
    holder.join()


def test_a_file_that_no_thread_writes_has_one_connection(opened: Open) -> None:
    """Sending, delivering and maintenance by one thread read where they write."""
    box = opened()
    box.send("a", 1)
    box.run_until_idle()
    box.file.run_maintenance()

    assert (box._db._con, None) == box._db.connections()


def test_a_read_beside_a_writer_sees_what_is_committed(opened: Open) -> None:
    """A second connection serves it, and all reads from then on; none waits for the block."""
    box = opened()
    box.send("b", 0)
    with written(box):
        during = box._db.read(COUNT)
        second = box._db._reader
    after = box._db.read(COUNT)

    assert ([(1,)], [(2,)]) == (during, after)
    assert second is box._db._reader is not None


def test_the_second_connection_is_closed_when_no_read_needs_it(opened: Open) -> None:
    """Maintenance closes it once no read has met a writer for a while, however much is read."""
    box = opened()
    with written(box):
        box._db.read(COUNT)
    box._db.read(COUNT)
    box._db.close_idle()
    kept = box._db._reader
    box._db._reader_needed_at -= readers.IDLE
    box._db.read(COUNT)
    box.file.run_maintenance()

    assert kept is not None
    assert (None, [(1,)]) == (box._db._reader, box._db.read(COUNT))


def test_the_version_differs_on_a_second_connection_after_another(opened: Open) -> None:
    """A commit of another process is noticed, although each connection counts from the start."""
    box = opened()
    db, seen = box._db, list[int]()
    for _ in range(2):
        db._open_reader()
        seen.append(db.version())
        db._reader_needed_at = -math.inf
        db.close_idle()
        with closing(apsw.Connection(str(box.file.path))) as other:
            other.execute("UPDATE _onceward_file_info SET opened = opened + 1")

    assert 2 == len(set(seen))


def test_the_version_moves_with_each_commit_on_either_connection(opened: Open) -> None:
    """A commit of ours is noticed while the second connection comes and goes, none in vain."""
    db = opened()._db
    seen = list[int]()

    def commit(times: int) -> None:
        for _ in range(times):
            db.write(lambda tx: tx.run(CHANGE))
            seen.extend((db.version(), db.version()))

    commit(1)
    db._open_reader()
    commit(40)  # it counts what the other one counted before it
    db._reader_needed_at -= readers.IDLE
    db.close_idle()
    commit(1)

    assert seen[::2] == seen[1::2]
    assert 42 == len(set(seen))


def test_a_stored_time_is_no_news(opened: Open) -> None:
    """Maintenance stores the file's time once a minute, which wakes no engine."""
    db = opened()._db
    before = db.version()
    db.time.persist_after = 0  # a transaction stores it also when that is due
    db.persist_clock()

    assert before == db.version()


def test_an_interrupted_read_leaves_the_turn_to_the_next_writer(opened: Open) -> None:
    """Wherever the interrupt comes, the next message is stored and read at once."""
    box = opened(durability="fast", busy_timeout=1.0)
    nth, hit = 0, ["start"]
    while hit:
        nth += 1
        with (
            interrupted(nth, KeyboardInterrupt, when=lambda: True, rooms=ROOMS) as hit,
            suppress(KeyboardInterrupt),
        ):
            box._db.read(COUNT)
        box.send("b", nth)

        assert [(nth,)] == box._db.read(COUNT), hit
    assert nth > 5


def test_an_interrupted_query_leaves_no_old_snapshot(opened: Open) -> None:
    """The next one sees later commits, although the interrupt, as in a debugger, is kept."""
    box, kept = opened(), list[BaseException]()
    for nth in count(1):
        with interrupted(nth, KeyboardInterrupt, when=lambda: True, rooms=ROOMS) as hit:
            try:
                box.query(COUNT)
            except KeyboardInterrupt as error:
                kept.append(error)
        if not hit:
            break
        box.send("b", nth)
        assert (hit, [(nth,)]) == (hit, box.query(COUNT))

    assert len(kept) > 5
