"""Handlers and runs with steps, waits and output, under SIGKILL: each effect happens once."""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forking import Forked
from tests.proof.seed import proof_seed, size
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.types import Chunk, Ended, Restarted

KILLS = size(80, 10, "ONCEWARD_STEP_KILLS")
SEED = proof_seed()
JOBS = 3
"""Jobs sent between two kills, half of them to a session with runs."""
WORDS = [f"word {n}" for n in range(30)]
PROCESS = """
import sys, time
from onceward import Agent, Context, Postbox, Run, Tuning, step

folder, = sys.argv[1:]
agent = Agent("bob")
agent.waits("approved")
words = [f"word {n}" for n in range(30)]

def note(n, what):
    step.tx.execute("INSERT INTO effects VALUES (?, ?)", (n, what))
    return what

def work(n, context):
    def turn():
        stream = context.stream()
        for word in words:
            stream.append(word)
            time.sleep(0.001)
        with open(f"{folder}/calls", "a") as calls:
            calls.write(f"{n} {step.key}\\n")
        return n

    context.step(note, n, "first", tx=True, name="first")
    context.step(turn)
    context.sleep(0.02)
    context._steps.wait("approved", None)
    context.step(note, n, "last", tx=True, name="last")

@agent.on("job")
def handle(job: dict, ctx: Context) -> None:
    work(job["n"], ctx)
    ctx.tx.execute("INSERT INTO effects VALUES (?, 'end')", (job["n"],))

@agent.runs("runs-*", debounce=0)
def serve(run: Run) -> None:
    n = run.message.body["n"]
    work(n, run)
    run.at_end(lambda tx: tx.execute("INSERT INTO effects VALUES (?, 'end')", (n,)))

with Postbox(f"{folder}/bob.db", agent=agent, durability="fast", delivery_retry="50ms..200ms",
             handler_retry="50ms..200ms", lease=2.0, workers=2,
             tuning=Tuning(stream_batch_for=0.005)):
    time.sleep(600)
"""


@pytest.mark.timeout(180 + 4 * KILLS)
def test_each_effect_of_a_step_happens_once(
    tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """
    Whenever the process dies: rows of steps are there once, and output is whole and in order.

    A function whose process died is called again with the same key.
    """
    dice, asked = random.Random(SEED), list[str]()
    bob = Agent("bob")
    bob.waits("approved")
    with Postbox(tmp_path / "bob.db", agent=bob, start=False) as box, box.begin() as tx:
        tx.execute("CREATE TABLE effects (n INTEGER, what TEXT)")

    def begin() -> subprocess.Popen[bytes]:
        return Forked([sys.executable, "-c", PROCESS, tmp_path])

    process = begin()
    try:
        with Postbox(tmp_path / "alice.db", agent="alice", durability="fast") as alice:
            for _ in range(KILLS):
                for _ in range(JOBS):
                    n = len(asked)
                    session = alice.session(f"{('runs', 'jobs')[n % 2]}-{n}")
                    asked.append(session.send("bob", {"n": n}, type="job"))
                    session.send("bob", {}, type="approved")
                time.sleep(dice.uniform(0.05, 0.4))
                process.kill()
                process.wait()
                process = begin()
            until(lambda: _ended(alice, asked))
            shown = [_shown(alice, each) for each in asked]
    finally:
        process.kill()
        process.wait()

    with Postbox(tmp_path / "bob.db", agent="bob", start=False) as box:
        effects = Counter(tuple(row) for row in box.query("SELECT n, what FROM effects"))
        again = box.query("SELECT id FROM onceward_inbox WHERE attempts > 1")
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    aloud(f"{len(asked)} jobs, {KILLS} kills, {len(again)} called again")
    assert {(n, what): 1 for n in range(len(asked)) for what in ("first", "last", "end")} == effects
    assert [WORDS] * len(asked) == shown
    assert len(asked) == len({key for _, key in calls}) == len({n for n, _ in calls})


def _ended(alice: Postbox, asked: list[str]) -> bool:
    return all(alice.state(each) == "acked" for each in asked)


def _shown(alice: Postbox, message_id: str) -> list[object]:
    """Return the output that a reader of a message has at its end."""
    kept: list[object] = []
    for item in alice.follow(message_id, timeout=10):
        match item:
            case Chunk(body=body):
                kept.append(body)
            case Restarted():
                kept.clear()
            case Ended(state="processed"):
                return kept
    return ["did not end", *kept]
