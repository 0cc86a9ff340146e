"""
Whether what an agent does costs the same, however much there is of everything.

Files of ever more messages, homes of ever more agents, agents with ever more sessions and
schedules: each step is done at every size in turns, and the least processor time of its rounds is
compared with the one at the smallest size. ``--size`` is the number of messages of the largest
file.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.bench import fill, raw
from tests.bench.mail import UNBOUNDED, Note, note
from tests.bench.measure import Goal, Result
from tests.bench.plan import Plan

from onceward import Agent, Postbox, Run
from onceward.message.settings import Controls
from onceward.testing.clock import ManualClock

MESSAGES: Final = 10_000_000
FILES: Final = 10_000
SESSIONS: Final = 1_000
SCHEDULES: Final = 10_000
STEPS: Final = (100, 10, 1)
"""A size is the largest one through one of these."""
ROUNDS: Final = 7
CALLS: Final = 30
DEARER: Final = 1.25
"""What a step may cost of what it costs at the smallest size: its rate stays within a fifth."""
HOUR: Final = 3_600.0
RENAME: Final = "UPDATE _onceward_file_info SET agent = ?, file_id = ?"

Step = Callable[[], object]
Steps = dict[str, Step]
"""The steps that are timed at one size, by what is done."""


def growth(plan: Plan) -> Iterator[Result]:
    """Measure every step at every size, in turns."""
    messages = plan.messages(MESSAGES, per_second=20_000)
    for subject, full, prepare in (
        ("messages in a file", messages, _messages),
        ("agents in a home", plan.scaled(FILES, per_second=2_000), _files),
        ("sessions with runs", plan.scaled(SESSIONS, per_second=2_000), _sessions),
        ("schedules", plan.scaled(SCHEDULES, per_second=2_000), _schedules),
    ):
        sizes = sorted({max(1, full // part) for part in STEPS})
        rooms = {size: plan.room(f"{subject.split()[0]}-{size}") for size in sizes}
        with ExitStack() as stack:
            steps = {size: prepare(stack, room, size) for size, room in rooms.items()}
            plan.settle()
            yield from _compared(plan, subject, steps)
        for room in rooms.values():  # gigabytes, which the next subject may need
            shutil.rmtree(room)


def _compared(plan: Plan, subject: str, sizes: dict[int, Steps]) -> Iterator[Result]:
    calls, smallest = plan.scaled(CALLS, per_second=100), min(sizes)
    for work in sizes[smallest]:
        costs = [
            {size: _cost(steps[work], calls) for size, steps in sizes.items()}
            for _ in range(min(ROUNDS, plan.rounds) + 1)
        ][1:]
        least = {size: min(each[size] for each in costs) for size in sizes}
        for size, cost in least.items():
            more = {"work": work, "of": subject, "size": size, "cpu_us": cost}
            yield Result(
                case="growth",
                durability="safe",
                more=more | {"of_smallest": cost / least[smallest]},
                goals=(Goal("of_smallest", at_most=DEARER),),
            )


def _cost(step: Step, calls: int) -> float:
    """Return the processor's microseconds of one call."""
    before = time.process_time()
    for _ in range(calls):
        step()
    return 1e6 * (time.process_time() - before) / calls


# -- messages in a file ---------------------------------------------------------------------


class Large:
    """A postbox of a large file, which can be opened again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        self.box = Postbox(
            self._path, agent="alice", start=False, max_pending=UNBOUNDED, hold_unknown=True
        )

    def close(self) -> None:
        """Close the present postbox."""
        self.box.close()

    def open_again(self) -> None:
        """Close it and open it, as no other postbox of the process has it open."""
        self.close()
        self._open()

    def send_to_itself(self) -> None:
        """Send, receive and acknowledge one message."""
        self.box.send("alice", note())
        self.box.run_until_idle()
        message = self.box.receive(Note, timeout=10.0)
        assert message is not None
        message.ack()


def _messages(stack: ExitStack, folder: Path, size: int) -> Steps:
    """Open a file in which half of the messages were sent, and half were received."""
    path = folder / "alice.db"
    fill.acked(path, size // 2, size=fill.SHORT)
    fill.handled(path, size - size // 2)
    large = Large(path)
    stack.callback(large.close)
    return {
        "send to oneself, receive, ack": large.send_to_itself,
        "send": lambda: large.box.send("bob", note()),
        "stats": lambda: large.box.file.stats(),  # noqa: PLW0108 - of the present box
        "maintenance": lambda: large.box.file.run_maintenance(),  # noqa: PLW0108 - of the present box
        "close and open": large.open_again,
    }


# -- agents in a home -----------------------------------------------------------------------


def _files(stack: ExitStack, folder: Path, size: int) -> Steps:
    """Open two agents of a home of many."""
    Postbox(folder / "a0.db", agent="a0", start=False).close()
    for number in range(1, size):
        path = folder / f"a{number}.db"
        shutil.copyfile(folder / "a0.db", path)
        with raw.opened(path, "fast", schema="") as con:
            con.execute(RENAME, (f"a{number}", uuid4().hex))
    alice, bob = (
        stack.enter_context(Postbox(folder / f"{name}.db", agent=name, start=False))
        for name in ("alice", "bob")
    )
    fresh = cycle(range(size))
    return {
        "send to a neighbour": partial(_carry, alice, bob),
        "open an agent": lambda: Postbox(folder / f"a{next(fresh)}.db", start=False).close(),
    }


def _carry(alice: Postbox, bob: Postbox) -> None:
    alice.send("bob", note())
    alice.run_until_idle()
    message = bob.receive(Note, timeout=10.0)
    assert message is not None
    message.ack()
    bob.run_until_idle()
    alice.run_until_idle()


# -- sessions with runs ---------------------------------------------------------------------


def _sessions(stack: ExitStack, folder: Path, size: int) -> Steps:
    """Open an agent that has had a run in each of many sessions."""
    agent = Agent("coder")
    agent.runs(mode="collect", debounce=0)(_nothing)
    box = stack.enter_context(
        Postbox(folder / "coder.db", agent=agent, start=False, max_pending=UNBOUNDED)
    )
    for number in range(size):
        box.session(f"s{number}").send("coder", note())
    box.run_until_idle()
    return {"a run of one message": partial(_run, box, size)}


def _run(box: Postbox, size: int) -> None:
    box.session(f"s{size // 2}").send("coder", note())
    box.run_until_idle()


def _nothing(run: Run) -> None:
    del run


# -- schedules ------------------------------------------------------------------------------


def _schedules(stack: ExitStack, folder: Path, size: int) -> Steps:
    """Open an agent with many schedules for next year, and one for every hour."""
    clock = ManualClock()
    box = stack.enter_context(
        Postbox(
            folder / "clerk.db",
            agent="clerk",
            start=False,
            max_pending=UNBOUNDED,
            testing=Controls(clock=clock),
        )
    )
    for number in range(size):
        box.schedules.add(f"idle-{number}", every=1e9, body=number)
    box.schedules.add("hourly", every=HOUR, body=0)
    return {"one due schedule": partial(_hour, box, clock)}


def _hour(box: Postbox, clock: ManualClock) -> None:
    clock.advance(HOUR)
    box.run_until_idle()
    message = box.receive(timeout=0)
    assert message is not None
    message.ack()
