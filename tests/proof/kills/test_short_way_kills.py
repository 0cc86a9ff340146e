"""
Handlers that end their process on the short way: their message was not stored yet.

One process sends and handles, so the handler is called before its message is stored. It ends itself
there, or at any point of the commit. Every call counts, every effect happens once, and the sender
knows every outcome.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
from tests.children import PYTHON, Child
from tests.proof.seed import proof_seed, size

from onceward import Postbox

JOBS = size(240, 60, "ONCEWARD_SHORT_WAY_KILLS")
"""Messages of a trial."""
SEED = proof_seed()
LIMIT = 90 + JOBS
"""Seconds within which a trial ends."""
KILLED = 9
KILLERS = 4
"""Every so manieth message may end its process in its handler."""
ALLOWED = 3
"""Maximum attempts of a message: 1, 2 or 3."""
SESSIONS = 3
PROCESS = """
import os, random, sys, time
from onceward import Agent, Context, Postbox
from onceward.core.accept.short_way import PlainArrival
from onceward.core.run.arrival import Arrival

seed, mistake = sys.argv[1:]
dice, agent = random.Random(int(seed)), Agent("worker")
calls = os.open("calls", os.O_WRONLY | os.O_APPEND)
short, here = os.open("short", os.O_WRONLY | os.O_APPEND), []
exec(mistake)

def die(chance):
    if dice.random() < chance:
        os._exit(%KILLED%)

opened, handled, told = PlainArrival.open, PlainArrival.store_handled, Arrival.tell

def open_(self, *given, **named):
    found = opened(self, *given, **named)
    here[:] = [self] if found is not None else []
    return found

def store_handled(self, tx):
    handled(self, tx)
    os.write(short, b"1\\n")
    die(0.05)

def tell(self, answer):
    die(0.05 if answer is not None else 0)  # committed, and the carrier does not know it
    told(self, answer)

PlainArrival.open, PlainArrival.store_handled, Arrival.tell = open_, store_handled, tell

def work(n, ctx):
    os.write(calls, f"{n} {ctx.message.attempt}\\n".encode())
    if n % 3 == 1:
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))
    if n % 5 == 2:
        box.query("SELECT 1")  # stores its message first
    if n % 7 == 3:
        time.sleep(0.004)  # takes longer than a claim waits
    if n % %KILLERS% == 0 and here:
        die(0.7)
    if n % 3 != 1:
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))

for most in (1, 2, 3):
    agent.on(f"job{most}", attempts=most)(work)

brisk = {"delivery_retry": "10ms..10ms", "handler_retry": "10ms..10ms", "ack_timeout": 1.0}
with Postbox("worker.db", agent=agent, workers=1, **brisk) as box:
    with Postbox("shop.db", agent="shop", delivery_attempts=1001, **brisk) as shop:
        for n in range(%JOBS%):
            most = n // %KILLERS% % %ALLOWED% + 1
            session = shop.session(f"s{n % %SESSIONS%}")
            sent = session.send("worker", n, type=f"job{most}", key=f"job {n}")
            until = time.monotonic() + 0.2
            while shop.state(sent) not in ("acked", "failed") and time.monotonic() < until:
                time.sleep(0.0005)
        while (now := shop.file.stats())["pending"] + now["sending"] + now["sent"]:
            time.sleep(0.01)
"""
for name in ("KILLED", "KILLERS", "ALLOWED", "SESSIONS", "JOBS"):
    PROCESS = PROCESS.replace(f"%{name}%", str(globals()[name]))
MISTAKES = {
    "a call of a message that was not stored is forgotten": """
from onceward.core.rows import holders
holders.UNDONE += " AND j.value ->> 3 = ''"
""",
    "it is noted, and not counted when the message is stored": """
from onceward.core.run import recovery
recovery.count_called = lambda tx, lane_id: None
""",
    "the answer is given before the commit, which fails": """
from onceward.core.handle.commit_batch import HandlerCommitBatch
end = HandlerCommitBatch._end_arrival
def early(self, tx, settlement):
    arrival, ended = self._arrival, end(self, tx, settlement)
    if ended:
        arrival.tell(arrival.answer)
        if dice.random() < 0.3:
            raise OSError("no space")
    return ended
HandlerCommitBatch._end_arrival = early
""",
    "a handled message leaves no trace": """
def store_nothing(self, tx):
    self._receipt = self._receipt._replace(state="processed")
PlainArrival.store_handled = store_nothing
""",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of all messages."""

    calls: dict[int, list[int]]
    """The attempts as which each was called, in order."""
    effects: Counter[int]
    dead: dict[int, int]
    """The attempts of each dead letter of the worker."""
    states: Counter[str]
    """The states of the messages at their sender."""
    problems: list[str]
    """What the checks of both files found."""
    deaths: int
    short: int
    """Messages that were stored as handled."""

    def violations(self) -> list[str]:
        """Return what is wrong."""
        found = list(self.problems)
        for n in range(JOBS):
            calls, most, effects = self.calls.get(n, []), allowed(n), self.effects[n]
            exact = calls == [*range(1, len(calls) + 1)] and 0 < len(calls) <= most
            found += [f"{n} was called as {calls} of {most}"] * (not exact)
            found += [f"{n} had {effects} effects"] * (effects != int(n not in self.dead))
            if n in self.dead:
                found += [f"{n} died after {calls} of {most}"] * (
                    self.dead[n] != most or len(calls) != most
                )
        if self.states["acked"] + self.states["failed"] != JOBS:
            found.append(f"the sender knows {dict(self.states)}")
        if self.states["failed"] != len(self.dead):
            found.append(f"{len(self.dead)} died, the sender knows {dict(self.states)}")
        return found


def allowed(n: int) -> int:
    """Return the maximum attempts of a message."""
    return n // KILLERS % ALLOWED + 1


def torture(folder: Path, mistake: str = "") -> Outcome:
    """Send and handle in one process, and start another one whenever it has ended itself."""
    dice, deaths, deadline = random.Random(SEED), 0, monotonic() + LIMIT
    with Postbox(folder / "worker.db", agent="worker", start=False) as box, box.begin() as tx:
        tx.execute("CREATE TABLE effects (n INTEGER)")
    for name in ("calls", "short"):
        (folder / name).touch()
    while True:
        words = [*PYTHON, "-c", PROCESS, dice.getrandbits(32), mistake]
        with Child(words, cwd=folder) as child:
            while child.poll() is None and monotonic() < deadline:
                time.sleep(0.005)
            if child.poll() in {0, None} or deaths > 2 * ALLOWED * JOBS:
                return judged(folder, deaths, child.poll())
            assert KILLED == child.returncode
            deaths += 1


def judged(folder: Path, deaths: int, code: int | None) -> Outcome:
    """Read what became of the messages."""
    calls: dict[int, list[int]] = {}
    for line in (folder / "calls").read_text(encoding="utf-8").splitlines():
        n, attempt = map(int, line.split())
        calls.setdefault(n, []).append(attempt)
    problems = [] if code == 0 else ["messages are left"]
    with Postbox(folder / "worker.db", agent="worker", start=False) as box:
        problems += map(str, box.file.check())
        effects = Counter(n for (n,) in box.query("SELECT n FROM effects"))
        dead = {each.body: each.attempts for each in box.dead_letters.list()}
    with Postbox(folder / "shop.db", agent="shop", start=False) as shop:
        problems += map(str, shop.file.check())
        states = Counter(s for (s,) in shop.query("SELECT state FROM onceward_outbox"))
    short = len((folder / "short").read_bytes().splitlines())
    return Outcome(calls, effects, dead, states, problems, deaths, short)


@pytest.mark.timeout(2 * LIMIT)
def test_every_call_counts(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """Calls have consecutive numbers, up to the last, and each effect happens once."""
    found = torture(tmp_path)
    calls = sum(map(len, found.calls.values()))
    told = f"{found.deaths} deaths, {calls} calls of {JOBS} messages, {found.short} short"
    aloud(f"{told}, seed {SEED}")

    assert [] == found.violations()
    assert found.deaths >= JOBS // KILLERS // 3
    assert found.short >= JOBS // 4
    assert found.dead


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(tmp_path: Path, mistake: str) -> None:
    """Planted in the processes, it is found."""
    assert [] != torture(tmp_path, MISTAKES[mistake]).violations()
