"""Handlers that end their process: every call counts, and the neighbours of its message do not."""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from time import monotonic

import pytest
from tests.children import PYTHON, Child
from tests.proof.seed import proof_seed, size

from onceward import Postbox

JOBS = size(150, 45, "ONCEWARD_HANDLER_KILLS")
"""Messages of a trial; each has a session of its own."""
SEED = proof_seed()
LIMIT = 60 + JOBS
"""Seconds within which a trial ends."""
TRIES = 3
"""Trials in which a mistake has to show."""
KILLED = 9
KILLERS = 4
"""One message in so many ends its process, in most of its calls."""
ALLOWED = 3
"""Maximum attempts of a message: 1, 2 or 3."""
PROCESS = (
    """
import asyncio, fcntl, os, random, sys, time
from onceward import Agent, Context, Postbox, Run, Tuning

file, kind, seed, mistake = sys.argv[1:]
dice, agent = random.Random(int(seed)), Agent("worker")
calls = os.open("calls", os.O_WRONLY | os.O_APPEND)
exec(mistake)

def called(n, attempt):
    os.write(calls, f"{n} {attempt}\\n".encode())

def work(n):
    if kind != "quick":
        time.sleep(dice.choice((0, 0, 0, 0.005)))
    if n % %KILLERS% == 0 and dice.random() < 0.7:
        os._exit(%KILLED%)

def allow(most):
    @agent.on(f"function{most}", attempts=most)
    def function(n: int, ctx: Context) -> None:
        called(n, ctx.message.attempt)
        work(n)
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))

    @agent.on(f"coroutine{most}", attempts=most)
    async def coroutine(n: int, ctx) -> None:
        called(n, ctx.message.attempt)
        await asyncio.sleep(0)
        work(n)
        await ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))

    @agent.on(f"keyed{most}", attempts=most, key=lambda n: n % %GROUPS%, concurrency=1, rate=100.0)
    def keyed(n: int, ctx: Context) -> None:
        with open(f"group{most}-{n % %GROUPS%}", "w") as group:
            fcntl.flock(group, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a death ends it
            time.sleep(0.01)
            function(n, ctx)

    @agent.on(f"batch{most}", attempts=most, batch=5)
    def batch(bodies: list[int], ctx) -> None:
        for each in ctx.messages:
            called(each.body, each.attempt)
        for each in ctx.messages:
            work(each.body)
            ctx.tx.execute("INSERT INTO effects VALUES (?)", (each.body,))

    @agent.runs(f"run{most}-*", attempts=most, debounce=0)
    def serve(run: Run) -> None:
        called(run.message.body, run.message.attempt)
        work(run.message.body)
        run.at_end(lambda tx: tx.execute("INSERT INTO effects VALUES (?)", (run.message.body,)))

for most in (1, 2, 3):
    allow(most)
settings = {"workers": 1, "delivery_retry": "10ms..10ms", "handler_retry": "10ms..10ms"}
if kind == "quick":
    settings["tuning"] = Tuning(claim_messages=1)
with Postbox(file, agent=agent, **settings) as box:
    while (now := box.file.stats())["inbox_pending"] + now["inbox_processing"]:
        time.sleep(0.01)
""".replace("%KILLERS%", str(KILLERS))
    .replace("%KILLED%", str(KILLED))
    .replace("%GROUPS%", "2")
)
KINDS = {
    "function": ("function",), "coroutine": ("coroutine",), "quick": ("function",),
    "keyed": ("keyed",),
    "all": ("function", "coroutine", "batch", "run"),
}  # fmt: skip
"""
The handlers of a trial.

In "quick" a claim has one message and its call does not pause. Only the first claim of a process is
committed before the call, so almost all deaths roll the claim of their message back.
"""
MISTAKES = {
    "a call whose claim was rolled back is forgotten": """
from onceward.core.run import recovery
recovery._count_undone = lambda tx, record: None
""",
    "a call is noted after it": """
from onceward.core.handle.worker import Worker
note, handle = Worker._note_call, Worker._handle
def late(self, leased, ready):
    settlement = handle(self, leased, ready)
    if self._notes is not None:
        note(self, self._notes, leased)
    return settlement
Worker._handle, Worker._note_call = late, lambda *given: None
""",
    "a call counts twice": """
from onceward.core.rows import inbox
twice = inbox.NEVER_ENDED.replace("+ :calls", "+ 2 * :calls")
assert twice != inbox.NEVER_ENDED
inbox.NEVER_ENDED = twice
""",
    "a living process is taken for dead": """
from onceward.file.in_flight import CallRecords
CallRecords._is_held = lambda *given: False
""",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of all messages."""

    calls: dict[int, list[int]]
    """The attempts as which each was called, in order."""
    effects: Counter[int]
    dead: dict[int, int]
    """The attempts of each dead letter."""
    deaths: int

    def violations(self, *, alone: bool) -> list[str]:
        """
        Return what is wrong; *alone*: a process runs one call at a time.

        Else one call may end the process when another is noted and has not begun: it counts.
        """
        found = list[str]()
        for n in range(JOBS):
            calls, most, effects = self.calls.get(n, []), allowed(n), self.effects[n]
            exact = calls == [*range(1, len(calls) + 1)] and bool(calls)
            rising = calls == sorted(set(calls)) and set(calls) <= set(range(1, most + 1))
            found += [f"{n} was called as {calls} of {most}"] * (
                not rising or (alone and not exact)
            )
            found += [f"{n} had {effects} effects"] * (effects != int(n not in self.dead))
            if n in self.dead:
                found += [f"{n} died after {calls} of {most}"] * (
                    self.dead[n] != most or (alone and len(calls) != most)
                )
                found += [f"{n} did not survive"] * (alone and n % KILLERS != 0)
        return found


def allowed(n: int) -> int:
    """Return the maximum attempts of a message."""
    return n // KILLERS % ALLOWED + 1


def torture(folder: Path, kind: str, mistake: str = "") -> Outcome:
    """Let two processes handle messages, and start another one for each that ends itself."""
    dice, file = random.Random(SEED), stored(folder, kind)
    with ExitStack() as stack:

        def begin() -> Child:
            words = [*PYTHON, "-c", PROCESS, file, kind, dice.getrandbits(32), mistake]
            return stack.enter_context(Child(words, cwd=folder))

        both, deaths = [begin(), begin()], 0
        deadline = monotonic() + LIMIT
        while any(each.poll() != 0 for each in both) and deaths <= ALLOWED * JOBS:
            assert monotonic() < deadline, "messages are left"
            for n, each in enumerate(both):
                if each.poll() not in {None, 0}:
                    deaths += 1
                    assert KILLED == each.returncode
                    both[n] = begin()
            time.sleep(0.005)
    return judged(folder, file, deaths)


def stored(folder: Path, kind: str) -> Path:
    """Store the messages; return the file of their worker."""
    file = folder / "worker.db"
    (folder / "calls").touch()
    with Postbox(file, agent="worker", start=False) as box, box.begin() as tx:
        tx.execute("CREATE TABLE effects (n INTEGER)")
    with Postbox(folder / "shop.db", agent="shop", start=False) as shop:
        for n in range(JOBS):
            use, most = KINDS[kind][n % len(KINDS[kind])], allowed(n)
            session = shop.session(f"run{most}-{n}" if use == "run" else f"s{n}")
            session.send("worker", n, type=f"{use}{most}")
        shop.run_until_idle()
    return file


def judged(folder: Path, file: Path, deaths: int) -> Outcome:
    """Read what became of the messages."""
    calls: dict[int, list[int]] = {}
    for line in (folder / "calls").read_text(encoding="utf-8").splitlines():
        n, attempt = map(int, line.split())
        calls.setdefault(n, []).append(attempt)
    with Postbox(file, agent="worker", start=False) as box:
        assert [] == box.file.check()
        effects = Counter(n for (n,) in box.query("SELECT n FROM effects"))
        dead = {each.body: each.attempts for each in box.dead_letters.list()}
    return Outcome(calls, effects, dead, deaths)


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_counts(tmp_path: Path, kind: str, aloud: Callable[[object], None]) -> None:
    """Calls have consecutive numbers, up to the last; what kills no process is done once."""
    found = torture(tmp_path, kind)
    calls = sum(map(len, found.calls.values()))
    aloud(f"{kind}: {found.deaths} deaths, {calls} calls of {JOBS} messages, seed {SEED}")

    assert [] == found.violations(alone=kind != "all")
    assert found.deaths >= JOBS // KILLERS // 2
    assert found.dead


@pytest.mark.timeout(2 * TRIES * LIMIT)
def test_calls_that_are_not_counted_for_their_group_show(tmp_path: Path) -> None:
    """A call of a group that begins while another process has one fails, and is missing."""
    mistake = """
from onceward.features.handler_limits import turns
turns.running = lambda tx, group: 0
turns.READY = turns.READY.replace("r.owner IS NOT NULL", "false")
"""

    assert shown(tmp_path, "keyed", mistake)


@pytest.mark.timeout(2 * TRIES * LIMIT)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(tmp_path: Path, mistake: str) -> None:
    """Planted in the processes, it is found."""
    assert shown(tmp_path, "quick", MISTAKES[mistake])


def shown(folder: Path, kind: str, mistake: str) -> bool:
    """Return whether a mistake shows; on a busy machine one run may not meet it."""
    for again in range(TRIES):
        trial = folder / str(again)
        trial.mkdir()
        if torture(trial, kind, mistake).violations(alone=True):
            return True
        rmtree(trial)  # the agents of the next one have the same names
    return False
