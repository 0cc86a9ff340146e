"""Rows of a query: tuples with named columns."""

import pickle
from pathlib import Path

import pytest

from onceward import Postbox
from onceward.file.transaction import row_class

SQL = "SELECT 1 AS id, 'x' AS text, 3 AS count, 4 AS id"


def test_a_row_is_a_tuple_with_names(tmp_path: Path) -> None:
    """Places, names and comparison work, and of two columns of one name the first counts."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        [row] = box.query(SQL)
        none = box.query("SELECT 1 WHERE 0")
        read = box._db.query("SELECT :n AS n", {"n": 5})

    assert (1, "x", 3, 4) == row
    assert (1, "x", 3, "(1, 'x', 3, 4)") == (row["id"], row["text"], row["count"], repr(row))
    assert {"id": 1, "text": "x", "count": 3} == dict(row)
    assert ((1, "x"), 4) == (row[:2], row[-1])
    assert row == pickle.loads(pickle.dumps(row))  # noqa: S301 - our own
    assert "x" == pickle.loads(pickle.dumps(row))["text"]  # noqa: S301 - our own
    assert ([], [{"n": 5}]) == (none, [dict(each) for each in read])
    with pytest.raises(KeyError, match="cents"):
        row["cents"]


def test_queries_with_ever_new_columns_fill_no_memory(tmp_path: Path) -> None:
    """The classes of rows that were not asked for lately are made again, and rows stay usable."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        [first] = box.query('SELECT 7 AS "column 0"')
        for number in range(1, 400):
            box.query(f'SELECT 7 AS "column {number}"')
        [again] = box.query('SELECT 7 AS "column 0"')

    kept = row_class.cache_info().currsize
    assert 400 > kept
    assert (first, 7, 7) == (again, first["column 0"], again["column 0"])
