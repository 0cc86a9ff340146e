"""Members of a pool are killed in their handlers: no job is lost, and none takes effect twice."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.children import PYTHON, Child
from tests.proof.seed import proof_seed
from tests.waiting import until

from onceward import Postbox

JOBS = 120
NAMES = ("t1", "t2", "t3")
PROGRAM = """
import sys, time
from pathlib import Path
from onceward import Agent, Context, Postbox

agent = Agent(sys.argv[2], serves="thumbs")


@agent.on("job")
def job(body: int, ctx: Context) -> None:
    ctx.tx.execute("INSERT INTO ledger VALUES (?)", (body,))
    time.sleep(0.005)


with Postbox(Path(sys.argv[1]) / f"{agent.name}.db", agent=agent, lease=2.0) as box:
    box.query("SELECT 1")
    print("up", flush=True)
    sys.stdin.read()
"""


def member(home: Path, name: str) -> Child:
    """Start the process of a member; return once it works."""
    child = Child([*PYTHON, "-c", PROGRAM, home, name], "stdin", "stdout")
    assert "up" == child.hear()
    return child


def states(box: Postbox) -> dict[str, int]:
    """Return how many messages of an outbox are in each state."""
    return dict(map(tuple, box.query("SELECT state, count(*) FROM onceward_outbox GROUP BY 1")))


def has_acked(box: Postbox, wanted: int) -> bool:
    """Return whether so many messages have been handled."""
    return states(box).get("acked", 0) >= wanted


def ledger(home: Path) -> list[int]:
    """Return what took effect at all members, in order of the bodies."""
    found: list[Any] = []
    for name in NAMES:
        with Postbox(home / f"{name}.db", agent=name, start=False) as box:
            found += box.query("SELECT n FROM ledger")
    return sorted(n for (n,) in found)


def test_killed_members_lose_and_double_nothing(tmp_path: Path) -> None:
    """Others handle what they had not accepted; the rest waits in their files, for a process."""
    choose = random.Random(proof_seed())
    for name in NAMES:
        with Postbox(tmp_path / f"{name}.db", agent=name, start=False) as box, box.begin() as tx:
            tx.execute("CREATE TABLE ledger (n)")
    with ExitStack() as stack, Postbox(tmp_path / "shop.db", agent="shop") as shop:
        running = {name: stack.enter_context(member(tmp_path, name)) for name in NAMES}
        with shop.begin() as tx:
            for n in range(JOBS):
                tx.send("thumbs", n, type="job", ordering_key=f"k{n % 20}")
        for kill in range(6):
            wanted = JOBS * (kill + 1) // 10
            until(partial(has_acked, shop, wanted))
            name = choose.choice(NAMES)
            running[name].send_signal(signal.SIGKILL)
            running[name].code()
            running[name] = stack.enter_context(member(tmp_path, name))
        until(lambda: states(shop) == {"acked": JOBS})
        by = shop.query("SELECT count(DISTINCT recipient) FROM onceward_outbox")
        for child in running.values():
            child.ended("")

    assert list(range(JOBS)) == ledger(tmp_path)
    assert len(NAMES) == by[0][0]
