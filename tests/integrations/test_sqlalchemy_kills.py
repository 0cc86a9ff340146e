"""A process that is killed between a row of the ORM and its message leaves both or none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.children import PYTHON, Child

from onceward import Postbox

CHILD = Path(__file__).with_name("orm_child.py")
TASKS = [
    ("sell", "order"),
    ("sell_on_loop", "order"),
    ("handle", "booked"),
    ("handle_on_loop", "booked"),
]


def live(task: str, path: Path, words: int) -> int:
    """Run the process, kill it after *words* lines; return how many commits it has told."""
    told = 0
    with Child([*PYTHON, CHILD, task, path], "stdout") as child:
        for _ in range(words):
            word = child.hear()
            assert word, f"the child ended by itself, {child.code()}"
            told += word == "committed"
    return told


@pytest.mark.parametrize("rounds", [2, pytest.param(8, marks=pytest.mark.proof)])
@pytest.mark.parametrize(("task", "type_"), TASKS)
def test_a_kill_leaves_the_row_and_the_message_or_neither(
    tmp_path: Path, task: str, type_: str, rounds: int
) -> None:
    """After each kill both tables hold the same numbers, each once, and all that were told."""
    rng, path, told = random.Random(18), tmp_path / "shop.db", 0
    for turn in range(rounds):
        told += live(task, path, 1 + turn % 3 + 3 * rng.randrange(4))
        with Postbox(path, agent="shop", start=False) as box:
            rows = box.query("SELECT n FROM orders ORDER BY n")
            sent = box.query(
                "SELECT CAST(body AS INTEGER) FROM onceward_outbox WHERE type = ? ORDER BY 1",
                (type_,),
            )

            assert rows == sent == sorted(set(rows))
            assert told <= len(rows)
            assert [] == box.file.check()
