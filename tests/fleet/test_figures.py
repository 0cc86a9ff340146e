"""Figures of a fleet are written together, however many pairs, lanes and times there are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from onceward.fleet.engine import MESSAGES
from onceward.fleet.figures import HOUR, TABLES, measure
from onceward.fleet.loading import workspace
from onceward.fleet.verdict_sql import FRAME

PAIRS, EACH = 10, 8
LANES = 2
"""Lanes of each pair, all of which are handled in the reverse order."""


def _message(pair: int, number: int) -> dict[str, object]:
    return {
        "sender": f"near-{pair}",
        "recipient": f"far-{pair}",
        "id": f"{number:02}",
        "verdict": "delivered_once",
        "created_at": HOUR,
        "received_at": HOUR + number,
        "processed_at": HOUR + 2 * number,
        "lane": f"normal/{number % LANES}",
        "out_seq": number,
        "in_seq": number,
        "mark_seq": 1 + EACH - number,
    }


@pytest.mark.parametrize("pairs", [1, PAIRS])
def test_all_figures_are_one_commit(pairs: int, tmp_path: Path) -> None:
    """A row more costs no commit more, and each table has a row for each that was counted."""
    commits: list[str] = []
    rows = [_message(pair, number) for number in range(1, 1 + EACH) for pair in range(pairs)]
    with closing(workspace(tmp_path / "work.db")) as con:
        con.execute(MESSAGES)
        marks = ", ".join("?" * (len(FRAME) + 1))
        con.executemany(
            f"INSERT INTO messages VALUES ({marks})",
            [(*(row.get(name) for name in FRAME), 0) for row in rows],
        )

        def committing() -> bool:
            commits.append("")
            return False

        con.set_commit_hook(committing)
        sums = measure(con)
        stored = {
            name: con.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in TABLES
        }

    assert 1 == len(commits)
    assert {"pairs": pairs, "lanes": LANES * pairs, "hours": 2, "spans": 3 * EACH * pairs} == stored
    assert [EACH] * pairs == [row["delivered_once"] for row in sums.pairs]
    assert {EACH // LANES - 1} == {row["overtook"] for row in sums.lanes}
    assert {pairs} == {row["count"] for row in sums.spans}
