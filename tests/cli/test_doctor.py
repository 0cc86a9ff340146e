"""``doctor``: what it finds, and the cure that it names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox
from onceward.cli import findings, handles
from onceward.cli.handles import Holder
from onceward.words.clock import SystemClock

Cli = Callable[..., Any]
CHECKS = [
    "sqlite", "permissions", "disk", "handles", "schema", "write", "wal", "clock", "frozen", "breakers", "dead letters", "delivery",
]  # fmt: skip


def level(ran: Any, check: str) -> str:
    """Return the level of the only finding of one check, and see that anything but ok has a cure."""
    [finding] = [finding for finding in ran.json["findings"] if finding["check"] == check]
    assert (finding["level"] == "ok") == (not finding["cure"])
    return str(finding["level"])


@pytest.mark.usefixtures("shop")
def test_a_sound_file_is_healthy(cli: Cli) -> None:
    """Every check is named, none is serious; the disk may be one that a restart empties."""
    ran = cli("doctor", "--json")

    assert 0 == ran.code
    assert ["path", "healthy", "findings"] == list(ran.json)
    assert CHECKS == [finding["check"] for finding in ran.json["findings"]]
    assert ["check", "level", "found", "cure"] == list(ran.json["findings"][0])
    assert {"ok"} == {finding["level"] for finding in ran.json["findings"] if finding["check"] != "disk"}


def test_it_writes_for_real_and_leaves_nothing(cli: Cli, shop: Postbox) -> None:
    """One commit that is seen elsewhere; no message, no row, no total is changed by it."""
    before = shop.stats()

    assert "ok" == level(cli("doctor", "--json"), "write")
    assert before == shop.stats()


def test_mail_that_others_may_read_is_serious(cli: Cli, shop: Postbox) -> None:
    """The modes of the file and its side files are looked at; the rest is examined all the same."""
    shop.path.chmod(0o644)

    ran = cli("doctor", "--json")

    assert (1, False, "serious") == (ran.code, ran.json["healthy"], level(ran, "permissions"))
    assert "ok" == level(ran, "write")


def test_a_folder_that_others_may_change_is_a_warning(cli: Cli, shop: Postbox) -> None:
    """Whoever may rename files there may replace the mail."""
    shop.path.parent.chmod(0o777)

    assert "warning" == level(cli("doctor", "--json"), "permissions")


def test_a_second_name_is_serious_and_nothing_is_opened(cli: Cli, home: Path) -> None:
    """Each hard link would get a WAL of its own."""
    cli("init", "shop")
    (home / "agents" / "other.db").hardlink_to(home / "agents" / "shop.db")

    ran = cli("doctor", "--json")

    assert (1, "serious", "warning") == (ran.code, level(ran, "disk"), level(ran, "write"))


@pytest.mark.parametrize(("kind", "expected"), [("nfs4", "serious"), ("fuse.sshfs", "serious"), ("tmpfs", "warning"), ("ext4", "ok")])
def test_the_file_system_is_named(cli: Cli, shop: Postbox, monkeypatch: pytest.MonkeyPatch, kind: str, expected: str) -> None:
    """Locks that do not hold are serious, memory is a warning."""
    assert shop.agent
    monkeypatch.setattr(findings, "filesystem", lambda _: kind)

    assert expected == level(cli("doctor", "--json"), "disk")


@pytest.mark.parametrize(("deleted", "mixed", "expected"), [(True, False, "serious"), (False, True, "warning"), (False, False, "ok")])
@pytest.mark.usefixtures("shop")
def test_other_processes_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch, deleted: bool, mixed: bool, expected: str) -> None:
    """One that holds a deleted file commits into the void."""
    monkeypatch.setattr(findings, "holders", lambda _: [Holder(7, deleted, mixed)])

    assert expected == level(cli("doctor", "--json"), "handles")


def test_a_holder_is_seen_by_what_its_descriptors_lead_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process table is read by name only, so that no lock of the file is touched."""
    path = tmp_path / "shop.db"
    for pid, target in ((11, f"{path}"), (12, f"{path}-wal (deleted)"), (13, f"{tmp_path}/other.db")):
        (tmp_path / "proc" / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "fd" / "3").symlink_to(target)
    (tmp_path / "proc" / "11" / "maps").write_text("site-packages/apsw/__init__.so\nlib-dynload/_sqlite3.so\n")
    monkeypatch.setattr(handles, "PROC", tmp_path / "proc")

    assert [Holder(11, deleted=False, mixed=True), Holder(12, deleted=True, mixed=False)] == handles.holders(path)


def test_a_file_without_schema_is_serious(cli: Cli, home: Path) -> None:
    """The doctor does not migrate; it says what does."""
    (home / "empty.db").touch(mode=0o600)

    ran = cli("doctor", "empty.db", "--json")

    assert (1, "serious") == (ran.code, level(ran, "schema"))
    assert 0 == (home / "empty.db").stat().st_size


def test_a_damaged_file_is_serious(cli: Cli, home: Path) -> None:
    """What cannot be opened is a finding, not an abort."""
    (home / "broken.db").write_bytes(b"no database " * 400)
    (home / "broken.db").chmod(0o600)

    ran = cli("doctor", "broken.db", "--json")

    assert 1 == ran.code
    assert "serious" in {finding["level"] for finding in ran.json["findings"]}


def test_a_clock_that_is_behind_is_serious(cli: Cli, shop: Postbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Due mail would wait until the clock has caught up."""
    shop.send("shop", 1)
    monkeypatch.setattr(SystemClock, "now", lambda _: 1_700_000_000_000)

    assert "serious" == level(cli("doctor", "--json"), "clock")


def test_a_wal_beyond_its_limit_is_serious(cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the setting that the janitor goes by, too."""
    assert billing.agent
    monkeypatch.setenv("ONCEWARD_WAL_LIMIT", str(1 << 20))
    for _ in range(2):
        shop.send("billing", "x" * 1_000_000)

    assert "serious" == level(cli("doctor", "--json"), "wal")


def test_what_an_operator_should_know_is_a_warning(cli: Cli, shop: Postbox, buried: list[str]) -> None:
    """Frozen, dead letters, breakers and mail for nobody: the exit code stays 0."""
    assert buried
    shop.peers.register("far", "memory:nowhere")
    shop.send("far", 1)
    shop.pump()
    with shop.begin() as tx:
        tx.execute("UPDATE peers SET breaker = 'open', failures = 5 WHERE name = 'far'")
    shop.peers.forget("far")
    shop.freeze()

    ran = cli("doctor", "--json")

    assert 0 == ran.code
    assert {"warning"} == {level(ran, check) for check in ("frozen", "breakers", "dead letters", "delivery")}


def test_mail_that_nobody_carries_is_a_warning(cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Due for more than a minute: no relay runs, or the peer is down."""
    assert billing.agent
    shop.send("billing", 1)
    now = SystemClock().now()
    monkeypatch.setattr(SystemClock, "now", lambda _: now + 120_000)

    assert "warning" == level(cli("doctor", "--json"), "delivery")


def test_a_missing_file_is_nothing_to_examine(cli: Cli) -> None:
    """As for every command."""
    assert 3 == cli("doctor").code
