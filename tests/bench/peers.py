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
OPENERS: Final[dict[str, Callable[[Path, str], Opened]]] = (
    LOCAL | {"DBOS on SQLite": dbos} | ON_REDIS | {"NATS JetStream": jetstream}
)

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


@dataclass(slots=True)
class _Rates:
    cycles: list[float] = field(default_factory=list)
    streams: list[float] = field(default_factory=list)


def peers(plan: Plan) -> Iterator[Result]:
    """Measure every system that is installed, ours first, in turns; name the ones that are not."""
    count = -(-plan.messages(STREAM, per_second=5000) // BATCH) * BATCH
    body = note().model_dump_json()
    with ExitStack() as stack:
        rivals = [stack.enter_context(onceward(plan.room(OURS), body))]
        missing = dict[str, ImportError]()
        for name, opener in OPENERS.items():
            try:
                rivals.append(stack.enter_context(opener(plan.room(name.replace(" ", "-")), body)))
            except ImportError as error:
                missing[name] = error
        plan.settle()
        rates = _measured(rivals, count, plan)
    yield from (_row(rival, rates[rival.name], rates[OURS]) for rival in rivals)
    for name, reason in missing.items():
        why = f"not installed ({reason}): pip install 'onceward[bench]'"
        yield Result(case="peers", durability="", more={"system": name, "skipped": why})


def _measured(rivals: list[Rival], count: int, plan: Plan) -> dict[str, _Rates]:
    rates = {rival.name: _Rates() for rival in rivals}
    for _ in range(min(ROUNDS, plan.rounds)):
        for rival in rivals:
            rates[rival.name].cycles.append(repeat(rival.cycle, plan.lap_for).rate)
            began = time.perf_counter()
            rival.stream(count)
            rates[rival.name].streams.append(count / (time.perf_counter() - began))
    return rates


def _row(rival: Rival, theirs: _Rates, ours: _Rates) -> Result:
    cycles, streams = median(theirs.cycles), median(theirs.streams)
    more = {
        "system": rival.name,
        "promise": rival.promise,
        "stream_rate": streams,
        "ours_over_theirs": median(a / b for a, b in zip(ours.cycles, theirs.cycles, strict=True)),
        "stream_ours_over_theirs": median(
            a / b for a, b in zip(ours.streams, theirs.streams, strict=True)
        ),
    }
    return Result(case="peers", durability=rival.durability, rate=cycles, more=more)
