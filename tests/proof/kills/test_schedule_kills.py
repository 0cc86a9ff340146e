"""Schedules under SIGKILL: each date has one message, by two processes whose clocks jump."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from tests.forking import Forked
from tests.proof.plant import replaced
from tests.proof.seed import proof_seed, size
from tests.waiting import until

from onceward import Postbox
from onceward.features.schedules import schedules

KILLS = size(200, 30, "ONCEWARD_SCHEDULE_KILLS")
SEED = proof_seed()
MOSTLY = 0.8
"""How often a process is killed after it has begun; else wherever it is."""
SENT = 10
"""Messages, for each kill, below which the trial has shown nothing."""
PROCESS = """
import sys, time
from onceward import Postbox
from onceward.testing import Controls
from onceward.features.schedules.scheduler import Scheduler
from onceward.features.schedules import schedules

class Fast:
    "A clock that runs a hundred times faster, from where it was started."
    def __init__(self, ahead): self.ahead = ahead
    def now(self): return round(1000 * (self.ahead + 100 * time.time()))
    def monotonic(self): return 100 * time.monotonic()

compose = Scheduler._compose_of

def slowly(*given):
    "Compose a message, while the other process may be quicker."
    time.sleep(0.003)
    return compose(*given)

Scheduler._compose_of = slowly
schedules.ADVANCE = sys.argv[3]
box = Postbox(
    sys.argv[1], agent="bob", testing=Controls(clock=Fast(float(sys.argv[2]))), durability="fast",
    hold_unknown=True, tuning=dict(poll_interval=0.01),
)
for missed in ("all", "one", "skip"):
    box.schedules.add(missed, every=1, missed=missed, to="carol")
print("begun", flush=True)
time.sleep(600)
"""
DATES = """
SELECT frame ->> '$.schedule', frame ->> '$.scheduledat' FROM onceward_outbox ORDER BY seq
"""


def torture(path: Path, kills: int, dice: random.Random, advance: str) -> None:
    """Kill one of two processes again and again; each begins with a clock of its own."""
    now = 1_700_000_000 - 100 * time.time()

    def begin() -> subprocess.Popen[bytes]:
        jump = dice.choice((0, 0, 20, -20, 300))
        words = [sys.executable, "-c", PROCESS, str(path), str(now + jump), advance]
        return Forked(words, stdout=subprocess.PIPE)

    both = [begin(), begin()]
    try:
        for _ in range(kills):
            which = dice.randrange(2)
            if dice.random() < MOSTLY:
                _line(both[which])
            time.sleep(dice.uniform(0, 0.5))
            _end(both[which])
            both[which] = begin()
        for each in both:
            _line(each)
        time.sleep(1)
    finally:
        for each in both:
            _end(each)


def _line(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has begun, however busy the machine is."""
    assert process.stdout is not None
    assert process.stdout.readline()


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


def dates(path: Path) -> dict[str, list[str]]:
    """Return the dates of each schedule's messages, as they were sent."""
    found: dict[str, list[str]] = {}
    with Postbox(path, start=False) as box:
        assert [] == box.file.check()
        for name, date in box.query(DATES):
            found.setdefault(name, []).append(date)
    return found


@pytest.mark.timeout(120 + 3 * KILLS)
def test_each_date_has_one_message(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """
    No date is sent twice, and ``all`` leaves none out, in order.

    Those before its first date are sent once a clock has stepped back to them.
    """
    torture(tmp_path / "bob.db", KILLS, random.Random(SEED), schedules.ADVANCE)
    found = dates(tmp_path / "bob.db")
    aloud(f"schedules: {KILLS} kills, {sum(map(len, found.values()))} messages, seed {SEED}")

    for name, sent in found.items():  # where a clock steps back, so do those that pass dates over
        assert len(set(sent)) == len(sent), name
    in_order = [date for date in found["all"] if date >= found["all"][0]]
    assert sorted(in_order) == in_order
    seconds = sorted(round(moment(date)) for date in found["all"])
    assert {1} == {later - earlier for earlier, later in pairwise(seconds)}
    assert len(found["all"]) >= SENT * KILLS


def test_a_date_that_is_not_compared_is_sent_twice(tmp_path: Path) -> None:
    """A mistake shows: the next date is stored without a look at those before."""
    compared = "AND next_at = :next_at AND due_at <= :now AND unsent IS :unsent"
    careless = replaced(schedules.ADVANCE, compared, "")
    path, now = tmp_path / "bob.db", 1_700_000_000 - 100 * time.time()
    Postbox(path, agent="bob", start=False).close()
    both = [Forked([sys.executable, "-c", PROCESS, path, str(now), careless]) for _ in range(2)]
    try:
        until(lambda: any(len(set(sent)) != len(sent) for sent in dates(path).values()))
    finally:
        for each in both:
            each.kill()
            each.wait()


def moment(date: str) -> float:
    """Return a date in seconds."""
    return datetime.fromisoformat(date).timestamp()
