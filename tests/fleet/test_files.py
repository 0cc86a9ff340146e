"""Which files are a fleet's, and which task reads which: by names and sizes, without Spark."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Postbox
from onceward.fleet.files import Found, NamesNoFile, NoSuchPath, check, find, of_each
from onceward.fleet.plan import FILE_COST, LAST, SMALLEST, Slice, tasks
from onceward.message.names import DIRECTORY

MIB = 1024 * 1024


def named(found: list[Found]) -> list[str]:
    """Return the last parts of the paths."""
    return [Path(one.path).name for one in found]


def touch(path: Path, size: int = 0) -> Path:
    """Make a file of that size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def file(name: str, size: int) -> Found:
    """Return a file as it would be found."""
    return Found(name, size, (0, size, 0, 0, 0))


def test_a_pattern_is_any_depth_and_leaves_side_files_out(tmp_path: Path) -> None:
    """``**`` finds files in all folders; SQLite's own files beside a database are none."""
    for name in (
        "a.db",
        "one/b.db",
        "one/two/c.db",
        "one/b.db-wal",
        "one/b.db-shm",
        "one/notes.txt",
    ):
        touch(tmp_path / name)

    assert ["a.db", "b.db", "c.db"] == named(find([f"{tmp_path}/**/*.db"]))
    assert ["b.db", "notes.txt"] == named(find([f"{tmp_path}/one/*"]))


def test_a_folder_means_its_databases(tmp_path: Path) -> None:
    """
    A folder's name reads all its ``*.db``; nothing is listed twice.

    So do ``file:`` URLs and several patterns.
    """
    touch(tmp_path / "a.db"), touch(tmp_path / "deep" / "b.db"), touch(tmp_path / "c.txt")

    assert ["a.db", "b.db"] == named(find([str(tmp_path)]))
    assert ["a.db", "b.db"] == named(
        find([f"file://{tmp_path}", f"file:{tmp_path}/a.db", f"{tmp_path}/*.db"])
    )


def test_patterns_are_those_of_hadoop(tmp_path: Path) -> None:
    """
    Braces are alternatives, also nested; spaces, brackets and per cents may stand in names.

    A glob that matches folders only means their files.
    """
    for name in ("my fleet/a.db", "my fleet/b.db", "my fleet/c.db", "[x]/d.db", "50%20/e.db"):
        touch(tmp_path / name)

    assert ["a.db", "c.db"] == named(find([f"{tmp_path}/my fleet/{{a,c}}.db"]))
    assert ["a.db", "b.db"] == named(find([f"{tmp_path}/{{my {{fleet,herd}},x}}/[ab].db"]))
    assert ["d.db"] == named(find([f"{tmp_path}/[x]/d.db"])) == named(find([f"{tmp_path}/[x]"]))
    assert ["e.db"] == named(find([f"{tmp_path}/50%20/*.db"]))
    assert ["a.db"] == named(find([(tmp_path / "my fleet" / "a.db").as_uri()]))
    assert ["a.db", "b.db", "c.db"] == named(find([f"{tmp_path}/my*"]))


def test_names_choose_files(tmp_path: Path) -> None:
    """A filter of names holds in folders, in place of ``*.db``, and behind globs."""
    touch(tmp_path / "a.db"), touch(tmp_path / "deep" / "b.sqlite"), touch(tmp_path / "c.sqlite")

    assert ["c.sqlite", "b.sqlite"] == named(find([str(tmp_path)], names="*.sqlite"))
    assert ["c.sqlite"] == named(find([f"{tmp_path}/*"], names="c.*"))


def test_a_pattern_that_names_nothing_is_refused_on_request(tmp_path: Path) -> None:
    """A folder without files is something; a missing path, or a glob without a match, is not."""
    touch(tmp_path / "a.db")
    (tmp_path / "empty").mkdir()

    assert [] == find([f"{tmp_path}/empty"], strict=True)
    for missing in (f"{tmp_path}/b.db", f"{tmp_path}/*.sqlite", f"{tmp_path}/{{b,c}}.db"):
        with pytest.raises(NoSuchPath, match=r"^\[PATH_NOT_FOUND\] Path does not exist"):
            find([f"{tmp_path}/a.db", missing], strict=True)
    check([f"{tmp_path}/*.sqlite", f"{tmp_path}/{{b,c}}.db"])
    with pytest.raises(NoSuchPath):
        check([f"{tmp_path}/b.db"])


@pytest.mark.parametrize("wrong", ["b.db", "empty", "*.sqlite", "{b,c}.db"])
def test_each_pattern_must_name_a_file(tmp_path: Path, wrong: str) -> None:
    """One path that names none is an error, however many files the others name."""
    touch(tmp_path / "a.db")
    (tmp_path / "empty").mkdir()

    assert ["a.db"] == named(of_each([f"{tmp_path}/a.db", str(tmp_path)]))
    with pytest.raises(NamesNoFile) as caught:
        of_each([str(tmp_path), f"{tmp_path}/{wrong}"])
    assert f"{tmp_path}/{wrong}" == caught.value.path


def test_a_shell_may_name_what_is_kept_beside_agents_files(tmp_path: Path) -> None:
    """
    A shell names the directory for ``home/*.db``, and side files for ``home/*``: no agents' files.

    Named alone they are an error; a file without one that it could be kept beside is meant itself.
    """
    beside = (DIRECTORY, "a.db-wal", "a.db-shm", "a.db-run")
    paths = [str(touch(tmp_path / name)) for name in ("a.db", "dry-run", *beside)]

    assert ["a.db", "dry-run"] == named(of_each(paths)) == named(find(paths))
    for name in beside:
        with pytest.raises(NamesNoFile):
            of_each([f"{tmp_path}/{name}"])


def test_a_link_and_its_file_are_one(tmp_path: Path) -> None:
    """A file under two names is read once: its rows must not count as duplicates."""
    real = touch(tmp_path / "real" / "a.db")
    (tmp_path / "link.db").symlink_to(real)

    assert [str(real)] == [found.path for found in find([f"{tmp_path}/**/*.db"])]


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    """Folders that contain each other have as many files as they have, at any depth."""
    touch(tmp_path / "one" / "a.db")
    for name in ("back", "again", "one/up"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to(tmp_path / "itself")

    for pattern in ("", "**/*.db", "**/one/**/*.db", "one/**"):
        assert ["a.db"] == named(find([str(tmp_path / pattern)]))


def test_files_of_an_open_postbox_are_no_agents(tmp_path: Path) -> None:
    """A glob for all names finds the agent's file, and none of those that are kept beside it."""
    with Postbox(tmp_path / "alice.db", agent="alice", start=False):
        assert ["alice.db"] == named(find([f"{tmp_path}/*"])) == named(find([f"{tmp_path}/**"]))


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    """A pattern without files is an empty fleet, and a file that vanished is left out."""
    assert [] == find([f"{tmp_path}/*.db", f"{tmp_path}/gone.db"])


def test_the_size_counts_the_wal_and_the_mark_sees_it_change(tmp_path: Path) -> None:
    """
    Committed rows may still be in the WAL.

    It is read with the file, and its change is a change of the file.
    """
    touch(tmp_path / "a.db", 100)
    touch(tmp_path / "a.db-wal", 50)
    [before] = find([str(tmp_path)])
    os.utime(tmp_path / "a.db-wal", ns=(1, 1))
    [after] = find([str(tmp_path)])

    assert 150 == before.size
    assert before.mark != after.mark


def test_small_files_share_a_task() -> None:
    """A thousand files of a few pages are a handful of tasks, not a thousand."""
    files = [file(f"{number}.db", 64 * 1024) for number in range(1000)]
    planned = tasks(files, target=64 * MIB, least=4, edges=None)

    assert 4 <= len(planned) <= 8
    assert {one.path for one in files} == {piece.path for task in planned for piece in task}


def test_a_large_file_is_cut_by_its_sequence() -> None:
    """
    Slices of a large file follow each other without a gap.

    The last slice takes what is written meanwhile.
    """
    [*planned] = tasks(
        [file("big.db", 256 * MIB)], target=64 * MIB, least=4, edges=lambda _: (1001, 5000)
    )
    slices = sorted((piece for task in planned for piece in task), key=lambda piece: piece.after)

    assert 4 <= len(slices)
    assert (0, LAST) == (slices[0].after, slices[-1].to)
    assert [one.to for one in slices[:-1]] == [one.after for one in slices[1:]]


def test_a_large_file_of_few_rows_is_not_cut_finer_than_rows() -> None:
    """Frames of a megabyte make large files of a few rows; no slice is empty by construction."""
    planned = tasks([file("big.db", 256 * MIB)], target=MIB, least=1, edges=lambda _: (7, 9))

    assert 3 == sum(len(task) for task in planned)


def test_nothing_is_opened_for_small_files() -> None:
    """Only files larger than a task are asked for their sequence."""
    asked: list[str] = []

    def edges(path: str) -> tuple[int, int]:
        asked.append(path)
        return 1, 100

    tasks([file("small.db", MIB), file("big.db", 200 * MIB)], target=64 * MIB, least=1, edges=edges)

    assert ["big.db"] == asked


@given(
    st.lists(st.integers(0, 300 * MIB), max_size=30),
    st.integers(1, 128 * MIB),
    st.integers(1, 16),
    st.integers(0, 10**6),
)
def test_every_row_is_in_one_slice(sizes: list[int], target: int, least: int, last: int) -> None:
    """
    Whatever sizes and targets, each file's sequence is covered once, and no task is empty.

    It is covered from its beginning to its end.
    """
    files = [file(f"{number}.db", size) for number, size in enumerate(sizes)]
    planned = tasks(
        files, target=max(target, MIB), least=least, edges=lambda _: (min(1, last), last)
    )

    by_file: dict[str, list[Slice]] = {}
    for piece in sorted(
        (piece for task in planned for piece in task), key=lambda piece: piece.after
    ):
        by_file.setdefault(piece.path, []).append(piece)
    assert {one.path for one in files} == by_file.keys()
    for pieces in by_file.values():
        assert [0, *(one.to for one in pieces)] == [*(one.after for one in pieces), LAST]
    assert [] == [task for task in planned if not task]


@given(st.lists(st.integers(0, 8 * MIB), min_size=1, max_size=60))
def test_tasks_are_as_large_as_wished(sizes: list[int]) -> None:
    """A task of several files is no larger than the target."""
    files = [file(f"{number}.db", size) for number, size in enumerate(sizes)]
    size_of = {one.path: one.size + FILE_COST for one in files}
    planned = tasks(files, target=16 * MIB, least=1, edges=None)

    assert [] == [
        task
        for task in planned
        if len(task) > 1 and sum(size_of[piece.path] for piece in task) > max(16 * MIB, SMALLEST)
    ]
