"""Migrations: each step once, in order, all rows kept, no file of another version touched."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import onceward.features
from onceward import Postbox
from onceward.errors import SchemaMismatch, SchemaTooNew, StoreError
from onceward.file import migrations
from onceward.file.migrations import Migration
from onceward.file.transaction import StoreTransaction

FEATURES = Path(str(onceward.features.__file__)).parent

Open = Callable[..., Postbox]


def test_the_ledger_names_every_step(box: Postbox) -> None:
    """A new file records which steps made it, with their digests."""
    known = migrations.migrations()

    assert [(m.version, m.name) for m in known] == box._db.read(
        "SELECT version, name FROM _onceward_migrations ORDER BY version"
    )
    assert sorted({m.version for m in known}) == [m.version for m in known]
    assert box.file.health().schema == known[-1].version


def test_opening_again_applies_nothing(opened: Open) -> None:
    """A file that is up to date is left as it is."""
    opened().close()
    before = opened()._db.read("SELECT * FROM _onceward_migrations")

    assert before == opened()._db.read("SELECT * FROM _onceward_migrations")


def test_an_older_file_is_brought_up_with_all_its_rows(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of an older version gets the missing steps when it is opened; its messages stay."""
    box = opened()
    ids = box.send_many([("b", k) for k in range(20)])
    box.close()
    newer = Migration(
        migrations.migrations()[-1].version + 1,
        "9999_more",
        "ALTER TABLE _onceward_outbox ADD COLUMN note TEXT; CREATE TABLE extra (x) STRICT".replace(
            "(x)", "(x TEXT)"
        ),
    )
    known = (*migrations.migrations(), newer)
    monkeypatch.setattr(migrations, "migrations", lambda: known)

    box = opened()

    assert [(each, None) for each in ids] == box._db.read(
        "SELECT id, note FROM _onceward_outbox ORDER BY seq"
    )
    assert (newer.version, []) == (box.file.health().schema, box.file.check())
    assert "pending" == box.state(box.send("b", 1))


def test_a_step_that_fails_leaves_the_older_file(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Step and record are one commit.

    After a failure the file is what it was, and the old version still opens it.
    """
    box = opened()
    kept = box.send("b", 1)
    box.close()
    old = migrations.migrations()
    broken = (
        *old,
        Migration(
            len(old) + 1, "9999_broken", "CREATE TABLE half (x TEXT); CREATE TABLE half (x TEXT)"
        ),
    )
    monkeypatch.setattr(migrations, "migrations", lambda: broken)
    with pytest.raises((StoreError, apsw.SQLError)):
        opened()
    monkeypatch.setattr(migrations, "migrations", lambda: old)

    box = opened()

    assert ("pending", []) == (
        box.state(kept),
        box._db.read("SELECT name FROM sqlite_schema WHERE name = 'half'"),
    )


def test_a_newer_file_is_refused_by_both_versions_numbers(opened: Open, tmp_path: Path) -> None:
    """
    A file of a newer version says which version it has and which one we know.

    Nothing in it changes.
    """
    box = opened()
    known = box.file.health().schema
    box._db.write(
        lambda tx: tx.run("INSERT INTO _onceward_migrations VALUES (9999, 'later', x'00', 1)")
    )
    box.close()
    before = (tmp_path / "a.db").read_bytes()

    with pytest.raises(SchemaTooNew, match=rf"9999.*{known}.*upgrade"):
        opened()

    assert before == (tmp_path / "a.db").read_bytes()


def test_a_file_that_is_upgraded_meanwhile_is_let_go(opened: Open, tmp_path: Path) -> None:
    """
    The maintenance of an older process notices.

    From then on every write says so, until the file is what it was again.
    """
    box = opened()
    kept = box.send("b", 1)
    with closing(apsw.Connection(str(tmp_path / "a.db"))) as newer:
        newer.execute("INSERT INTO _onceward_migrations VALUES (9999, 'later', x'00', 1)")
        with pytest.raises(SchemaTooNew, match="9999"):
            box._maintenance.run_once()
        with pytest.raises(SchemaTooNew, match="9999"):
            box.send("b", 2)
        with pytest.raises(SchemaTooNew, match="9999"):
            box.state(kept)
        newer.execute("DELETE FROM _onceward_migrations WHERE version = 9999")

    box.send("b", 3)

    assert ("pending", 2) == (box.state(kept), box.file.stats()["pending"])


def test_a_file_with_other_steps_is_refused(opened: Open) -> None:
    """A ledger that names a step of ours otherwise is not a file of ours."""
    box = opened()
    box._db.write(
        lambda tx: tx.run("UPDATE _onceward_migrations SET name = 'other' WHERE version = 1")
    )
    box.close()

    with pytest.raises(SchemaMismatch, match="other"):
        opened()


def test_pending_steps_come_in_order(box: Postbox) -> None:
    """Missing steps are applied from the oldest to the newest, a missing middle step too."""
    known = tuple(Migration(k, f"{k:04d}", "") for k in range(1, 5))
    box._db.write(lambda tx: tx.run("DELETE FROM _onceward_migrations"))
    box._db.write(
        lambda tx: tx.many(
            "INSERT INTO _onceward_migrations VALUES (?, ?, x'00', 1)", [(1, "0001"), (3, "0003")]
        )
    )

    assert [2, 4] == [m.version for m in box._db.write(lambda tx: migrations.pending(tx, known))]


def test_migrations_are_applied_through_the_transaction_alone(box: Postbox) -> None:
    """Applying is a part of the caller's transaction and is undone with it."""
    step = Migration(77, "0077_x", "CREATE TABLE seventy_seven (x TEXT)")

    def fail(tx: StoreTransaction) -> None:
        migrations.apply(tx, step, tx.now)
        raise KeyError

    with pytest.raises(KeyError):
        box._db.write(fail)
    assert [] == box._db.read(
        "SELECT name FROM sqlite_schema WHERE name = 'seventy_seven'"
        " UNION SELECT name FROM _onceward_migrations WHERE version = 77"
    )


def test_the_schema_needs_no_new_sqlite(tmp_path: Path, shell: Callable[[Path, str], str]) -> None:
    """The machine's own older SQLite can make the whole schema from the files."""
    path = tmp_path / "old.db"
    script = "\n".join(step.sql for step in migrations.migrations())

    assert "" == shell(path, script)
    later = [
        FEATURES.parent / "core" / "rows" / "usage.sql",
        FEATURES / "history" / "transitions.sql",
    ]
    assert ["", ""] == [shell(path, each.read_text(encoding="utf-8")) for each in later]
