"""Options of handlers, schedules and observers: what a message pays for each, in statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from threading import get_ident
from typing import Any

import pytest
from tests.core.test_statements import Counted

from onceward import Agent, Context, Depends, Postbox, RetryPolicy, Tuning
from onceward.events import Event
from onceward.hooks import Observer, observe
from onceward.testing import Controls
from onceward.testing.clock import ManualClock

Open = Callable[..., Postbox]
FEW, MANY = 1, 50


def value() -> int:
    """Make what a handler depends on."""
    return 1


def cleaned_up(ctx: Context) -> Iterator[str]:
    """Make what a handler depends on, and clean up after it."""
    yield ctx.message.id


def plain(body: int) -> None:
    """Handle a message."""


def depending(body: int, one: int = Depends(value), two: str = Depends(cleaned_up)) -> None:
    """Handle a message with what two functions make."""


@dataclass
class Program:
    """An agent that sends itself messages: its handler, and what is in its file."""

    name: str
    handler: Callable[..., None] = plain
    options: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    """Options of a handler that no message is for."""
    prepare: Callable[[Postbox], object] = bool

    def statements(self, opened: Open, messages: int) -> dict[str, list[str]]:
        """Return the statements of sending and of handling so many messages, reads included."""
        agent = Agent(f"{self.name}{messages}")
        agent.on("job", **self.options)(self.handler)
        agent.on("other", **self.other)(plain)
        box = opened(agent, tuning=Tuning(share_commit_for=60))
        self.prepare(box)
        box.send(agent.name, -1, type="job")  # the first message reads limits and prepares
        box.run_until_idle()
        [worker] = box._workers
        written, read = Counted(box), reads(box)
        for n in range(messages):
            box.send(agent.name, n, type="job")
        sent = written.take()
        worker._size = messages
        box.run_until_idle()
        found = {"sent": sent, "handled": written.take(), "read": read[:]}
        assert messages + 1 == box.file.stats()["processed"]
        return found


def reads(box: Postbox) -> list[str]:
    """
    Return the list that gets this thread's statements on the engines' reading connection.

    Other threads, maintenance for one, read when they are due.
    """
    seen, this_thread = list[str](), get_ident()
    reader = box._db._reader
    assert reader is not None

    def note(_: object, sql: str, __: object) -> bool:
        if get_ident() == this_thread:
            seen.append(" ".join(sql.split()))
        return True

    reader.exec_trace = note
    return seen


def scheduled(box: Postbox) -> None:
    """Add schedules whose dates are far away, one of them paused."""
    box.schedules.add("monthly", every=timedelta(days=30), to=box.agent, body={})
    box.schedules.add("yearly", cron="0 0 1 1 *", to=box.agent, body={})
    box.schedules.pause("yearly")


def counts(statements: dict[str, list[str]]) -> dict[str, int]:
    """Return how many statements there are of each part."""
    return {part: len(found) for part, found in statements.items()}


FREE = [
    Program("attempts", options={"attempts": 3}),
    Program("retry", options={"retry": RetryPolicy.ten_retries()}),
    Program("retry-on", options={"retry_on": OSError}),
    Program("no-retry", options={"no_retry": (KeyError, ValueError)}),
    Program("timeout", options={"timeout": "30s"}),
    Program("depends", handler=depending),
    Program("observer", prepare=lambda box: observe(box, Observer())),
    Program(
        "elsewhere",
        other={"unique_for": "10m", "retry_on": OSError, "timeout": "30s", "attempts": 2},
    ),
]


@pytest.mark.parametrize(("messages", "expected"), [(FEW, (1, 20, 5)), (MANY, (50, 31, 54))])
def test_a_message_without_options(
    opened: Open, messages: int, expected: tuple[int, int, int]
) -> None:
    """Sending is an insert each, reading the pause each, handling by bunches of inbox rows."""
    found = counts(Program("plain").statements(opened, messages))

    assert expected == tuple(found.values())


@pytest.mark.parametrize("messages", [FEW, MANY])
@pytest.mark.parametrize("program", FREE, ids=lambda program: program.name)
def test_an_option_that_is_code_costs_no_statement(
    opened: Open, program: Program, messages: int
) -> None:
    """What decides about a message in the process neither reads nor writes for it."""
    without = Program("plain").statements(opened, messages)

    assert without == program.statements(opened, messages)


@pytest.mark.parametrize("messages", [FEW, MANY])
def test_schedules_that_are_not_due_cost_a_message_nothing(opened: Open, messages: int) -> None:
    """The engines look for due dates as they did; a message makes them look for none."""
    without = Program("plain").statements(opened, messages)

    assert without == Program("schedules", prepare=scheduled).statements(opened, messages)


def writing(body: int, ctx: Context) -> None:
    """Handle a message with a write of its own."""
    ctx.tx.execute("CREATE TABLE IF NOT EXISTS handled (body INTEGER)")


@pytest.mark.parametrize(
    ("handler", "messages", "more"),
    [(plain, FEW, 4), (writing, FEW, 2), (plain, MANY, 494), (writing, MANY, 394)],
)
def test_unique_for_costs_a_message_two_statements_and_a_commit(
    opened: Open, handler: Callable[..., None], messages: int, more: int
) -> None:
    """An insert asks and notes, an update keeps the note; no other message waits for a handler."""
    without = Program("any", handler).statements(opened, messages)
    unique = Program("unique", handler, {"unique_for": "10m"}).statements(opened, messages)

    assert counts(without) | {"handled": len(without["handled"]) + more} == counts(unique)


@pytest.mark.parametrize("messages", [FEW, MANY])
def test_a_hook_costs_statements_by_the_step(opened: Open, messages: int) -> None:
    """What events tell of messages is read once for all messages of a step."""
    without = counts(Program("plain").statements(opened, messages))
    hooked = Program("hook", prepare=lambda box: box.on(Event, lambda _: None))

    assert without | {"handled": without["handled"] + 3} == counts(
        hooked.statements(opened, messages)
    )


def test_a_date_is_three_statements(opened: Open, clock: ManualClock) -> None:
    """The next date, the message and its id are written, whatever else is planned in the file."""
    box = opened("planning", testing=Controls(clock=clock))
    scheduled(box)
    box.schedules.add("hourly", every=timedelta(hours=1), to="other", body={})
    written = Counted(box)
    for _ in range(3):
        written.take()
        clock.advance(3600)
        box.schedules._scheduler.run()
    found = [sql[:26] for sql in written.take() if "_onceward_file_info" not in sql]  # the clock
    box.schedules._scheduler.run()

    assert ["UPDATE _onceward_schedules", "INSERT INTO _onceward_outb"] == found[:2]
    assert (["UPDATE _onceward_schedules"], []) == (found[2:], written.take())
