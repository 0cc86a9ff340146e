"""The one socket of a process: links in the folders of its files lead to it."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import pytest
from tests.children import PYTHON, Child

from onceward.core.run.threads import EngineThreads
from onceward.file.notify import ATTEMPTS, Notifier, add_to
from onceward.file.process_socket import FULL, ProcessSocket

AGENTS = 20
EACH = 4
"""Descriptors of an idle file: the database, its WAL, its shared memory and its run lock."""
SHARED = 10
"""Further ones: the directory of the home, the sockets for notices and for parcels, and waiting."""
CROWD = """
import os, sys
from onceward import Agent, Postbox

folder, count = sys.argv[1], int(sys.argv[2])
before = len(os.listdir("/proc/self/fd"))
agents = [Agent(f"a{number}") for number in range(count)]
for agent in agents:
    agent.on("*")(lambda _: None)
boxes = [Postbox(f"{folder}/{agent.name}.db", agent=agent) for agent in agents]
print(len(os.listdir("/proc/self/fd")) - before, flush=True)
for box in boxes:
    box.close()
"""


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty folder in which this test's sockets are: their names must be short."""
    with TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder) / f"onceward-{os.getuid()}"


def notifiers(path: Path, stack: ExitStack, count: int) -> list[Notifier]:
    """Return notifiers of new files."""
    for number in range(count):
        (path / f"{number}.db").touch()
    found = [Notifier(path / f"{number}.db") for number in range(count)]
    for each in found:
        stack.callback(each.close)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of descriptors")
def test_an_idle_agent_takes_four_descriptors(tmp_path: Path) -> None:
    """Files of a process share one socket, and each has one connection while nothing happens."""
    with Child([*PYTHON, "-c", CROWD, tmp_path, AGENTS], "stdout") as child:
        found = int(child.hear())

    assert found <= EACH * AGENTS + SHARED, found


def test_engines_of_all_files_hear_by_one_socket(base: Path, tmp_path: Path) -> None:
    """Another process tells the link of its file, and only that file's listeners hear."""
    with ExitStack() as stack:
        here, other = notifiers(tmp_path, stack, 2)
        [there] = notifiers(tmp_path, stack, 1)
        heard: list[str] = []
        shared = here.share("in")
        assert shared is not None
        assert shared is other.share("in")
        stack.callback(here.listen("in", lambda: heard.append("here")))
        stack.callback(other.listen("in", lambda: heard.append("other")))
        there.notify("in")
        there.notify("in")
        lost = shared.hear()

        assert (["here"], False) == (heard, lost)
        assert -1 == here.fileno("in")


def test_a_full_queue_is_told(base: Path, tmp_path: Path) -> None:
    """Where a datagram may have been lost, all files are to be looked at."""
    with ExitStack() as stack:
        [here] = notifiers(tmp_path, stack, 1)
        [there] = notifiers(tmp_path, stack, 1)
        shared = here.share("in")
        assert shared is not None
        for _ in range(FULL):
            there.notify("in")

        assert (True, False) == (shared.hear(), shared.hear())


def test_files_whose_datagrams_were_lost_are_looked_at(base: Path, tmp_path: Path) -> None:
    """Engines ask every file for its version after a queue that was full."""
    threads, looked = EngineThreads(), Event()
    with ExitStack() as stack:
        here, other = notifiers(tmp_path, stack, 2)
        [there] = notifiers(tmp_path, stack, 1)

        def version() -> int:
            looked.set()
            return 1

        threads.watch(here, "in", lambda: 0, 0.0)
        threads.watch(other, "in", version, 0.0)
        for _ in range(FULL):
            there.notify("in")
        threads.start()

        assert looked.wait(60)
        threads.files.remove(here)
        threads.files.remove(other)


def test_links_of_a_closed_file_are_gone(base: Path, tmp_path: Path) -> None:
    """And the folder of the file, too; the socket of the process stays for the others."""
    with ExitStack() as stack:
        [here] = notifiers(tmp_path, stack, 1)
        shared = here.share("out")
        assert shared is not None
        folder = Path(here._where)
        before = [each.readlink() for each in folder.iterdir()]
        here.close()

        assert ([shared.path], False) == (before, folder.exists())
        assert (True, {}) == (shared.path.exists(), shared._links)


def test_the_last_process_removes_the_folder_of_a_file(base: Path, tmp_path: Path) -> None:
    """One that closes before leaves it to those that listen, or will listen."""
    with ExitStack() as stack:
        [first] = notifiers(tmp_path, stack, 1)
        [second] = notifiers(tmp_path, stack, 1)
        [third] = notifiers(tmp_path, stack, 1)
        heard: list[str] = []
        second.share("in")
        first.close()
        kept = Path(first._where).exists()
        second.close()
        gone = Path(first._where).exists()
        third.listen("in", lambda: heard.append("third"))
        [fourth] = notifiers(tmp_path, stack, 1)
        fourth.notify("in")
        third.hear("in")

        assert (True, False, ["third"]) == (kept, gone, heard)
        third.close()
        fourth.close()
        assert [] == [each for each in base.iterdir() if each.is_dir()]


@pytest.mark.parametrize("removed", [0, 1, ATTEMPTS])
def test_a_name_is_added_while_others_remove_the_folder(tmp_path: Path, removed: int) -> None:
    """As they do when they close the file between the folder's creation and the new name."""
    folder, left = tmp_path / "folder", iter(range(removed))

    def add() -> None:
        if next(left, None) is not None:
            folder.rmdir()
        (folder / "name").touch()

    if removed < ATTEMPTS:
        add_to(folder, add)
    else:
        with pytest.raises(FileNotFoundError):
            add_to(folder, add)
    assert (removed < ATTEMPTS) == folder.exists()


def test_the_socket_of_a_dead_process_is_removed_by_a_sender(base: Path, tmp_path: Path) -> None:
    """Both the link and the socket, which nothing else would remove."""
    with ExitStack() as stack:
        [here] = notifiers(tmp_path, stack, 1)
        dead = base / "1-dead"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(str(dead))
        link = Path(here._where) / "1-dead.in"
        link.symlink_to(dead)
        here.notify("in")

        assert (False, False) == (dead.exists(), link.is_symlink())


def test_a_process_removes_its_socket_at_its_end(base: Path, tmp_path: Path) -> None:
    """And the folders of its files: nothing is left where the sockets are."""
    code = f"""
from onceward import Agent, Postbox
agent = Agent("a")
agent.on("*")(lambda _: None)
Postbox({str(tmp_path / "a.db")!r}, agent=agent).close()
"""
    subprocess.run([*PYTHON, "-c", code], check=True)

    assert [] == [*base.iterdir()]


def test_a_socket_that_was_cleaned_away_is_made_anew(base: Path, tmp_path: Path) -> None:
    """The next file links to one that exists; the files before it are still looked at."""
    with ExitStack() as stack:
        here, other = notifiers(tmp_path, stack, 2)
        first = here.share("in")
        assert first is not None
        first.path.unlink()
        second = other.share("in")

        assert isinstance(second, ProcessSocket)
        assert (True, True) == (second is not first, second.path.exists())
