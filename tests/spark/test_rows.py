"""Rows of one file as Arrow, whatever stands in them."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from onceward import Postbox

pytest.importorskip("pyarrow", reason="pip install 'onceward[spark]' brings it")


from onceward.fleet.columns import tables
from onceward.fleet.opening import opened
from onceward.fleet.plan import Slice
from onceward.fleet.rows import ENOUGH, Wanted, batches

ROWS = 6 * ENOUGH
FILL = """
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows)
INSERT INTO _onceward_outbox (id, recipient, session, lane, type, topic, state, frame, created_at,
  key, channel, attempts)
SELECT printf('%08x-0000-7000-8000-000000000000', i), 'bob', 's', 's' || (i / 700), 'note',
       iif(i = :odd, 'odd', NULL), 'pending', :frame, 1 + i / 900, iif(i > :odd, i, NULL),
       iif(i % 500 < 400, 'c', NULL), i = :odd
  FROM n
"""
NAMES = ("seq", "recipient", "lane", "topic", "key", "channel", "attempts", "created_at", "frame")


@pytest.mark.parametrize("odd", [0, ENOUGH - 1, ENOUGH, 3 * ENOUGH + 7, ROWS - 1])
@pytest.mark.parametrize("size", [ENOUGH, ENOUGH + 50, ROWS])
@pytest.mark.broken("rows that no agent wrote")
def test_columns_that_change_are_read_as_they_are(tmp_path: Path, size: int, odd: int) -> None:
    """
    A column has one value for many rows, then another, a NULL or many: nothing is carried over.

    The one row that differs stands at the edge of a batch, behind it or in its middle.
    """
    path = tmp_path / "alice.db"
    with Postbox(path, agent="alice", start=False, max_pending=ROWS + 1) as box, box.begin() as tx:
        tx.execute(FILL, {"rows": ROWS, "odd": odd, "frame": '{"data":1}'})
    table = tables()["outbox"]
    wanted = Wanted(table.named(NAMES), rows=size)
    with opened(str(path)) as source:
        found = list(batches(source, table.parts[0], wanted, Slice(str(path))))
        sql = f"SELECT {', '.join(NAMES)} FROM onceward_outbox ORDER BY seq"
        expected = source.con.execute(sql.replace("created_at", "created_at * 1000")).fetchall()

    numbers = {"created_at": "int64"}
    columns = [[] for _ in NAMES]  # type: list[list[object]]
    for batch in found:
        for place, name in enumerate(NAMES):
            column = batch.column(place)
            columns[place] += (
                column.cast(numbers[name]) if name in numbers else column
            ).to_pylist()
    assert expected == list(zip(*columns, strict=True))
    assert len(found) >= ROWS // size


def test_a_column_that_keeps_its_value_is_compared_by_sqlite(tmp_path: Path) -> None:
    """From the second batch on, what all rows have in common is not read any more."""
    path = tmp_path / "alice.db"
    with Postbox(path, agent="alice", start=False, hold_unknown=True) as box:
        box.session().send_many([("bob", number) for number in range(3 * ENOUGH)], type="note")
    table, asked = tables()["outbox"], list[str]()
    wanted = Wanted(table.named(["id", "recipient", "topic"]), rows=ENOUGH)
    with opened(str(path)) as source:
        source.con.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: asked.append(event["sql"]))
        read = list(batches(source, table.parts[0], wanted, Slice(str(path))))

    assert 3 * ENOUGH == sum(batch.num_rows for batch in read)
    selected = [sql for sql in asked if "FROM onceward_outbox" in sql]
    assert [
        'SELECT seq, 1, "id", "recipient", "topic" ',
        'SELECT seq, "recipient" IS ? AND "topic" IS ?, "id" ',
    ] == [sql.split("FROM")[0] for sql in selected]
