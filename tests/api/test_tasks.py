"""Functions of plain arguments are called by messages, and stay plain functions."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from onceward import Agent, AsyncContext, AsyncPostbox, Context, Depends, Msg, Postbox
from onceward.errors import InvalidArgument, InvalidMessage
from onceward.testing import Controls, Harness, ManualClock

CALLS = list[Any]()


class Size(BaseModel):
    """An argument that is a model."""

    width: int
    height: int = 1


def factor() -> float:
    """Return the value of a dependency."""
    return 2.5


jobs = Agent("jobs")


@jobs.task
def resize(path: str, width: int = 200) -> str:
    """Return both arguments."""
    CALLS.append((path, width))
    return f"{path} {width}"


@jobs.task(attempts=2, type="scaled")
async def scale(ctx: AsyncContext, sizes: list[Size], *, copy: bool = False) -> list[int]:
    """Return the widths; ``copy`` is also a method of models."""
    assert "scaled" == ctx.message.type
    return [each.width for each in sizes] * (2 if copy else 1)


@jobs.task
def charge(_cents: int, /, ctx: Context, rate: float = Depends(factor), note: Any = None) -> str:
    """Take a positional argument, the context, a dependency and anything."""
    return f"{ctx.message.type} {_cents * rate} {note}"


@jobs.cron("0 3 * * *")
@jobs.task
def clean(days: int = 7) -> None:
    """Delete what is old."""
    CALLS.append(days)


@jobs.every("1d")
def sweep() -> None:
    """Take nothing."""
    CALLS.append("sweep")


RESIZE: Any = resize
"""Tasks without the types that would refuse wrong calls."""
SCALE: Any = scale
CHARGE: Any = charge
CLEAN: Any = clean


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Begin without calls."""
    CALLS.clear()


def opened(folder: Path, agent: Agent = jobs) -> Postbox:
    """Return the agent's postbox, without engines."""
    return Postbox(folder / f"{agent.name}.db", agent=agent, start=False)


def test_it_stays_the_function_that_it_was() -> None:
    """A test calls it with its arguments, and no file is there."""
    assert ("a.png 200", "a.png 3") == (resize("a.png"), resize("a.png", width=3))
    assert ("resize", "Return both arguments.") == (resize.__name__, resize.__doc__)


def test_the_message_is_the_call(tmp_path: Path) -> None:
    """It goes to the agent of the task; its type is the function's name, its fields arguments."""
    with opened(tmp_path) as box:
        with box.begin() as tx:
            ids = [resize.send(box, "a.png"), resize.send(tx, "b.png", width=5)]
        ids.append(resize.send(box.session("s"), path="c.png"))
        sent = {each.id: each for each in box.history(type="resize").messages}

        assert [
            {"path": "a.png", "width": 200},
            {"path": "b.png", "width": 5},
            {"path": "c.png", "width": 200},
        ] == [sent[each].body for each in ids]
        assert {"jobs"} == {each.recipient for each in sent.values()}
        box.run_until_idle()
    assert {("a.png", 200), ("b.png", 5), ("c.png", 200)} == set(CALLS)


def test_what_a_function_takes_besides_is_no_argument(tmp_path: Path) -> None:
    """Context and dependencies are filled when the task is called; names of models are free."""
    with Postbox(tmp_path / "jobs.db", agent=jobs) as box:
        assert "charge 10.0 {'a': 1}" == CHARGE.ask(box, 4, note={"a": 1})
        assert [3, 3] == scale.ask(box, [Size(width=3)], copy=True)
        assert {"_cents", "note"} == set(charge.model.model_json_schema()["properties"])


def test_tasks_are_asked_from_a_coroutine(tmp_path: Path) -> None:
    """Also a coroutine function, and with options."""

    async def main() -> tuple[str, list[int]]:
        async with AsyncPostbox(tmp_path / "jobs.db", agent=jobs) as box:
            text = await resize.ask(box, "a.png", 3)
            return text, await scale.options(timeout=20).ask(box, [Size(width=1)])

    assert ("a.png 3", [1]) == asyncio.run(main())


def test_a_task_starts_another_in_its_commit() -> None:
    """The context takes the place of the postbox, also one of a coroutine; a failure sends none."""
    desk = Agent("desk")

    @desk.task
    async def start(ctx: AsyncContext, path: str) -> None:
        await resize.send(ctx, path)
        if ctx.message.attempt == 1:
            raise OSError("once")

    with Harness(desk) as harness:
        harness.send(start.model(path="a.png"))
        harness.deliver()
        assert [] == harness.sent("jobs", resize.model)
        harness.clock.advance(3600)
        harness.deliver()

        assert [{"path": "a.png", "width": 200}] == [
            each.model_dump() for each in harness.sent("jobs", resize.model)
        ]


def test_a_task_is_requested_and_its_results_are_gathered(tmp_path: Path) -> None:
    """By the verb of a postbox, a transaction and a context, sync and async."""
    desk = Agent("desk")

    @desk.task
    def double(n: int) -> int:
        return 2 * n

    @desk.task
    def total(ctx: Context, numbers: list[int]) -> int:
        parts = [double.options(ordering_key=str(n)).request(ctx, n) for n in numbers]
        return sum(ctx.gather(parts, reply=int))

    async def main() -> list[int]:
        async with AsyncPostbox(tmp_path / "desk.db", agent=desk) as box:
            async with box.begin() as tx:
                tickets = [await double.request(tx, 4)]
            tickets.append(await total.request(box, [1, 2]))
            return await box.gather(tickets, reply=int, timeout=30)

    assert [8, 6] == asyncio.run(main())
    with pytest.raises(InvalidArgument, match=r"double\.request: the first argument is a postbox"):
        double.request(3, 4)  # type: ignore[call-overload]


def test_options_are_those_of_send(tmp_path: Path) -> None:
    """They are kept for each call, and options of ``at`` are added."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with opened(tmp_path) as box:
        once = resize.options(key="a", priority="high", delay=60)
        assert once.send(box, "a.png") == once.send(box, "a.png")
        later = resize.options(priority="low").at(box, tomorrow, "b.png")

        sent = {each.id: each for each in box.history(type="resize").messages}
        assert (2, "low") == (len(sent), sent[later].priority)
        assert 0 == box.run_until_idle()
        assert [] == CALLS


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (RESIZE.send, "resize: missing a required argument: 'path'"),
        (lambda box: RESIZE.send(box, "a", widht=3), "unexpected keyword argument 'widht'"),
        (lambda box: RESIZE.send(box, "a", 1, 2), r"arguments are \(path: str, width: int = 200\)"),
        (lambda box: RESIZE.ask(box, 3), "resize: path: Input should be a valid string"),
        (lambda box: SCALE.send(box, [{"width": "x"}]), r"scale: sizes\.0\.width: Input should"),
        (lambda box: CHARGE.send(box, 1, rate=1.0), "unexpected keyword argument 'rate'"),
        (lambda box: CLEAN.at(box, 10**12, None), "clean: days: Input should be a valid integer"),
    ],
)
def test_a_wrong_argument_is_named(
    tmp_path: Path, call: Callable[[Postbox], object], told: str
) -> None:
    """Nothing is sent."""
    with opened(tmp_path) as box:
        with pytest.raises(InvalidMessage, match=told):
            call(box)

        assert 0 == box.history().total_count


def test_a_call_needs_a_place_to_send_from(tmp_path: Path) -> None:
    """The first argument is checked first; so are the names of options, and the moment."""
    with pytest.raises(InvalidArgument, match=r"first argument is a postbox.*not 'a\.png'"):
        RESIZE.send("a.png")
    with pytest.raises(TypeError, match="has no option dely; did you mean delay"):
        RESIZE.options(dely=3)
    with opened(tmp_path) as box:
        with pytest.raises(InvalidArgument, match="at None is not a moment"):
            RESIZE.at(box, None, "a.png")
        with box.begin() as tx, pytest.raises(InvalidArgument, match=r"resize\.ask: the first"):
            RESIZE.ask(tx, "a.png")


def test_a_task_serves_its_schedule_and_calls_by_hand(tmp_path: Path) -> None:
    """The schedule sends a call with the defaults; a function without arguments becomes a task."""
    by_hand: Any = sweep
    with opened(tmp_path) as box:
        for name in ("clean", "sweep"):
            box.schedules.run_now(name)
        clean.send(box, 30)
        by_hand.send(box)
        box.run_until_idle()

    assert [30, 7, "sweep", "sweep"] == sorted(CALLS, key=str)


def test_a_schedule_calls_the_task_of_another_agent(tmp_path: Path) -> None:
    """It sends to the agent that declares the task."""
    desk = Agent("desk")
    desk.every("1h", name="cleaning")(clean)
    with opened(tmp_path) as box, opened(tmp_path, desk) as desk_box:
        desk_box.schedules.run_now("cleaning")
        desk_box.run_until_idle()
        box.run_until_idle()

    assert [7] == CALLS


def test_each_object_of_an_agent_handles_the_ticks_of_its_schedule(tmp_path: Path) -> None:
    """A program may make its agent again, as each of its tests does."""
    called, clock = list[int](), ManualClock()

    def count() -> None:
        called.append(1)

    for _ in range(2):
        agent = Agent("counter")
        agent.every("1m")(count)
        with Postbox(
            tmp_path / "counter.db", agent=agent, start=False, testing=Controls(clock=clock)
        ) as box:
            clock.advance(60)
            box.run_until_idle()
            assert [] == box.dead_letters.list()

    assert 2 == len(called)


def test_a_schedule_has_no_arguments() -> None:
    """A task that needs one is refused where it is declared, and so are options of its handler."""
    desk = Agent("desk")
    with pytest.raises(InvalidMessage, match="resize: missing a required argument: 'path'"):
        desk.every("1h")(resize)
    with pytest.raises(InvalidArgument, match=r"give attempts to the task: @agent\.task\("):
        desk.every("1h", attempts=3)(clean)


def test_a_call_of_a_newer_sender_is_understood(tmp_path: Path) -> None:
    """An argument that the function does not have yet is left out; a missing one is its default."""
    with opened(tmp_path) as box:
        box.send("jobs", {"path": "a.png", "crop": True}, type="resize")
        box.run_until_idle()

    assert [("a.png", 200)] == CALLS


def test_a_body_that_does_not_fit_is_a_dead_letter(tmp_path: Path) -> None:
    """The function is not called, and the letter names the argument."""
    with opened(tmp_path) as box:
        box.send("jobs", {"path": 3}, type="resize")
        box.run_until_idle()

        [letter] = box.dead_letters.list()
        assert "rejected" == letter.reason
        assert "path" in str(letter.last_error)
    assert [] == CALLS


def any_number(*paths: str) -> None:
    """Take what no body can name."""


def unknown(path: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Take a class that does not exist."""


def unreadable(path: asyncio.Lock) -> None:
    """Take what JSON cannot hold."""


def wrong_context(path: str, ctx: AsyncContext) -> None:
    """Take the context of a coroutine function."""


def two_contexts(ctx: Context, context: Context) -> None:
    """Take it twice."""


def yields() -> Any:
    """Do nothing when called."""
    yield


class Thing:
    """No function."""

    def __call__(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (any_number, "task any_number: parameter paths takes any number of arguments"),
        (unknown, "annotation 'Missing' of path cannot be resolved"),
        (unreadable, "no body can be read as Lock"),
        (wrong_context, "parameter ctx is annotated AsyncContext, but gets Context"),
        (two_contexts, "context is a second context"),
        (yields, "it has a yield"),
        (Thing(), "task Thing: a task is a function"),
    ],
)
def test_a_function_that_no_message_can_call_is_refused(function: Any, told: str) -> None:
    """When it is declared, by the name of the parameter."""
    with pytest.raises(InvalidArgument, match=told):
        Agent("a").task(function)


def test_options_of_the_declaration_are_checked() -> None:
    """A type is no pattern, a call is no batch, and a type has one handler."""
    agent = Agent("a")
    with pytest.raises(InvalidArgument, match="is a pattern, but a task has messages of one type"):
        agent.task(type="a.*")(resize)
    with pytest.raises(InvalidArgument, match="a task is one call"):
        agent.task(batch=3)
    with pytest.raises(TypeError, match="has no option atempts; did you mean attempts"):
        agent.task(atempts=3)  # type: ignore[call-overload]
    agent.task(type="x")(any_default)
    with pytest.raises(InvalidArgument, match="agent a already handles 'x'"):
        agent.on("x")(lambda _: None)


def any_default(path: str = None) -> None:  # type: ignore[assignment]  # noqa: RUF013
    """Have a default that the annotation does not name."""
    CALLS.append(path)


def test_none_as_a_default_is_allowed(tmp_path: Path) -> None:
    """As Python does when the function is called."""
    agent = Agent("a")
    task: Any = agent.task(any_default)
    with opened(tmp_path, agent) as box:
        task.send(box)
        box.run_until_idle()

    assert [None] == CALLS


def test_an_agent_without_tasks_does_not_load_them() -> None:
    """The module is imported by the first task."""
    code = (
        "import sys; from onceward import Agent; Agent('a').on('x')(lambda _: None);"
        "print('onceward.api.tasks' in sys.modules)"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False" == ran.stdout.strip()


def test_bodies_are_frozen_messages() -> None:
    """The class of a call is a Msg with the type of the task."""
    body = resize.model(path="a")

    assert isinstance(body, Msg)
    with pytest.raises(ValueError, match="frozen"):
        RESIZE.model(path="a").path = "b"
