"""Each system in two processes: one puts messages, the other consumes and acknowledges them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from ctypes import c_longlong
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any, Final, Protocol

from tests.bench import nats, on_redis
from tests.bench.commits import commits_of
from tests.bench.crew import LONGEST, Link, hear, running
from tests.bench.crew import over as told_to_end
from tests.bench.mail import UNBOUNDED, Note, note
from tests.bench.measure import Result, quantile_ms, repeat
from tests.bench.plan import Plan
from tests.bench.rivals import BATCH, EXACTLY, KINDS, Queue

from onceward import Agent, Postbox
from onceward.events import Processed

ROUNDS: Final = 3
INSTALLED: Final = {
    "honker": "pip install honker, whose packages for Linux need glibc 2.38 or newer"
}
"""How systems are installed that are not in the extra."""
OURS: Final = "two agents in two processes"


class Putter(Protocol):
    """The process that puts messages."""

    def put(self, count: int) -> None:
        """Put *count* messages, as many in a commit as the system lets one."""
        ...

    def close(self) -> None:
        """Close file or connection."""
        ...


class Sender:
    """An agent that sends to the one in the other process."""

    def __init__(self, folder: Path, body: str) -> None:
        del body
        self._box = Postbox(folder / "alice.db", agent="alice", max_pending=UNBOUNDED)
        self._body = note()

    def put(self, count: int) -> None:
        """Send one, or a hundred per commit."""
        if count == 1:
            self._box.send("bob", self._body)
            return
        for first in range(0, count, BATCH):
            self._box.send_many([("bob", self._body)] * min(BATCH, count - first))

    def close(self) -> None:
        """Close its postbox."""
        self._box.close()


class Told:
    """Tells the first process when as many messages are acknowledged as it waits for."""

    def __init__(self, link: Link, awaited: Any) -> None:
        self._link, self._awaited, self._done, self._lock = link, awaited, 0, Lock()

    def more(self, count: int) -> None:
        """Add *count* acknowledged messages."""
        with self._lock:
            self._done += count
            if count and self._done == self._awaited.value:
                self._link.send(self._done)


def agent(link: Link, awaited: Any, kind: type[Sender], folder: Path, body: str) -> None:
    """Handle whatever comes; the body of the other process."""
    del kind, body
    told, bob = Told(link, awaited), Agent("bob")
    bob.on(Note)(_ignore)
    with Postbox(folder / "bob.db", agent=bob, max_pending=UNBOUNDED) as box:
        box.on(Processed, lambda _: told.more(1))
        link.send("ready")
        told_to_end(link, LONGEST)


def _ignore(body: Note) -> None:
    del body


def consumer(link: Link, awaited: Any, kind: type[Queue], where: Any, body: str) -> None:
    """Consume and acknowledge whatever comes; the body of the other process."""
    told = Told(link, awaited)
    with closing(kind(where, body)) as queue:
        link.send("ready")
        while not told_to_end(link):
            if done := queue.take(BATCH):
                told.more(done)
            else:
                queue.wait()


def worker(link: Link, awaited: Any, kind: Any, where: Any, body: str) -> None:
    """Run the tasks that come; the body of the other process."""
    told = Told(link, awaited)
    with closing(kind(where, body, ended=partial(told.more, 1))):
        link.send("ready")
        told_to_end(link, LONGEST)


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    yield folder


@dataclass(frozen=True, slots=True)
class System:
    """What is started for a system, and what stands in its row."""

    name: str
    durability: str
    promise: str
    waits: str
    kind: Callable[..., Putter]
    consumer: Callable[..., None]
    place: Callable[[Path], AbstractContextManager[Any]] = _folder

    def putter(self, where: Any, body: str) -> Putter:
        """Return the part of the process that puts messages."""
        if self.consumer is worker:
            return self.kind(where, body, works=False)
        return self.kind(where, body)


AGENTS: Final = System(
    OURS,
    "safe: WAL, synchronous=FULL, every commit synced",
    EXACTLY,
    "a notification of the sender",
    Sender,
    agent,
)
RIVALS: Final = [
    System(kind.name, kind.durability, kind.promise, kind.waits, kind, body, place)
    for kind, body, place in [
        *((kind, consumer, _folder) for kind in KINDS),
        (on_redis.Streams, consumer, on_redis.server),
        (on_redis.Celery, worker, on_redis.server),
        (on_redis.Taskiq, worker, on_redis.server),
        (nats.JetStream, consumer, nats.server),
    ]
]


@dataclass(slots=True)
class Crew:
    """A system that runs in two processes, and what was measured of it."""

    system: System
    folder: Path
    putter: Putter
    link: Link
    awaited: Any
    rates: list[float] = field(default_factory=list)
    streams: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def move(self, count: int) -> None:
        """Put messages and wait until the other process has acknowledged them."""
        self.awaited.value += count
        self.putter.put(count)
        hear(self.link)

    def lap(self, plan: Plan, count: int) -> None:
        """Measure one by one, then a stream."""
        measured = repeat(lambda: self.move(1), plan.lap_for)
        self.rates.append(measured.rate)
        self.waits.extend(measured.waits)
        began = time.perf_counter()
        self.move(count)
        self.streams.append(count / (time.perf_counter() - began))


@contextmanager
def started(system: System, plan: Plan) -> Iterator[Crew]:
    """Run a system in two processes; raise ImportError where it is not installed."""
    folder, body = plan.room(f"{system.name.replace(' ', '-')}-apart"), note().model_dump_json()
    awaited = RawValue(c_longlong, 0)
    with (
        system.place(folder) as where,
        closing(system.putter(where, body)) as putter,
        running(system.consumer, awaited, system.kind, where, body) as link,
    ):
        crew = Crew(system, folder, putter, link, awaited)
        crew.move(1)
        yield crew


def apart(plan: Plan, count: int) -> Iterator[Result]:
    """Measure every system that is installed, each in turns with ours; name the other ones."""
    with started(AGENTS, plan) as ours:
        for system in RIVALS:
            try:
                yield _compared(system, ours, plan, count)
            except ImportError as error:
                yield missing("peers-apart", system.name, error)
        yield _row(ours, ours)


def _compared(system: System, ours: Crew, plan: Plan, count: int) -> Result:
    with started(system, plan) as theirs:
        plan.settle()
        rounds = min(ROUNDS, plan.rounds)
        for _ in range(rounds):
            for crew in (ours, theirs):
                crew.lap(plan, count)
        return _row(theirs, ours, rounds)


def _row(theirs: Crew, ours: Crew, rounds: int = 0) -> Result:
    neighbours = slice(-rounds, None)
    waits = sorted(theirs.waits)
    more = {
        "system": theirs.system.name,
        "promise": theirs.system.promise,
        "stream_rate": median(theirs.streams),
        "commits": commits_of(lambda: theirs.move(1), theirs.folder),
        "ours_over_theirs": over(ours.rates[neighbours], theirs.rates),
        "stream_ours_over_theirs": over(ours.streams[neighbours], theirs.streams),
        "waits": theirs.system.waits,
    }
    return Result(
        case="peers-apart",
        durability=theirs.system.durability,
        rate=median(theirs.rates),
        p50_ms=quantile_ms(waits, 0.5),
        p99_ms=quantile_ms(waits, 0.99),
        more=more,
    )


def over(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios of neighbours in time."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def missing(case: str, system: str, reason: ImportError) -> Result:
    """Return the row of a system that is not installed, or cannot be imported."""
    how = INSTALLED.get(system, "pip install 'onceward[bench]'")
    why = f"not installed ({reason}): {how}"
    return Result(case=case, durability="", more={"system": system, "skipped": why})
