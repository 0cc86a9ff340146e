"""
The standard library's sqlite3 is refused on files that this process has open.

A traced process of Python 3.11 is not guarded, so there these tests need a run
without a tracer; CI has a step for it.
"""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest
import sqlalchemy as sa

from onceward import Postbox
from onceward.errors import ForeignHandle
from onceward.file import descriptors, foreign_library, open_files

Open = Callable[..., Postbox]
Named = Callable[[Path], str | bytes | os.PathLike[str]]
NAMES: dict[str, Named] = {
    "text": str,
    "path": lambda path: path,
    "bytes": os.fsencode,
    "relative": os.path.relpath,
    "dots": lambda path: f"{path.parent}/./{path.parent.name}/../{path.name}",
}
URIS: dict[str, Callable[[Path], str]] = {
    "absolute": lambda path: f"file:{path}",
    "read only": lambda path: f"file:{path}?mode=ro",
    "immutable": lambda path: f"file:{path}?immutable=1#there",
    "authority": lambda path: f"file://localhost{path}",
    "no authority": lambda path: f"file://{path}",
    "escaped": lambda path: f"file:{path}".replace("a.db", "%61%2edb"),
    "relative": lambda path: f"file:{os.path.relpath(path)}",
}
COUNTS = """
import sys
added = []
sys.addaudithook, add = added.append, sys.addaudithook
import onceward
print(len(added))
for name in "ab":
    onceward.Postbox(sys.argv[1] + name, agent=name, start=False).close()
print(len(added))
"""
TRACED = """
import sys, threading
threading.settrace(lambda *_: None)
"""
listed = pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="no list of descriptors")
guarded = pytest.mark.skipif(
    foreign_library.ends_threads(), reason="a hook would end threads of this traced process"
)


@guarded
@pytest.mark.parametrize("named", NAMES.values(), ids=NAMES)
def test_no_name_of_an_open_file_gets_past(box: Postbox, named: Named) -> None:
    """Whatever type and form the path has, connecting raises before anything is opened."""
    (box.file.path.parent / box.file.path.parent.name).mkdir()
    with pytest.raises(ForeignHandle, match=r"a\.db is open as a postbox"):
        sqlite3.connect(named(box.file.path))


@guarded
@pytest.mark.parametrize("uri", URIS.values(), ids=URIS)
def test_no_uri_of_an_open_file_gets_past(box: Postbox, uri: Callable[[Path], str]) -> None:
    """A URI names the same file, whatever its options: closing it drops the locks as well."""
    with pytest.raises(ForeignHandle):
        sqlite3.connect(uri(box.file.path), uri=True)


@guarded
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_no_link_to_an_open_file_gets_past(
    box: Postbox, link: Callable[[Path, Path], None]
) -> None:
    """The file is known by device and inode, so another name of it is the same file."""
    other = box.file.path.with_name("other")
    link(box.file.path, other)

    with pytest.raises(ForeignHandle):
        sqlite3.connect(other)
    other.unlink()


@guarded
def test_the_standard_dialect_of_sqlalchemy_is_refused(box: Postbox) -> None:
    """It connects by sqlite3; onceward.integrations.sqlalchemy has an engine for open files."""
    with pytest.raises(ForeignHandle):
        sa.create_engine(f"sqlite:///{box.file.path}").connect()


@guarded
def test_the_directory_of_a_home_is_refused_too(box: Postbox) -> None:
    """The file that the agents of a home share is one of ours."""
    box.agents.register()

    with pytest.raises(ForeignHandle):
        sqlite3.connect(box.file.path.with_name("directory.db"))


def test_other_files_are_none_of_our_business(box: Postbox, tmp_path: Path) -> None:
    """Memory, temporary files, new files and odd arguments behave as without us."""
    for name in (":memory:", "", tmp_path / "new.db", str(tmp_path / "%61.db"), "file::memory:"):
        sqlite3.connect(name, uri=str(name).startswith("file:")).close()
    with pytest.raises(TypeError):
        sqlite3.connect(7)  # type: ignore[call-overload]
    with pytest.raises((ValueError, sqlite3.Error)):
        sqlite3.connect("nul\0")

    assert [] == box.file.check()


def test_a_closed_file_may_be_opened(box: Postbox) -> None:
    """Once the last postbox of the process is closed, the file is free."""
    box.send("b", 1)
    box.close()
    con = sqlite3.connect(box.file.path)

    assert [(1,)] == con.execute("SELECT count(*) FROM _onceward_outbox").fetchall()
    con.close()


def test_one_hook_is_installed_by_the_first_opening(tmp_path: Path) -> None:
    """Importing adds no audit hook, which cannot be removed; all openings share one."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTS, f"{tmp_path}/"], capture_output=True, text=True, check=True
    )

    assert "0\n1\n" == done.stdout


def test_a_traced_process_keeps_its_threads(tmp_path: Path) -> None:
    """Where a hook would end threads that are traced, none is installed."""
    done = subprocess.run(
        [sys.executable, "-c", TRACED + COUNTS, f"{tmp_path}/"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    hooks = 0 if sys.version_info < (3, 12) else 1

    assert f"0\n{hooks}\n" == done.stdout


@guarded
def test_a_file_that_sqlite3_opened_a_moment_ago_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Openings of one moment share a look at the descriptors, but not across a connect."""
    monkeypatch.setattr(descriptors, "MANY", 1)
    monkeypatch.setattr(descriptors, "table", descriptors.DescriptorTable(clock=lambda: 0.5))
    for name in "ab":
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()
    con = sqlite3.connect(tmp_path / "a.db")
    con.execute("SELECT count(*) FROM sqlite_schema")

    with pytest.raises(ForeignHandle, match="descriptor"):
        Postbox(tmp_path / "a.db", agent="a", start=False)
    con.close()


def test_an_opening_by_the_program_looks_at_its_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment's look serves files that only take parcels; a postbox is opened after one more."""
    monkeypatch.setattr(descriptors, "MANY", 1)
    monkeypatch.setattr(descriptors, "table", descriptors.DescriptorTable(clock=lambda: 0.5))
    path = tmp_path / "a.db"
    Postbox(path, agent="a", start=False).close()
    descriptors.table.holder(path)  # the look that would serve
    with path.open("rb"), pytest.raises(ForeignHandle, match="descriptor"):
        Postbox(path, agent="a", start=False)


def test_a_look_that_another_thread_has_begun_before_does_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program opens the file, and then a postbox, while another opening looks."""
    monkeypatch.setattr(descriptors, "MANY", 1)
    table, path, held = descriptors.DescriptorTable(clock=lambda: 0.5), tmp_path / "a", list[int]()
    path.touch()
    look = table._open.now

    def meanwhile() -> set[int]:
        numbers = look()
        if not held:  # the first number was that of the listing
            held.extend(os.open(each, os.O_RDONLY) for each in (os.devnull, path))
            table.forget()
        return numbers

    monkeypatch.setattr(table._open, "now", meanwhile)
    before, after = table.holder(path), table.holder(path)
    for number in held:
        os.close(number)

    assert (None, (held[1], str(path))) == (before, after)


def test_a_descriptor_that_another_thread_is_about_to_close_is_not_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection of ours that is being opened or closed holds the file under no known name."""
    path = tmp_path / "a.db"
    Postbox(path, agent="a", start=False).close()
    held = [os.open(path, os.O_RDONLY)]

    class ClosedAfterTheLook(descriptors.DescriptorTable):
        def holder(self, path: Path) -> descriptors.Found | None:
            found = super().holder(path)
            while held:
                os.close(held.pop())
            return found

    table = ClosedAfterTheLook()
    monkeypatch.setattr(descriptors, "table", table)
    with Postbox(path, agent="a", start=False) as box:
        assert "a" == box.agent
    assert [] == held


def test_a_file_is_opened_only_after_its_creator_closed_the_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing that descriptor later would drop the locks of the connections opened since."""
    path, waits, opened = tmp_path / "a.db", Event(), list[str]()
    close, turn = os.close, open_files.turn

    def open_it() -> None:
        try:
            with Postbox(path, agent="a", start=False):
                opened.append("opened")
        finally:
            waits.set()  # it did not wait

    second = Thread(target=open_it)

    def close_late(descriptor: int) -> None:
        if not second.ident:
            second.start()
            assert waits.wait(30)
            opened.append("closed")
        close(descriptor)

    def turn_of(name: open_files.Name | Path) -> Any:
        if name == path and current_thread() is second:
            waits.set()
        return turn(name)

    monkeypatch.setattr(open_files, "turn", turn_of)
    monkeypatch.setattr(os, "close", close_late)
    with Postbox(path, agent="a", start=False):
        second.join()
    assert ["closed", "opened"] == opened


@listed
def test_a_look_asks_for_no_descriptor_of_an_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files are open, an opening asks for the files of foreign descriptors only."""
    asked = list[int]()
    of = descriptors._key

    def look() -> int:
        asked.clear()
        descriptors.table.forget()
        descriptors.table.holder(tmp_path / "none.db")
        return len(asked)

    monkeypatch.setattr(descriptors, "table", descriptors.DescriptorTable())
    monkeypatch.setattr(descriptors, "_key", lambda number: asked.append(number) or of(number))  # type: ignore[func-returns-value]
    boxes, seen = list[Postbox](), list[int]()
    for count in (5, 15):
        while len(boxes) < count:
            name = f"a{len(boxes)}"
            boxes.append(Postbox(tmp_path / f"{name}.db", agent=name, start=False))
        seen.append(look())
    with (tmp_path / "other").open("w"):
        seen.append(look())
    for box in boxes:
        box.close()

    assert [0, 1] == [each - seen[0] for each in seen[1:]]


@listed
@pytest.mark.parametrize("ends", ["closed", "reopened", "unlocked"])
def test_a_foreign_handle_with_the_number_of_an_own_one_is_found(tmp_path: Path, ends: str) -> None:
    """A number that was a connection's, or a lock's, is asked for again once that is closed."""
    for name in "ab":
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()
    box = Postbox(tmp_path / "a.db", agent="a", start=False)
    descriptors.table.forget()
    descriptors.table.holder(tmp_path / "none.db")
    ours = set(descriptors.table._ours.values())
    handles = list[Any]()

    def take_numbers() -> None:
        while len(handles) < 20:
            handles.append((tmp_path / "b.db").open("rb"))

    if ends == "reopened":
        box._db._drop()
        take_numbers()
        box._db.recover()
    elif ends == "unlocked":
        presence = box._run._presence
        assert presence is not None
        presence.close()
        take_numbers()
    else:
        box.close()
        take_numbers()
    for each in [each for each in handles if each.fileno() not in ours]:
        each.close()
        handles.remove(each)
    try:
        assert handles
        with pytest.raises(ForeignHandle, match="descriptor"):
            Postbox(tmp_path / "b.db", agent="b", start=False)
    finally:
        for each in handles:
            each.close()
        box.close()


@listed
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_closes_what_it_inherited_finds_foreign_handles(tmp_path: Path) -> None:
    """A daemon closes its parent's descriptors; their numbers are not the parent's files there."""
    code = """
import os, sys
from onceward import Postbox
from onceward.errors import ForeignHandle
from onceward.file import descriptors
a, b = sys.argv[1:]
Postbox(b, agent="b", start=False).close()
box = Postbox(a, agent="a", start=False)
numbers = [number for number in descriptors.table._ours.values()]
if os.fork() == 0:
    os.closerange(3, max(numbers) + 1)
    handle = open(b, "rb")
    try:
        Postbox(b, agent="b", start=False)
    except ForeignHandle:
        os._exit(0 if handle.fileno() in numbers else 3)
    os._exit(4)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, f"{tmp_path}/a.db", f"{tmp_path}/b.db"], check=False
    )

    assert 0 == done.returncode
