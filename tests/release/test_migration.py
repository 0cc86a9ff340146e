"""A migration that is killed at any of its statements has not begun."""

from __future__ import annotations

import shutil
import signal
import sys
from itertools import count
from pathlib import Path

import apsw
import pytest
from tests.children import Child

from onceward import Postbox
from onceward.file import migrations

PLANTED = """
CREATE TABLE _onceward_planted (seq INTEGER PRIMARY KEY, id TEXT NOT NULL) STRICT;
INSERT INTO _onceward_planted SELECT seq, id FROM _onceward_outbox;
CREATE INDEX _onceward_planted_ids ON _onceward_planted (id);
ALTER TABLE _onceward_outbox ADD COLUMN planted INTEGER NOT NULL DEFAULT 7;
UPDATE _onceward_outbox SET planted = seq;
CREATE VIEW onceward_planted AS SELECT seq, id FROM _onceward_planted;
DROP INDEX _onceward_planted_ids;
"""
"""A step that makes a table from rows, widens another, and changes all rows of it."""
MADE = 5
"""Messages in the file."""
STATEMENTS = len(PLANTED.strip().splitlines()) + 2
"""Those of the step, the record of it, and the COMMIT; before each the process is killed."""
Found = tuple[list[int], list[str], set[int]]
MIGRATE = """
import os, signal, sys
from pathlib import Path
import apsw
from onceward.file import migrations

schema, db, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begun = False

def look(cursor, sql, bindings):
    global begun, left
    begun = begun or "_onceward_planted" in sql
    if begun:
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
    return True

def hook(connection):
    connection.exec_trace = look

apsw.connection_hooks.append(hook)
migrations.folder = lambda: schema
from onceward.ops.cli import main
sys.exit(main(["migrate", db]))
"""


START = "from onceward.ops.cli import main\n"


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """Return the folder of a schema with a further step."""
    copy = tmp_path / "schema"
    shutil.copytree(migrations.folder(), copy)
    (copy / "0002_planted.sql").write_text(PLANTED, encoding="utf-8")
    return copy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with messages, of the schema without it."""
    path = tmp_path / "a.db"
    with Postbox(path, agent="a", start=False, hold_unknown=True) as box:
        for n in range(MADE):
            box.send("b", n)
    return path


def migrate(schema: Path, file: Path, *, left: int = -1, planted: str = "") -> int:
    """Run ``onceward migrate``; kill it before a statement of the step, and return its code."""
    program = MIGRATE.replace(START, planted + START)
    command = [sys.executable, "-c", program, schema, file, left]
    with Child(command, "stdout", "stderr") as child:
        child.ended()
    return child.returncode


def found(file: Path) -> Found:
    """Return the steps of a file, what the planted one made, and the values that it wrote."""
    con = apsw.Connection(str(file))
    steps = [int(str(n)) for (n,) in con.execute("SELECT version FROM _onceward_migrations")]
    made = [
        str(name)
        for (name,) in con.execute(
            "SELECT name FROM sqlite_schema WHERE name LIKE '%planted%' ORDER BY name"
        )
    ]
    wide = con.execute("SELECT 1 FROM pragma_table_info('_onceward_outbox') WHERE name = 'planted'")
    wrote = (
        {int(str(n)) for (n,) in con.execute("SELECT planted FROM _onceward_outbox")}
        if wide.fetchall()
        else set[int]()
    )
    con.close()
    return steps, made, wrote


BEFORE: Found = ([1], [], set())
AFTER: Found = ([1, 2], ["_onceward_planted", "onceward_planted"], set(range(1, MADE + 1)))


def test_a_migration_that_is_killed_is_whole_or_not_begun(schema: Path, file: Path) -> None:
    """Up to its COMMIT nothing of it is there; the next run does all of it."""
    seen = list[Found]()
    for left in count():
        killed = file.with_name(f"{left}.db")
        shutil.copy(file, killed)
        code = migrate(schema, killed, left=left)
        if code == 0:
            break
        assert -signal.SIGKILL == code
        seen.append(found(killed))
        assert BEFORE == seen[-1]
        assert 0 == migrate(schema, killed)
        assert AFTER == found(killed)

    assert len(seen) >= STATEMENTS
    assert AFTER == found(killed)


TORN = """
whole = migrations.apply

def apply(tx, step, now):
    if step.version == 2:
        for line in step.sql.strip().splitlines():
            tx.rows(line)
            tx.rows("COMMIT")
            tx.rows("BEGIN IMMEDIATE")
        step = step._replace(sql="SELECT 1")
    whole(tx, step, now)

migrations.apply = apply
"""
"""Makes a step commit each of its statements."""


@pytest.mark.broken
def test_a_step_that_is_not_one_transaction_is_found(schema: Path, file: Path) -> None:
    """Killed before its fourth statement, it leaves the first one behind."""
    code = migrate(schema, file, left=4, planted=TORN)

    assert -signal.SIGKILL == code
    assert ([1], ["_onceward_planted"], set()) == found(file)


def test_a_file_that_was_migrated_goes_on(
    schema: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are there, in their order; the release without the step refuses it."""
    assert 0 == migrate(schema, file)
    with pytest.raises(Exception, match="schema 2, this version knows 1: upgrade onceward"):
        Postbox(file, agent="a", start=False)

    monkeypatch.setattr(migrations, "folder", lambda: schema)
    migrations.migrations.cache_clear()
    try:
        with Postbox(file, agent="a", start=False, hold_unknown=True) as box:
            bodies = box.query("SELECT body FROM onceward_outbox ORDER BY seq")
            assert [(str(n),) for n in range(MADE)] == bodies
            assert [] == box.file.check()
            assert "pending" == box.state(box.send("b", "later"))
    finally:
        monkeypatch.undo()
        migrations.migrations.cache_clear()
