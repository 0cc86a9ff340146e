"""``backup --drill``: the newest copy is restored into a scratch folder, and examined."""

import os
import shlex
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.children import ONCEWARD, Child

from onceward import Postbox
from onceward.errors import DiskFull
from onceward.file.backup import copy_file

Cli = Callable[..., Any]
KILL = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
HELD = {"sent": 1, "received": 0, "pending": 1, "inbox_pending": 0, "dead_letters": 0}


@pytest.fixture
def shop(home: Path) -> Path:
    """Return the closed file of shop, with one message that waits for billing."""
    for name in ("shop", "billing"):
        Postbox(home / f"{name}.db", agent=name, start=False).close()
    send(home / "shop.db", "first")
    return home / "shop.db"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return an empty folder for backups."""
    (folder := tmp_path / "kept").mkdir()
    return folder


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for scratch files."""
    (folder := tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def send(path: Path, body: str) -> None:
    """Commit a message to billing."""
    with Postbox(path, start=False) as box:
        box.send("billing", body)


def noted(path: Path) -> Any:
    """Return the time that the file notes of its newest copy."""
    with Postbox(path, start=False) as box:
        [(at,)] = box.query("SELECT backed_up_at FROM onceward_file")
    return at


def finding(cli: Cli, path: Path, check: str) -> str:
    """Return the level of a finding of doctor."""
    [level] = [
        each["level"] for each in cli("doctor", path, "--json").json["findings"]
        if each["check"] == check
    ]  # fmt: skip
    return str(level)


def test_the_newest_backup_of_a_folder_is_examined(
    cli: Cli, shop: Path, kept: Path, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Backups of other agents and other files are left aside; nothing is left behind or changed."""
    cli("backup", shop, kept / "a")
    send(shop, "second")
    cli("backup", shop, kept / "z")
    cli("backup", shop.with_name("billing.db"), kept / "zz")
    (kept / "notes").write_text("mine")
    before = {path: path.read_bytes() for path in kept.iterdir()}

    ran = cli("backup", shop, "--drill", "--from", kept, "--json")

    assert (0, str(kept / "z"), "shop") == (ran.code, ran.json["source"], ran.json["agent"])
    assert (2, [], False) == (ran.json["sent"], ran.json["offenders"], ran.json["late"])
    assert before == {path: path.read_bytes() for path in kept.iterdir()}
    assert [] == [each for each in caplog.messages if "restored" in each]
    assert [] == list(scratch.glob("onceward-drill-*"))


def test_a_killed_drill_leaves_only_what_the_next_one_removes(
    cli: Cli, shop: Path, kept: Path, scratch: Path
) -> None:
    """Its scratch folder is outside of the folder of the backups."""
    cli("backup", shop, kept / "shop")
    before = [*kept.iterdir()]
    kill = f"{shlex.join([sys.executable, '-c', KILL])} {{}}"
    drill = [*ONCEWARD, "backup", shop, "--drill", "--from", kill]
    with Child(drill, env=os.environ | {"TMPDIR": str(scratch)}) as process:
        process.wait()
    left = [*scratch.glob("onceward-drill-*")]

    ran = cli("backup", shop, "--drill", "--from", kept)

    assert (1, 0, []) == (len(left), ran.code, [*scratch.glob("onceward-drill-*")])
    assert before == [*kept.iterdir()]


def test_it_says_what_the_copy_holds_and_what_is_missing(cli: Cli, shop: Path, kept: Path) -> None:
    """By peer, and in seconds: the time between the last commits of both."""
    cli("backup", shop, kept / "shop")
    send(shop, "second")

    ran = cli("backup", "--drill", "--from", kept / "shop", "--db", shop, "--json")

    assert HELD == {name: ran.json[name] for name in HELD}
    assert [{"peer": "billing", "sent": 1, "received": 0}] == ran.json["since"]
    assert "1 messages sent to it and 0 received are not in the copy" in ran.err
    assert 0 < ran.json["behind"]


def test_a_copy_that_is_too_old_fails(
    cli: Cli, shop: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the file here, or against now if the machine is lost and there is no file."""
    cli("backup", shop, kept / "shop")
    same = cli("backup", shop, "--drill", "--from", kept, "--json")
    monkeypatch.setenv("ONCEWARD_MAX_BACKUP_AGE", "0.001")
    send(shop, "second")
    behind = cli("backup", shop, "--drill", "--from", kept, "--json")
    shop.rename(shop.with_name("gone"))
    lost = cli("backup", "--drill", "--from", kept, "--json")

    assert [(0, False), (1, True), (1, True)] == [
        (ran.code, ran.json["late"]) for ran in (same, behind, lost)
    ]
    assert "more than max_backup_age" in lost.err


def test_a_command_may_write_the_copy(cli: Cli, shop: Path, kept: Path) -> None:
    """A command gets the path of the copy for {}; its failure fails the drill."""
    cli("backup", shop, kept / "shop")
    copy = f"import shutil, sys; shutil.copy({str(kept / 'shop')!r}, sys.argv[1])"
    good = f"{shlex.join([sys.executable, '-c', copy])} {{}}"
    bad = shlex.join([sys.executable, "-c", "import sys; sys.exit('no credentials')", "{}"])

    assert (0, good) == ((ran := cli("backup", shop, "--drill", "--from", good, "--json")).code,
                         ran.json["source"])  # fmt: skip
    ran = cli("backup", shop, "--drill", "--from", bad, "--json")
    assert (1, True) == (ran.code, "no credentials" in ran.problem["detail"])
    ran = cli("backup", shop, "--drill", "--from", f"{sys.executable} -c 0 {{}}")
    assert (1, True) == (ran.code, "wrote no copy" in ran.err)
    assert 1 == cli("backup", shop, "--drill", "--from", "no-such-program {}").code


def test_exit_codes_of_what_cannot_be_drilled(cli: Cli, shop: Path, kept: Path) -> None:
    """Wrong words 2, no copy 3, another agent's 7, damage 1."""
    cli("backup", shop, whole := kept / "shop")
    damaged = kept.with_name("damaged")
    damaged.write_bytes(whole.read_bytes()[:4096] + b"\xff" * 4096)

    def code(*words: object) -> int:
        return int(cli("backup", *words).code)

    assert 2 == code(shop, "--drill")
    assert 2 == code(shop, kept / "other", "--from", kept)
    assert 2 == code(shop, kept / "other", "--drill", "--from", kept)
    assert 3 == code(shop, "--drill", "--from", kept / "none")
    assert 3 == code("billing.db", "--drill", "--from", kept)
    assert 7 == code("billing.db", "--drill", "--from", whole)
    assert 1 == code(shop, "--drill", "--from", damaged)


@pytest.mark.broken("the copy violates an invariant")
def test_a_copy_that_violates_an_invariant_fails(cli: Cli, shop: Path, kept: Path) -> None:
    """It is named, and the file does not note the copy."""
    copy_file(shop, kept / "shop")
    with sqlite3.connect(kept / "shop") as con:
        con.execute("UPDATE _onceward_outbox SET digest = x'00'")
    con.close()

    ran = cli("backup", shop, "--drill", "--from", kept / "shop", "--json")

    assert (1, True) == (ran.code, bool(ran.json["offenders"]))
    assert noted(shop) is None


def test_the_file_notes_its_newest_copy(cli: Cli, shop: Path, kept: Path) -> None:
    """A backup notes the time before it, a drill of an old copy never an earlier one."""
    unknown = noted(shop)
    cli("backup", shop, kept / "a")
    first = noted(shop)
    send(shop, "second")
    cli("backup", shop, kept / "b")
    second = noted(shop)
    cli("backup", shop, "--drill", "--from", kept / "a")

    assert unknown is None
    assert second == noted(shop)
    assert first <= second
    with Postbox(shop, start=False) as box:
        assert [(second,)] == box.query("SELECT backed_up_at FROM onceward_file")


def test_a_file_that_takes_no_note_is_backed_up(
    cli: Cli, shop: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is there, exit code 0, and stderr says why doctor does not know of it."""
    monkeypatch.setattr("onceward.ops.cli.copies.open_box", _full)

    ran = cli("backup", shop, kept / "a")

    assert (0, True) == (ran.code, "not noted" in ran.err)
    assert 0 == cli("check", kept / "a").code


def _full(path: Path) -> Postbox:
    raise DiskFull(f"{path}: the disk is full")


def test_doctor_tells_an_old_backup(
    cli: Cli, shop: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ok without one and after one; a warning once it is older than the setting."""
    none = finding(cli, shop, "backup")
    cli("backup", shop, kept / "a")
    fresh = finding(cli, shop, "backup")
    monkeypatch.setenv("ONCEWARD_MAX_BACKUP_AGE", "0.001")

    assert ["ok", "ok", "warning"] == [none, fresh, finding(cli, shop, "backup")]


def _shadow(shop: Path, names: list[str]) -> Path:
    """Write what Litestream 0.3 keeps beside a file, last copied at the start of 2001."""
    state = shop.with_name(".shop.db-litestream")
    (wals := state / "generations" / "85a1a97ad6042967" / "wal").mkdir(parents=True)
    (state / "generation").write_text("85a1a97ad6042967\n")
    for number, name in enumerate(names):
        (wals / name).write_bytes(b"wal")
        os.utime(wals / name, (978_307_200 + number, 978_307_200 + number))
    return wals


def test_doctor_tells_that_litestream_does_not_copy(
    cli: Cli, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder stays as it is after a commit; without a folder nothing is said."""
    monkeypatch.setattr("onceward.ops.cli.findings.COPIED_WITHIN", 0.0)
    checks = {each["check"] for each in cli("doctor", shop, "--json").json["findings"]}
    _shadow(shop, ["00000000.wal"])

    assert "replica" not in checks
    assert "warning" == finding(cli, shop, "replica")


def test_doctor_tells_that_replicas_confirm_nothing(
    cli: Cli, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WALs pile up while Litestream copies: what it keeps last is not uploaded."""
    wals = _shadow(shop, [f"0000000{number}.wal" for number in range(4)])
    monkeypatch.setattr(
        "onceward.ops.cli.findings.time.sleep", lambda _: (wals / "00000004.wal").write_bytes(b"")
    )

    ran = cli("doctor", shop, "--json")

    [found] = [each for each in ran.json["findings"] if each["check"] == "replica"]
    assert ("warning", True) == (found["level"], "uploaded nothing" in found["found"])
