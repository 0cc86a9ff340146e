"""``backup`` and ``restore``: a copy of a file in use, and a copy in the place of a file."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, Child

from onceward import Postbox
from onceward.errors import DiskFull
from onceward.file import backup
from onceward.file.backup import Replacement

Cli = Callable[..., Any]
WRITER = """
import sys
from onceward import Postbox
with Postbox(sys.argv[1], start=False, hold_unknown=True) as box:
    print("ready", flush=True)
    while True:
        with box.begin() as tx:
            box.send("far", 1)
            box.send("far", 2)
"""


@pytest.fixture
def written(home: Path) -> Path:
    """Return the file of shop, closed, with one message to billing."""
    folder = home
    for name in ("shop", "billing"):
        Postbox(folder / f"{name}.db", agent=name, start=False).close()
    send(folder / "shop.db", "first")
    return folder / "shop.db"


def send(path: Path, body: str) -> None:
    """Send a message to billing and carry it there."""
    with Postbox(path, start=False) as box:
        box.send("billing", body)
        box.run_until_idle()


def sent(path: Path) -> list[Any]:
    """Return the bodies that the file has sent, oldest first."""
    with Postbox(path, start=False) as box:
        return [row.body for row in reversed(box.history().messages)]


def test_a_backup_is_one_snapshot_of_a_file_in_use(cli: Cli, written: Path, tmp_path: Path) -> None:
    """While another process writes pairs: the copy is sound, private, and has whole pairs."""
    copy = tmp_path / "shop.backup"
    with Child([*PYTHON, "-c", WRITER, written], "stdout") as process:
        assert "ready" == process.hear()
        ran = cli("backup", written, copy, "--json")

    assert (0, "shop", str(copy)) == (ran.code, ran.json["agent"], ran.json["copy"])
    assert 0o600 == copy.stat().st_mode & 0o777
    assert {copy} == set(tmp_path.glob("shop.backup*"))
    assert 0 == cli("check", copy).code
    assert [["0"]] == cli("sql", "SELECT count(*) % 2 FROM outbox WHERE recipient = 'far'",
                          "--db", copy).lines  # fmt: skip


def test_a_copy_is_never_overwritten(cli: Cli, written: Path, tmp_path: Path) -> None:
    """Exit code 5; what is there stays."""
    (tmp_path / "copy").write_text("mine")

    assert 5 == cli("backup", written, tmp_path / "copy").code
    assert "mine" == (tmp_path / "copy").read_text()


def test_the_file_may_be_named_by_an_option(cli: Cli, written: Path, tmp_path: Path) -> None:
    """--db, --agent and the environment name it; then the copy is the only word."""
    assert 0 == cli("backup", tmp_path / "one", "--db", written).code
    assert 0 == cli("backup", tmp_path / "two").code
    assert 2 == cli("backup").code
    assert 3 == cli("backup", tmp_path / "none.db", tmp_path / "three").code


@pytest.mark.broken("billing was told of a message that the restored file does not have")
def test_a_restore_puts_the_backup_in_place(cli: Cli, written: Path, tmp_path: Path) -> None:
    """The old file is kept with its WAL; the text says what each peer has since, and will see."""
    cli("backup", written, copy := tmp_path / "shop.backup")
    send(written, "second")

    would = cli("restore", written, copy, "--dry-run", "--json")
    untouched = sent(written)
    ran = cli("restore", written, copy, "--json")

    assert ["first", "second"] == untouched
    assert [0, 0] == [would.code, ran.code]
    assert [{"peer": "billing", "sent": 1, "received": 0}] == ran.json["since"]
    assert "1 messages sent to it and 0 received after the backup" in ran.err
    assert "starts a new epoch" in ran.err
    assert (["first"], ["first", "second"]) == (sent(written), sent(Path(ran.json["saved"])))
    assert [] == list(written.parent.glob("*.restoring-*"))
    assert [] == [*written.parent.glob("*.before-*-wal"), *tmp_path.glob("shop.backup-*")]
    send(written, "third")
    with Postbox(written.with_name("billing.db"), start=False) as billing:
        assert ["first", "second", "third"] == [each.body for each in billing.sessions.poll()]


def test_a_takeover_on_an_empty_machine(cli: Cli, written: Path, tmp_path: Path) -> None:
    """A dry run says so and leaves nothing; no old file is named where there is none."""
    cli("backup", written, copy := tmp_path / "shop.backup")
    (empty := tmp_path / "empty").mkdir()

    would = cli("takeover", empty / "shop.db", "--from", copy, "--dry-run", "--json")
    left = [*empty.iterdir()]
    ran = cli("takeover", empty / "shop.db", "--from", copy, "--json")

    assert ([], [0, 0]) == (left, [would.code, ran.code])
    assert ([None, None], 1) == ([each.json["saved"] for each in (would, ran)], ran.json["number"])
    assert [True, False] == ["a dry run: nothing was changed" in each.err for each in (would, ran)]
    assert ["first"] == sent(empty / "shop.db")


def test_a_file_in_use_is_not_replaced(cli: Cli, written: Path, tmp_path: Path) -> None:
    """Neither where this process has it open, nor where another one has; nothing is changed."""
    cli("backup", written, copy := tmp_path / "shop.backup")
    with Postbox(written, start=False):
        ran = cli("restore", written, copy)
    assert (7, True) == (ran.code, "is open" in ran.err)
    with Child([*PYTHON, "-c", WRITER, written], "stdout") as process:
        process.hear()
        ran = cli("restore", written, copy)
    assert (7, True) == (ran.code, f"is open in process {process.pid}" in ran.err)


@pytest.mark.parametrize("which", ["another agent", "no agent", "damaged", "absent", "folder"])
def test_a_wrong_backup_changes_nothing(
    cli: Cli, written: Path, tmp_path: Path, which: str
) -> None:
    """It is examined before the old file is touched."""
    source = tmp_path / "source"
    match which:
        case "another agent":
            source = written.with_name("billing.db")
        case "no agent":
            source.write_bytes(b"")
        case "damaged":
            source.write_bytes(written.read_bytes()[:4096] + b"\xff" * 4096)
        case "folder":
            source.mkdir()

    ran = cli("restore", written, source)

    assert 0 != ran.code
    assert "I/O error" not in ran.err
    assert ["first"] == sent(written)
    assert [] == [*written.parent.glob("shop.db.*")]


def test_errors_name_what_the_caller_must_change(
    cli: Cli, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is missing, the disk of the copy, and the source of a drill."""
    absent = tmp_path / "absent" / "shop.db"
    assert (3, True) == told(cli("takeover", absent, "--from", written), "no folder")
    (text := tmp_path / "text").write_text("hello" * 1000)
    assert (1, True) == told(cli("backup", "--drill", "--from", text), f"onceward: {text}: file is")

    def full(_source: Path, _target: Path, **_: bool) -> None:
        raise DiskFull("disk or quota is full")

    monkeypatch.setattr(backup, "_copy", full)
    copy = tmp_path / "copy"
    assert (7, True) == told(cli("backup", written, copy), f"{copy}: its disk")
    assert not copy.exists()


def told(ran: Any, words: str) -> tuple[int, bool]:
    """Return the exit code of a command, and whether its error has some words."""
    return ran.code, words in ran.err


@pytest.mark.broken("a WAL is invented")
@pytest.mark.parametrize("step", range(1, 6))
def test_a_crash_in_between_loses_neither(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """From the first removal on the old parts have second names; no copy meets the old WAL."""
    fresh, saved = tmp_path / "fresh", written.with_name("shop.before")
    fresh.write_bytes(b"new")
    old, wal = written.read_bytes(), Path(f"{written}-wal")
    wal.write_bytes(b"the WAL")
    left = iter(range(step))

    def crash(_: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("onceward.file.backup.sync", crash)
    with Replacement(written) as place, suppress(KeyboardInterrupt):
        place.put(fresh, saved)

    assert (old, b"the WAL") == (saved.read_bytes(), Path(f"{saved}-wal").read_bytes())
    assert b"new" == (fresh if fresh.exists() else written).read_bytes()
    assert fresh.exists() or not wal.exists()
