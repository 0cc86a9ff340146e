"""
The same enqueue, consume and acknowledge on other queues, in turns with ours.

Each runs at a stated durability.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.apart import apart, missing, over
from tests.bench.commits import commits_of
from tests.bench.crew import until
from tests.bench.mail import UNBOUNDED, Note, note
from tests.bench.measure import Result, repeat
from tests.bench.nats import jetstream
from tests.bench.on_redis import ON_REDIS
from tests.bench.plan import Plan
from tests.bench.rivals import BATCH, EXACTLY, LOCAL, Opened, Rival
from tests.bench.with_dbos import dbos

from onceward import Agent, Postbox

STREAM: Final = 2000
ROUNDS: Final = 3
OURS: Final = "onceward"
itself: Final = Agent("itself")


@itself.on(Note)
def _take(body: Note) -> None:
    """Do nothing, durably."""
    del body


class Onceward:
    """
    A postbox that writes to itself: one file, one process, as a queue has it.

    A cycle ends when the reader's acknowledgement is committed; the receipt
    travels on its own. A stream ends when every receipt is back.
    """

    name = OURS
    durability = "safe: WAL, synchronous=FULL, every commit synced"
    promise = EXACTLY

    def __init__(self, box: Postbox, streaming: Postbox) -> None:
        self._box, self._streaming, self._body = box, streaming, note()

    def cycle(self) -> None:
        """Send to ourselves, receive, acknowledge."""
        self._box.send(self._box.agent, self._body)
        message = self._box.receive(Note, timeout=60.0)
        assert message is not None
        message.ack()

    def stream(self, count: int) -> None:
        """Send a hundred per commit to a handler of ours."""
        before = self._streaming.file.stats()["acked"]
        for _ in range(0, count, BATCH):
            self._streaming.send_many([(self._streaming.agent, self._body)] * BATCH)
        until(lambda: self._streaming.file.stats()["acked"] - before >= count)

    def close(self) -> None:
        """Leave the files to the block that opened them."""


@contextmanager
def onceward(folder: Path, body: str) -> Iterator[Rival]:
    """Open the two postboxes, one to read from by hand and one with a handler."""
    del body
    with (
        Postbox(folder / "queue.db", agent="queue", max_pending=UNBOUNDED) as box,
        Postbox(folder / "itself.db", agent=itself, max_pending=UNBOUNDED) as streaming,
    ):
        yield Onceward(box, streaming)


OPENERS: Final[dict[str, Callable[[Path, str], Opened]]] = (
    {OURS: onceward} | LOCAL | {"DBOS on SQLite": dbos} | ON_REDIS | {"NATS JetStream": jetstream}
)


@dataclass(slots=True)
class _Measured:
    rival: Rival
    folder: Path
    cycles: list[float] = field(default_factory=list)
    streams: list[float] = field(default_factory=list)

    def lap(self, plan: Plan, count: int) -> None:
        """Measure one by one, then a stream."""
        self.cycles.append(repeat(self.rival.cycle, plan.lap_for).rate)
        began = time.perf_counter()
        self.rival.stream(count)
        self.streams.append(count / (time.perf_counter() - began))


def peers(plan: Plan) -> Iterator[Result]:
    """Measure every system that is installed, in turns; name the ones that are not."""
    count = -(-plan.messages(STREAM, per_second=5000) // BATCH) * BATCH
    absent = dict[str, ImportError]()
    with ExitStack() as stack:
        found = list[_Measured]()
        for name, opener in OPENERS.items():
            folder = plan.room(name.replace(" ", "-"))
            try:
                rival = stack.enter_context(opener(folder, note().model_dump_json()))
                found.append(_Measured(rival, folder))
            except ImportError as error:
                absent[name] = error
        plan.settle()
        for _ in range(min(ROUNDS, plan.rounds)):
            for each in found:
                each.lap(plan, count)
        yield from (_row(each, found[0]) for each in found)
    for name, reason in absent.items():
        yield missing("peers", name, reason)
    yield from apart(plan, count)


def _row(theirs: _Measured, ours: _Measured) -> Result:
    more = {
        "system": theirs.rival.name,
        "promise": theirs.rival.promise,
        "stream_rate": median(theirs.streams),
        "commits": commits_of(theirs.rival.cycle, theirs.folder),
        "ours_over_theirs": over(ours.cycles, theirs.cycles),
        "stream_ours_over_theirs": over(ours.streams, theirs.streams),
    }
    return Result(
        case="peers",
        durability=theirs.rival.durability,
        rate=median(theirs.cycles),
        more=more,
    )
