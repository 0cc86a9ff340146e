"""Groups, under SIGKILL of the sender and of the worker: each is complete once, and only then."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.proof.seed import proof_seed, size
from tests.waiting import until

from onceward import Agent, Context, Postbox, Reject, Tuning
from onceward.testing import crew
from onceward.types import GroupDone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KILLS = size(80, 12, "ONCEWARD_GROUP_KILLS")
SEED = proof_seed()
SIZE = 4
"""Messages of a group; one of them fails."""
UNENDED = """
SELECT (SELECT count(*) FROM onceward_inbox WHERE state IN ('pending', 'processing'))
       + (SELECT count(*) FROM onceward_outbox WHERE state IN ('pending', 'sending', 'sent'))
"""
boss, hands = Agent("boss"), Agent("hands")


@boss.at_open
def create(box: Postbox) -> None:
    """Create the tables of what has happened, in which nothing is unique."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS split (n INTEGER, id TEXT)")
        tx.execute("CREATE TABLE IF NOT EXISTS done (n INTEGER, id TEXT, told TEXT)")


@boss.on("order")
def split(n: int, ctx: Context) -> None:
    """Send a group."""
    with ctx.group(then="boss", data=n) as group:
        for part in range(SIZE):
            group.send("hands", SIZE * n + part, type="part", ordering_key=f"k{part}")
    ctx.tx.execute("INSERT INTO split VALUES (?, ?)", (n, group.id))


@boss.on(GroupDone)
def done(group: GroupDone, ctx: Context) -> None:
    """Note what the group's message says, and the results of its messages."""
    found = ctx.gather(group.messages, reply=int, return_exceptions=True)
    total = sum(each for each in found if isinstance(each, int))
    told = f"{group.sent} {group.failed} {total}"
    ctx.tx.execute("INSERT INTO done VALUES (?, ?, ?)", (group.data, group.id, told))


@hands.on("part", attempts=20)
def work(n: int) -> int:
    """Return the number; fail for one of each group."""
    if n % SIZE == 0:
        raise Reject(str(n))
    return n


def role(folder: Path, name: str) -> None:
    """Work forever."""
    agent, path = {"boss": boss, "hands": hands}[name], folder / f"{name}.db"
    with Postbox(
        path, agent=agent, durability="fast", delivery_retry="50ms..200ms", lease=2.0,
        ack_timeout=1.0, tuning=Tuning(breaker_failures=1000),
    ):  # fmt: skip
        time.sleep(600)


def rows(folder: Path, sql: str) -> list[Any]:
    """Return rows of the sender's file."""
    with Postbox(folder / "boss.db", start=False) as box:
        return box.query(sql)


@pytest.mark.timeout(180 + 4 * KILLS)
def test_each_group_is_complete_once(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """As often as it was sent: by the call of the handler that was committed."""
    for agent in (boss, hands):
        Postbox(tmp_path / f"{agent.name}.db", agent=agent, start=False).close()
    orders = 0
    with (
        Postbox(tmp_path / "shop.db", agent="shop", ack_timeout=1.0) as shop,
        crew(tmp_path, {"boss": role, "hands": role}, random.Random(SEED)) as team,
    ):
        for _ in range(KILLS):
            shop.session(f"s{orders % 3}").send("boss", orders, type="order")
            orders += 1
            team.torment(team.kills + 1)
        until(lambda: len(rows(tmp_path, "SELECT * FROM done")) >= orders)
        until(lambda: rows(tmp_path, UNENDED) == [(0,)])
    aloud(f"groups: {KILLS} kills, {orders} groups, seed {SEED}")

    sent = rows(tmp_path, "SELECT n, id FROM split ORDER BY n")
    assert [*range(orders)] == [n for n, *_ in sent]
    totals = [sum(range(SIZE * n + 1, SIZE * n + SIZE)) for n in range(orders)]
    assert [
        (n, group, f"{SIZE} 1 {total}") for (n, group), total in zip(sent, totals, strict=True)
    ] == rows(tmp_path, "SELECT n, id, told FROM done ORDER BY n")
