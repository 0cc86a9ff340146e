"""Files that nothing uses for long have no connection; any use opens them again."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Final

import apsw
import pytest
from tests.children import PYTHON, Child
from tests.file.test_last_seen import is_restored
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.errors import StoreCorrupt
from onceward.file import notify
from onceward.file.database import SLEEPS, Database
from onceward.file.transaction import StoreTransaction

Open = Callable[..., Postbox]
BESIDE: Final = ("", "-wal", "-shm")


def look_until_asleep(db: Database) -> bool:
    """Look as often as a file needs that nothing uses; return whether it sleeps."""
    for _ in range(SLEEPS):
        db.rest_if_quiet()
    return db._con is None


def descriptors(path: Path) -> list[str]:
    """Return the files of a database of which this process has a descriptor."""
    names = {str(path) + end for end in BESIDE}
    held = Path("/proc/self/fd").iterdir()
    return [target for each in held if (target := os.path.realpath(each)) in names]


def change(tx: StoreTransaction) -> None:
    """Change a row."""
    tx.run("UPDATE _onceward_file_info SET opened = opened + 1")


def test_a_sleeping_file_has_no_connection(opened: Open) -> None:
    """It leaves no WAL and no descriptor of the database; the next send opens it."""
    box = opened()
    box.send(box.agent, 1)
    box.query("SELECT 1 FROM onceward_outbox")
    before = len(descriptors(box._db.path))
    asleep = look_until_asleep(box._db)
    left = (
        descriptors(box._db.path),
        [end for end in BESIDE if Path(f"{box._db.path}{end}").exists()],
    )
    box.send(box.agent, 2)

    assert (True, True, ([], [""])) == (before > 0, asleep, left)
    assert [(2,)] == box._db.read("SELECT count(*) FROM onceward_outbox")


@pytest.mark.parametrize("use", ["read", "query", "write", "version", "begin", "open", "health"])
def test_any_use_wakes_it(opened: Open, use: str) -> None:
    """A use needs no other call before it."""
    box = opened()
    box.send(box.agent, 1)
    asleep = look_until_asleep(box._db)
    counted = "SELECT count(*) FROM onceward_outbox"
    found: object = 1
    match use:
        case "read":
            [(found,)] = box._db.read(counted)
        case "query":
            [(found,)] = box.query(counted)
        case "write":
            box._db.write(change)
        case "version":
            box._db.version()
        case "begin":
            with box.begin() as tx:
                [(found,)] = tx.execute(counted)
        case "open":
            with Postbox(box._db.path, start=False) as again:
                [(found,)] = again.query(counted)
        case _:
            found = box.file.health().behind_barrier

    assert (True, 1) == (asleep, found)


def test_a_file_in_use_does_not_sleep(opened: Open) -> None:
    """A transaction, a query, a temporary table and Litestream's folder keep it open."""
    box = opened()
    box.send(box.agent, 1)
    with box.begin() as tx:
        tx.send(box.agent, 2)
        seen = [look_until_asleep(box._db)]
    with box._db.readers.lend(1.0):
        seen.append(look_until_asleep(box._db))
    box._db.write(lambda tx: tx.run("CREATE TEMP TABLE mine (x)"))
    seen.append(look_until_asleep(box._db))
    box._db.write(lambda tx: tx.run("DROP TABLE temp.mine"))
    folder = box._db.path.parent / f".{box._db.path.name}-litestream"
    folder.mkdir()
    seen.append(look_until_asleep(box._db))
    folder.rmdir()

    assert ([False] * 4, True) == (seen, look_until_asleep(box._db))


def test_its_version_changes_with_the_file_only(opened: Open) -> None:
    """No engine is woken because it sleeps; a commit of another connection is news."""
    db = opened()._db
    heard = list[str]()
    stop = db.notifier.listen("in", lambda: heard.append("in"))
    db.notifier.begin(db.version_if_open)
    look_until_asleep(db)
    for _ in range(3):
        db.notifier.look(db.version_if_open)
    before = heard.copy()
    other = apsw.Connection(str(db.path))
    other.execute("UPDATE _onceward_file_info SET opened = opened + 1")
    other.close()
    db.notifier.look(db.version_if_open)
    stop()

    assert ([], ["in"], None) == (before, heard, db._con)


SENDS: Final = """
import sys
from onceward import Postbox
with Postbox(sys.argv[1], agent="sender") as box:
    box.send("worker", 1)
    box.flush()
"""


@pytest.mark.parametrize("datagrams", [True, False])
def test_a_message_of_another_process_wakes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, datagrams: bool
) -> None:
    """Its worker handles it, also where only a check of the file finds it."""
    if not datagrams:
        monkeypatch.setattr(notify.Notifier, "_heard", lambda *_: None)
    agent, handled = Agent("worker"), Semaphore(0)
    agent.on("json")(lambda _: handled.release())
    with Postbox(tmp_path / "worker.db", agent=agent) as box:
        until(lambda: look_until_asleep(box._db))
        with Child([*PYTHON, "-c", SENDS, tmp_path / "sender.db"], "stdout", "stderr") as sender:
            assert ("", "") == sender.ended()
        assert handled.acquire(timeout=60)


DIES: Final = """
import os, signal, sys
from onceward import Postbox
from onceward.file.database import SLEEPS
box = Postbox(sys.argv[1], agent="shop", start=False)
box.send("shop", 1)
for _ in range(SLEEPS):
    box._db.rest_if_quiet()
assert box._db._con is None
if sys.argv[2] == "awake":
    box.send("shop", 2)
    box._db.checkpoint(truncate=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("state", ["asleep", "awake"])
def test_a_kill_leaves_a_file_that_was_not_restored(tmp_path: Path, state: str) -> None:
    """The note beside it says how it was left, whether it slept or had woken."""
    path = tmp_path / "shop.db"
    with Child([*PYTHON, "-c", DIES, path, state], "stdout", "stderr") as child:
        child.ended()

    assert (-signal.SIGKILL, False) == (child.returncode, is_restored(path))


def test_a_backup_in_its_place_is_noticed_when_it_wakes(opened: Open) -> None:
    """Older contents in the same file greet its peers; another file is refused."""
    box = opened()
    box.send(box.agent, 1)
    look_until_asleep(box._db)
    backup = box._db.path.with_name("backup")
    shutil.copyfile(box._db.path, backup)
    box.send(box.agent, 2)
    look_until_asleep(box._db)
    shutil.copyfile(backup, box._db.path)
    kept = box.query("SELECT count(*) FROM onceward_outbox")
    restored = box._db.was_restored
    look_until_asleep(box._db)
    backup.replace(box._db.path)

    assert ([(1,)], True) == ([tuple(row) for row in kept], restored)
    with pytest.raises(StoreCorrupt, match="was replaced by another file"):
        box.send(box.agent, 3)


def test_closing_a_sleeping_file_opens_nothing(opened: Open) -> None:
    """It is closed already, even if another process has a WAL by now."""
    box = opened()
    box.send(box.agent, 1)
    look_until_asleep(box._db)
    other = apsw.Connection(str(box._db.path))
    other.execute("UPDATE _onceward_file_info SET opened = 100")
    box.close()
    openings = other.execute("SELECT opened FROM _onceward_file_info").fetchall()
    other.close()

    assert [(100,)] == openings


def test_a_file_that_sleeps_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """Senders, workers and readers wake it again and again while another thread lets it sleep."""
    worker, handled, done, slept = Agent("worker"), list[int](), Event(), Counter[bool]()
    worker.on("json")(handled.append)

    def let_sleep() -> None:
        while not done.is_set():
            for box in (sender, recipient):
                box._db.sleep()
                slept[box._db._con is None] += 1

    with (
        Postbox(tmp_path / "sender.db", agent="sender") as sender,
        Postbox(tmp_path / "worker.db", agent=worker) as recipient,
    ):
        thread = Thread(target=let_sleep, daemon=True)
        thread.start()
        for n in range(200):
            sender.send("worker", n)
            recipient.query("SELECT count(*) FROM onceward_inbox")
        sender.flush(timeout=60)
        done.set()
        thread.join()
        problems = sender.file.check() + recipient.file.check()

    assert (list(range(200)), [], True) == (handled, problems, slept[True] > 0)


def test_a_forked_child_may_open_a_sleeping_file_as_its_parent(opened: Open) -> None:
    """The child's own opening and the parent's next use both see all messages."""
    box = opened()
    box.send(box.agent, 1)
    look_until_asleep(box._db)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            box.send(box.agent, 2)
        except BaseException as error:  # noqa: BLE001 - told by the code
            code = 0 if type(error).__name__ == "ForkedProcess" else 2
        os._exit(code)
    [(_, status)] = [os.waitpid(child, 0)]
    box.send(box.agent, 3)

    assert 0 == os.waitstatus_to_exitcode(status)
    assert [(2,)] == box._db.read("SELECT count(*) FROM onceward_outbox")
