"""Handlers that ask, under SIGKILL: each question is asked once, each job is done once."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forking import Forked
from tests.proof.seed import proof_seed, size
from tests.waiting import until

from onceward import Postbox

KILLS = size(150, 25, "ONCEWARD_ASKING_KILLS")
SEED = proof_seed()
JOBS = 4
"""Jobs sent between two kills."""
PROCESS = """
import sys, time
from onceward import Agent, Context, Postbox

folder, name = sys.argv[1:]
agent = Agent(name)
table = "CREATE TABLE IF NOT EXISTS effects (n INTEGER, found TEXT)"

@agent.on("job", unique_for="1h")
def work(job: dict, ctx: Context) -> None:
    ctx.tx.execute("INSERT INTO effects VALUES (?, 'begun')", (job["n"],))
    later = ctx.request("oracle", {"n": 10 * job["n"]}, type="question")
    one = ctx.ask("oracle", {"n": 10 * job["n"] + 1}, type="question", reply=int)
    two = ctx.ask("oracle", {"n": 10 * job["n"] + 2 + 0 * one}, type="question", reply=int)
    three = ctx.result(later, reply=int)
    ctx.tx.execute("INSERT INTO effects VALUES (?, ?)", (job["n"], f"{one} {two} {three}"))

@agent.on("question")
def answer(question: dict, ctx: Context) -> int:
    ctx.tx.execute("INSERT INTO effects VALUES (?, 'asked')", (question["n"],))
    return -question["n"]

@agent.at_open
def create(box: Postbox) -> None:
    with box.begin() as tx:
        tx.execute(table)

with Postbox(f"{folder}/{name}.db", agent=agent, durability="fast", delivery_retry="50ms..200ms",
             handler_retry="50ms..200ms", tuning=dict(breaker_failures=1000), ack_timeout=1.0,
             lease=2.0, workers=2):
    time.sleep(600)
"""
EFFECTS = "SELECT n, found FROM effects ORDER BY n, found DESC"


@pytest.mark.timeout(180 + 4 * KILLS)
def test_each_question_is_asked_once(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """
    Whatever process dies, a job ends with one set of effects and three questions.

    Each job is sent twice, and of two like ones one is handled.
    """
    dice, jobs = random.Random(SEED), 0
    for name in ("bob", "oracle"):
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()

    def begin(name: str) -> subprocess.Popen[bytes]:
        return Forked([sys.executable, "-c", PROCESS, tmp_path, name])

    team = {name: begin(name) for name in ("bob", "oracle")}
    try:
        with Postbox(tmp_path / "alice.db", agent="alice") as alice:
            for _ in range(KILLS):
                for _ in range(JOBS):
                    for session in (f"s{jobs % 3}", f"again{jobs % 2}"):
                        alice.session(session).send("bob", {"n": jobs}, type="job")
                    jobs += 1
                time.sleep(dice.uniform(0.2, 0.8))
                name = dice.choice(("bob", "oracle"))
                team[name].kill()
                team[name].wait()
                team[name] = begin(name)
            until(lambda: len(effects(tmp_path, "bob")) >= 2 * jobs)
    finally:
        for process in team.values():
            process.kill()
            process.wait()
    aloud(f"asking handlers: {KILLS} kills, {jobs} jobs, seed {SEED}")

    done = [
        row
        for n in range(jobs)
        for row in ((n, "begun"), (n, f"{-10 * n - 1} {-10 * n - 2} {-10 * n}"))
    ]
    assert done == effects(tmp_path, "bob")
    asked = [(10 * n + k, "asked") for n in range(jobs) for k in range(3)]
    assert asked == effects(tmp_path, "oracle")


def effects(folder: Path, name: str) -> list[tuple[int, str]]:
    """Return what the handlers of an agent have written."""
    with Postbox(folder / f"{name}.db", start=False) as box:
        if not box.query("SELECT name FROM sqlite_schema WHERE name = 'effects'"):
            return []
        return box.query(EFFECTS)
