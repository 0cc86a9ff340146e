"""Results of plain messages, under SIGKILL of the worker: one effect and its result, or neither."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from tests.proof.seed import proof_seed, size

from onceward import Agent, Context, Postbox
from onceward.testing import crew

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KILLS = size(60, 10, "ONCEWARD_RESULT_KILLS")
SEED = proof_seed()
jobs = Agent("jobs")


@jobs.at_open
def create(box: Postbox) -> None:
    """Create the table of effects."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS effects (n INTEGER PRIMARY KEY, result INTEGER)")


@jobs.on("job")
def work(n: int, ctx: Context) -> int:
    """Report, write and return the number of an effect, which each call counts on."""
    ctx.progress(n)
    [(found,)] = ctx.tx.execute("SELECT coalesce(max(result), 0) + 1 FROM effects")
    ctx.tx.execute("INSERT INTO effects VALUES (?, ?)", (n, found))
    return int(found)


def role(folder: Path, name: str) -> None:
    """Work forever."""
    path = folder / f"{name}.db"
    with Postbox(path, agent=jobs, durability="fast", handler_retry="50ms..200ms", lease=2.0):
        time.sleep(600)


@pytest.mark.timeout(120 + 4 * KILLS)
def test_a_result_is_committed_with_the_effects(
    tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """The sender reads in the recipient's file what the one call returned that was committed."""
    Postbox(tmp_path / "jobs.db", agent=jobs, start=False).close()
    sent: dict[str, int] = {}
    with Postbox(tmp_path / "shop.db", agent="shop", ack_timeout=1.0) as shop:
        with crew(tmp_path, {"jobs": role}, random.Random(SEED)) as team:
            for _ in range(KILLS):
                for _ in range(3):
                    n = len(sent)
                    sent[shop.send("jobs", n, type="job", ordering_key=f"k{n % 5}")] = n
                team.torment(team.kills + 1)
            found = {n: shop.result(each, reply=int, timeout=60) for each, n in sent.items()}
            told = {n: shop.progress_of(each) for each, n in sent.items()}
            states = {shop.status(each).state for each in sent}
        with Postbox(tmp_path / "jobs.db", start=False) as box:
            effects = dict(box.query("SELECT n, result FROM effects"))
    aloud(f"results: {KILLS} kills, {len(sent)} jobs, seed {SEED}")

    assert effects == found
    assert {n: n for n in sent.values()} == told
    assert {"done"} == states
