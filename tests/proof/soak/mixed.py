"""
An hour of mixed use: ``python -m tests.proof.soak --mixed --seconds 3600``.

*shop* gives work to *till* beside it, to *mill* in a home that it reaches over HTTP, and to *press*
over NATS: plain jobs, jobs with steps and pauses, questions, batches, runs, groups, large bodies,
jobs that are delayed, cancelled or broken. Meanwhile processes are killed, files are replaced by
copies that are a moment old, and the wall clock jumps.

A piece of work has a token. The commit that sends it notes the token at *shop*, the handler's
commit notes it at the worker, and the commit of the reply's handler at *shop* again.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final
from uuid import uuid4

import apsw
from tests.ports import free_port
from tests.proof.kills.http_kill_test import introduce
from tests.proof.kills.nats_kill_test import server
from tests.proof.kills.test_lost_disks import lose, rows_of
from tests.proof.soak.run import Course, Sample, sample

from onceward import Agent, BatchContext, Context, Postbox, Run
from onceward.file.backup import copy_file
from onceward.http import HttpListener
from onceward.message.clock import SystemClock
from onceward.message.settings import Controls
from onceward.nats import NatsListener
from onceward.testing.kills import Crew, Role, crew
from onceward.types import GroupDone

HOMES: Final = {"shop": "one", "till": "one", "mill": "two", "press": "three"}
"""The home of each agent."""
WORKERS: Final = ("till", "mill", "press")
RESTORED: Final = ("shop", "mill", "press")
"""The agents whose files are replaced by copies. The process of *till* lives to the end."""
SETTINGS: Final[dict[str, Any]] = {
    "hold_unknown": True, "retention": 1500, "large_body": 50_000,
    "tuning": {"maintenance_interval": 2},
    "delivery_retry": "0.05s..2s", "handler_retry": "0.05s..0.5s",
}  # fmt: skip
"""
A restored handler repeats the ids of what it sends for half of the retention: that is longer than
the 600 seconds between the clock's latest and earliest setting.
"""
TABLES: Final = """
CREATE TABLE IF NOT EXISTS work (token TEXT PRIMARY KEY, kind TEXT, worker TEXT);
CREATE TABLE IF NOT EXISTS effects (token TEXT);
CREATE TABLE IF NOT EXISTS results (token TEXT)
"""
LARGE: Final = "x" * 200_000
PATIENCE: Final = 180.0
"""Seconds within which all work is done after the last one was given."""
OPEN: Final = """
SELECT (SELECT count(*) FROM onceward_outbox WHERE state IN ('pending', 'sending', 'sent'))
     + (SELECT count(*) FROM onceward_inbox WHERE state IN ('pending', 'processing'))
"""


class JumpingClock(SystemClock):
    """The machine's clock and what the course adds to it."""

    def __init__(self, folder: Path) -> None:
        self._file, self._read_at, self._ahead = folder / "ahead", 0.0, 0

    def now(self) -> int:
        """Return the wall clock; it jumps at most once in a tenth of a second."""
        if self.monotonic() > self._read_at + 0.1:
            self._read_at, self._ahead = self.monotonic(), int(self._file.read_text() or 0)
        return super().now() + self._ahead


# -- what the agents do -------------------------------------------------------------------------


def done(tx: Any, token: str) -> None:
    """Note the effect of a piece of work, and tell the shop, in the commit of the handler."""
    tx.execute("INSERT INTO effects VALUES (?)", (token,))
    tx.send("shop", token, type="result")


def working(name: str) -> Agent:
    """Return an agent that does each kind of work."""
    agent = Agent(name)

    @agent.on("plain")
    @agent.on("late")
    @agent.on("cancelled")
    @agent.on("grouped")
    @agent.on("keyed", rate="100/s", key=len)
    def plain(token: str, ctx: Context) -> None:
        done(ctx.tx, token)

    @agent.on("stepped")
    def stepped(token: str, ctx: Context) -> None:
        ctx.step(len, token)
        ctx.sleep(0.3)
        ctx.step(len, token)
        done(ctx.tx, token)

    @agent.on("large")
    def large(body: dict[str, str], ctx: Context) -> None:
        assert body["text"] == LARGE
        done(ctx.tx, body["token"])

    @agent.on("batched", batch=10)
    def batched(tokens: list[str], ctx: BatchContext) -> None:
        for message, token in zip(ctx.messages, tokens, strict=True):
            ctx.tx.execute("INSERT INTO effects VALUES (?)", (token,))
            ctx.send(message, "shop", token, type="result")

    @agent.on("asked")
    def asked(token: str) -> int:
        return len(token)

    @agent.on("broken", attempts=2)
    def broken(token: str, ctx: Context) -> None:
        done(ctx.tx, token)
        raise ValueError(token)

    @agent.runs("chat-*", mode="followup")
    def turn(run: Run) -> None:
        for each in run.messages:
            run.at_end(partial(done, token=each.body))

    return agent


def shopping() -> Agent:
    """Return the agent that gives the work."""
    agent = Agent("shop")

    @agent.on("result")
    def result(token: str, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO results VALUES (?)", (token,))

    @agent.on("errand")
    def errand(body: dict[str, str], ctx: Context) -> None:
        token = body["token"]
        assert ctx.ask(body["worker"], token, type="asked", reply=int) == len(token)
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (token,))
        ctx.tx.execute("INSERT INTO results VALUES (?)", (token,))

    @agent.on(GroupDone)
    def group(found: GroupDone, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO results VALUES (?)", (found.data,))

    @agent.every("1s", missed="skip")
    def tick(ctx: Context) -> None:
        ctx.send("till", uuid4().hex, type="asked")

    return agent


# -- what the shop gives to do ------------------------------------------------------------------


def give(box: Postbox, dice: random.Random) -> None:
    """Give one piece of work: the commit that sends it notes it."""
    kind, worker, token = dice.choice([*KINDS]), dice.choice(WORKERS), uuid4().hex
    with box.begin() as tx:
        tx.execute("INSERT INTO work VALUES (?, ?, ?)", (token, kind, worker))
        sent = KINDS[kind](box, tx, worker, token)
    if kind == "cancelled":
        box.cancel(sent)


def _plain(kind: str, **options: Any) -> Callable[..., str]:
    def send(_box: Postbox, tx: Any, worker: str, token: str) -> str:
        return str(tx.send(worker, token, type=kind, ordering_key=token[0], **options))

    return send


def _turn(box: Postbox, _tx: object, worker: str, token: str) -> None:
    box.session(f"chat-{token[0]}").send(worker, token, type="turn")


def _group(box: Postbox, _tx: object, worker: str, token: str) -> None:
    with box.groups.begin(then="shop", data=token) as group:
        for _ in range(5):
            group.send(worker, uuid4().hex, type="grouped")


KINDS: Final[dict[str, Callable[..., Any]]] = {
    **{kind: _plain(kind) for kind in ("plain", "stepped", "batched", "keyed", "broken")},
    "late": _plain("late", delay=3),
    "cancelled": _plain("cancelled", delay=5),
    "large": lambda _, tx, worker, token: tx.send(
        worker, {"token": token, "text": LARGE}, type="large"
    ),
    "errand": lambda _, tx, worker, token: tx.send(
        "shop", {"token": token, "worker": worker}, type="errand", ordering_key=token
    ),
    "turn": _turn,
    "grouped": _group,
}
AT_SHOP: Final = ("errand",)
"""Kinds whose effect is at the shop itself."""
WITHOUT_EFFECT: Final = ("broken", "grouped")
"""Kinds whose token is noted by no worker."""


# -- the processes ------------------------------------------------------------------------------


def path_of(folder: Path, name: str) -> Path:
    """Return the file of an agent."""
    return folder / HOMES[name] / f"{name}.db"


def url(folder: Path, name: str) -> str:
    """Return where a home, or the server of NATS, listens."""
    port = (folder / f"{name}.port").read_text(encoding="ascii")
    return f"{'nats' if name == 'nats' else 'http'}://127.0.0.1:{port}"


def open_box(folder: Path, agent: Agent, *, start: bool = True) -> Postbox:
    """Open the file of an agent, with its listeners."""
    ears: list[Any] = []
    if start and agent.name in {"shop", "mill"}:
        ears.append(HttpListener(url(folder, HOMES[agent.name])))
    if start and agent.name in {"shop", "press"}:
        ears.append(NatsListener(url(folder, "nats")))
    controls = Controls(clock=JumpingClock(folder))
    path = path_of(folder, agent.name)
    return Postbox(path, agent=agent, start=start, listeners=ears, testing=controls, **SETTINGS)


def shop(folder: Path, _name: str) -> None:
    """Give work at the pace that is asked for, until told to stop."""
    dice, rate = random.Random(), float((folder / "rate").read_text(encoding="ascii"))
    with open_box(folder, shopping()) as box:
        while not (folder / "stop").exists():
            give(box, dice)
            time.sleep(dice.expovariate(rate))
        Event().wait()


def worker(folder: Path, name: str) -> None:
    """Do what comes."""
    with open_box(folder, working(name)):
        Event().wait()


ROLES: Final[dict[str, Role]] = {
    "shop": shop, "till": worker, "mill": worker, "press": worker, "server": server,
}  # fmt: skip


def prepare(folder: Path, rate: float) -> None:
    """Create the homes and files, which know each other."""
    (folder / "rate").write_text(str(rate), encoding="ascii")
    (folder / "ahead").write_text("0", encoding="ascii")
    for name in ("one", "two", "nats"):
        (folder / f"{name}.port").write_text(str(free_port()), encoding="ascii")
    shutil.copy(folder / "nats.port", folder / "port")  # where the server looks
    for name in HOMES:
        path_of(folder, name).parent.mkdir(exist_ok=True)
        with open_box(folder, Agent(name), start=False) as box, box.begin() as tx:
            for table in TABLES.split(";"):
                tx.execute(table)
    for home, other, served in (("one", "two", ("shop", "till")), ("two", "one", ("mill",))):
        introduce(folder / home, folder / other, url(folder, home), served)
    for name, other in (("shop", "press"), ("press", "shop")):
        with open_box(folder, Agent(name), start=False) as box:
            box.peers.add(other, f"{url(folder, 'nats')}/{other}")


# -- what happens to them -----------------------------------------------------------------------


@dataclass(slots=True)
class Mixed:
    """One course: its processes, what it did to them, and what it saw."""

    folder: Path
    crew: Crew
    dice: random.Random
    did: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Do something to the processes every few seconds."""
        begun = time.monotonic()
        while (at := time.monotonic() - begun) < seconds:
            self.dice.choices([self.kill, self.restore, self.jump], [6, 2, 1])[0]()
            until = min(seconds, at + self.dice.uniform(2, 12))
            while (now := time.monotonic() - begun) < until:
                self.sample(now)
                time.sleep(1)

    def kill(self) -> None:
        """Kill a process, and start it again."""
        victim = self.dice.choice([name for name in ROLES if name != "till"])
        self.crew.kill(victim)
        self.crew.start(victim)
        self.did["kills"] += 1

    def restore(self) -> None:
        """Kill a process, and replace its file by a copy that is less than a second old."""
        victim = self.dice.choice(RESTORED)
        path, copy = path_of(self.folder, victim), self.folder / "copy"
        copy.unlink(missing_ok=True)
        copy_file(path, copy)
        time.sleep(self.dice.uniform(0, 0.5))
        self.crew.kill(victim)
        lose(path, copy)
        self.crew.start(victim)
        self.did["restores"] += 1

    def jump(self) -> None:
        """Set the wall clock of all processes up to five minutes ahead, or back."""
        ahead = self.dice.randrange(-300_000, 300_000)
        (self.folder / "new").write_text(str(ahead), encoding="ascii")
        (self.folder / "new").rename(self.folder / "ahead")
        self.did["jumps of the clock"] += 1

    def sample(self, at: float) -> None:
        """Note what the process that is never killed needs, and the size of all files."""
        till = self.crew.alive["till"].pid or 0
        files = [path_of(self.folder, name) for name in HOMES]
        try:
            self.samples.append(sample(files, [till], at))
        except apsw.Error:  # a file is being replaced
            self.did["samples left out"] += 1

    def is_quiet(self) -> bool:
        """Return whether no message is under way and none waits."""
        return all(rows_of(path_of(self.folder, name), OPEN) == [(0,)] for name in HOMES)


# -- what must be true at the end ---------------------------------------------------------------


def wrong(folder: Path) -> Iterator[str]:
    """Name each piece of work that was lost or done twice."""
    effects = {
        name: Counter(rows_of(path_of(folder, name), "SELECT token FROM effects")) for name in HOMES
    }
    results = Counter(rows_of(path_of(folder, "shop"), "SELECT token FROM results"))
    for name, found in effects.items():
        yield from (f"{n} effects at {name}: {token}" for (token,), n in found.items() if n > 1)
    yield from (f"{n} results: {token}" for (token,), n in results.items() if n > 1)
    for token, kind, to in rows_of(path_of(folder, "shop"), "SELECT * FROM work"):
        effect = effects["shop" if kind in AT_SHOP else to][token,]
        if kind not in {*WITHOUT_EFFECT, "cancelled"} and not effect:
            yield f"{kind} has no effect at {to}: {token}"
        if kind == "broken" and effect:
            yield f"an effect that was rolled back: {token}"
        if kind not in {"broken", "cancelled"} and not results[token,]:
            yield f"no result of {kind} from {to}: {token}"


def complaints(folder: Path) -> Iterator[str]:
    """Return what the commands say that judge files; the agents' processes have ended."""
    homes = [str(folder / name) for name in ("one", "two", "three")]
    files = [str(path_of(folder, name)) for name in HOMES]
    commands = [["fleet", "reconcile", *homes], *(["check", path] for path in files)]
    for words in commands:
        told = subprocess.run(
            [sys.executable, "-m", "onceward", *words],
            capture_output=True, check=False, text=True, cwd=folder,
        )  # fmt: skip
        if told.returncode:
            yield f"{' '.join(words)}: exit code {told.returncode}\n{told.stdout}{told.stderr}"


def mixed(
    folder: Path, *, seconds: float, rate: float, seed: int | None = None
) -> tuple[Course, dict[str, Any]]:
    """Run one course in a new folder; return its figures, and under ``wrong`` what is not true."""
    prepare(folder, rate)
    dice = random.Random(seed)
    with crew(folder, ROLES, dice) as people:
        run = Mixed(folder, people, dice)
        run.run(seconds)
        (folder / "stop").touch()
        calm = people.wait_until(run.is_quiet, seconds=PATIENCE)
        found = [*people.fallen(), *([] if calm else ["messages are under way"])]
    found += [*wrong(folder), *complaints(folder)]
    kinds = dict(rows_of(path_of(folder, "shop"), "SELECT kind, count(*) FROM work GROUP BY kind"))
    course = Course(tuple(run.samples))
    return course, {**course.told(), **run.did, "work": kinds, "wrong": found}
