"""
No statement of queues and runs walks a whole table.

Its cost depends on the rows it touches, not on the table's size.
"""

import re
from pathlib import Path

import pytest

from onceward import Postbox
from onceward.core.rows import outbox
from onceward.features.runs import runs, session_queues

LARGE = re.compile(
    r"SCAN (_onceward_(inbox|runs|drops|outbox|processed_messages|dead_letters)|b|r|o)\b"
    r"(?! USING (COVERING )?INDEX _onceward_runs_(open|ended|left)\b)"
)
STATEMENTS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": sql
    for module in (session_queues, runs)
    for name, sql in vars(module).items()
    if isinstance(sql, str) and re.match(r"\s*(SELECT|UPDATE|INSERT|DELETE)\b", sql)
} | {
    "outbox.FIND_FOUND": outbox.FIND_FOUND,
    "outbox.FIND_DUPLICATE": outbox.FIND_DUPLICATE,
    "outbox.TASKS_CANCELLED": outbox.TASKS_CANCELLED,
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_finds_its_rows_by_an_index(name: str, tmp_path: Path) -> None:
    """The plan names no scan of a table that grows with the mail."""
    sql = STATEMENTS[name]
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        bindings = dict.fromkeys(re.findall(r":(\w+)", sql)) or (None,) * len(
            set(re.findall(r"\?\d", sql)) or re.findall(r"\?", sql)
        )
        plan = [row[3] for row in box._db.read(f"EXPLAIN QUERY PLAN {sql}", bindings)]

    assert [] == [line for line in plan if LARGE.match(line)]


@pytest.mark.parametrize(
    "name", ["session_queues.AGENDA", "session_queues.SOURCES", "session_queues.READY"]
)
def test_looking_for_arrivals_walks_ready_lanes_only(name: str, tmp_path: Path) -> None:
    """Lanes at rest cost nothing, however many senders and sessions there are."""
    sql = STATEMENTS[name]
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        bindings = dict.fromkeys(re.findall(r":(\w+)", sql))
        plan = [row[3] for row in box._db.read(f"EXPLAIN QUERY PLAN {sql}", bindings)]

    assert "SEARCH l USING INDEX _onceward_lanes_work (due_at=?)" in plan
    assert [] == [line for line in plan if "_onceward_lanes_1" in line]


def test_the_statements_are_really_there() -> None:
    """The table above did not become empty by a renaming."""
    assert {"runs.LEAVE", "session_queues.NEXT", "runs.LOST", "session_queues.SOURCES"} <= set(
        STATEMENTS
    )
