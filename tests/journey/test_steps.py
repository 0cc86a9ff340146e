"""Steps: the result of a function is stored with its message; the next call goes on after it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.bench.slow_disk import SlowDisk

from onceward import (
    Agent,
    AsyncContext,
    AsyncPostbox,
    BatchContext,
    Context,
    Drop,
    Msg,
    Postbox,
    Reject,
    Retry,
    RetryPolicy,
    Run,
    Tuning,
    step,
)
from onceward.errors import (
    AnswerTimeout,
    Conflict,
    InvalidArgument,
    InvalidMessage,
    StepFailed,
    StepLimit,
)
from onceward.features.steps import stored
from onceward.features.steps.steps import MessageSteps
from onceward.testing import Controls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.message.parcel import Durability

ROWS = "SELECT name, ordinal, state, attempts, body FROM onceward_steps ORDER BY seq"
NOTES = "CREATE TABLE IF NOT EXISTS notes (text TEXT)"


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


class Receipt(Msg, type="receipt"):
    """A result with a class of its own."""

    cents: int


@dataclass(frozen=True)
class Place:
    """A result that is a dataclass."""

    x: int
    y: int


def handled_by(
    world: World, work: Callable[[Job, Context], object], **options: Any
) -> tuple[Postbox, str]:
    """Open an agent whose handler is *work*, and send it one job."""
    agent = Agent("bob")
    agent.on(Job, **options)(work)
    box = world.open(agent)
    return box, box.send("bob", Job(n=1))


def last_error(box: Postbox) -> str:
    """Return the error of the only dead letter."""
    [letter] = box.dead_letters.list()
    return str(letter.last_error)


def receipt(cents: int) -> Receipt:
    """Return a model."""
    return Receipt(cents=cents)


def place(x: int, y: int) -> Place:
    """Return a dataclass."""
    return Place(x, y)


def picture() -> bytes:
    """Return bytes that are not text."""
    return b"\xff\x00"


def pair(n: int) -> tuple[int, str]:
    """Return what JSON has no word for."""
    return n, str(n)


def nothing() -> None:
    """Return nothing."""


def untyped():  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Return what no annotation tells of."""
    return {"a": (1, 2)}


def test_a_step_is_called_once_however_often_its_handler_is(world: World) -> None:
    """Each call of the handler gets the stored result; what the calls wrote is written once."""
    calls: list[int] = []
    seen: list[tuple[int, int, int]] = []

    def double(n: int) -> int:
        calls.append(n)
        return 2 * n

    def work(job: Job, ctx: Context) -> None:
        one = ctx.step(double, job.n)
        two = ctx.step(double, one)
        seen.append((ctx.message.attempt, one, two))
        ctx.tx.execute(NOTES)
        ctx.tx.execute("INSERT INTO notes VALUES (?)", (str(two),))
        if len(seen) < 3:
            raise ValueError(two)

    box, sent = handled_by(world, work)
    world.settle()
    world.wait(5)
    world.wait(5)

    assert ([1, 2], [(1, 2, 4), (2, 2, 4), (3, 2, 4)]) == (calls, seen)
    assert [("4",)] == box.query("SELECT text FROM notes")
    assert [("double", 1, "done", 1, "2"), ("double", 2, "done", 1, "4")] == box.query(ROWS)
    assert [(sent, "bob")] * 2 == box.query("SELECT message_id, sender FROM onceward_steps")


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (receipt, (5,), Receipt(cents=5)),
        (place, (1, 2), Place(1, 2)),
        (picture, (), b"\xff\x00"),
        (pair, (3,), (3, "3")),
        (nothing, (), None),
        (untyped, (), {"a": [1, 2]}),
    ],
)
def test_a_result_is_read_as_the_function_says(
    world: World, function: Callable[..., object], args: tuple[object, ...], expected: object
) -> None:
    """The first call of the handler gets what later ones get: it has passed the file, too."""
    seen: list[object] = []

    def work(job: Job, ctx: Context) -> None:
        seen.append(ctx.step(function, *args))
        if len(seen) < 2:
            raise ValueError

    handled_by(world, work)
    world.settle()
    world.reopen()
    world.wait(5)

    assert [expected, expected] == seen


def test_a_result_that_does_not_fit_its_annotation_is_not_stored(world: World) -> None:
    """The handler gets the error, and the function is called again with the message."""

    def wrong() -> int:
        return "many"  # type: ignore[return-value]

    def work(job: Job, ctx: Context) -> None:
        ctx.step(wrong)

    box, _ = handled_by(world, work, attempts=1)
    world.settle()

    assert "body does not fit int" in last_error(box)
    assert [] == box.query(ROWS)


def test_no_lock_is_held_while_the_function_runs(world: World) -> None:
    """What the handler before it has written is committed, and another thread can write."""
    seen: list[tuple[object, ...]] = []
    agent = Agent("bob")

    def look() -> int:
        def commit() -> None:
            with box.begin() as tx:
                tx.execute("INSERT INTO notes VALUES ('elsewhere')")
                seen.extend(tx.execute("SELECT state, leased FROM onceward_lanes"))

        world.elsewhere(commit)
        return 1

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        if job.n == 1:
            ctx.tx.execute(NOTES)
        else:
            ctx.step(look)

    box = world.open(agent, busy_timeout=2, tuning=Tuning(share_commit_for=60))
    for n in (1, 2):
        box.send("bob", Job(n=n))
    world.claim_many(box, 10)
    world.settle()

    assert [("leased", 1)] == seen
    assert [("processed",)] * 2 == box.query("SELECT state FROM onceward_inbox")


@pytest.mark.parametrize(
    "before",
    [
        lambda ctx: ctx.tx.execute(NOTES),
        lambda ctx: ctx.tx.execute("SELECT 1"),
        lambda ctx: ctx.send(ctx.message.sender, "a message", type="note"),
    ],
    ids=["a write", "a read", "a message"],
)
def test_a_step_after_the_transaction_has_begun_is_refused(
    world: World, before: Callable[[Context], object]
) -> None:
    """The handler would hold the file's lock while the function runs: the error tells the cure."""

    def work(job: Job, ctx: Context) -> None:
        before(ctx)
        ctx.step(nothing)

    box, _ = handled_by(world, work, attempts=1)
    world.settle()

    assert "sent a message or used ctx.tx" in last_error(box)
    assert "tx=True, or after the last step" in last_error(box)


def test_other_arguments_than_before_are_a_conflict(world: World) -> None:
    """The error names both, by their digests, and the way out; with a version the step is new."""
    calls: list[tuple[str, int]] = []
    seen: list[int] = []

    def charge(card: str, cents: int) -> int:
        calls.append((card, cents))
        return cents

    def work(job: Job, ctx: Context) -> None:
        attempt = ctx.message.attempt
        version = "2" if attempt == 3 else ""
        seen.append(ctx.step(charge, "visa", attempt, version=version))
        raise ValueError

    box, _ = handled_by(world, work, attempts=3, no_retry=KeyError)
    world.settle()
    world.wait(5)
    [(reason,)] = box.query("SELECT reason FROM onceward_inbox")
    world.wait(5)

    assert ([("visa", 1), ("visa", 3)], [1, 3]) == (calls, seen)
    assert "argument 2 was " in reason
    assert "argument 1" not in reason
    assert "version='…'" in reason


def test_arguments_with_keys_in_another_order_are_the_same(world: World) -> None:
    """The second call of the handler gets the result of the first."""
    given = iter([{"a": 1, "b": 2}, {"b": 2, "a": 1}])
    seen: list[int] = []

    def total(parts: dict[str, int]) -> int:
        return sum(parts.values())

    def work(job: Job, ctx: Context) -> None:
        seen.append(ctx.step(total, next(given)))
        if ctx.message.attempt == 1:
            raise Retry(after=1)

    handled_by(world, work)
    world.settle()
    world.wait(2)
    world.settle()

    assert [3, 3] == seen


class Priced(Receipt, type="priced"):
    """A result with more fields than its function says."""

    currency: str = "EUR"


def test_a_result_that_its_annotation_loses_is_not_stored(world: World) -> None:
    """A subclass would come back without its fields: the function must say what it returns."""

    def price() -> Receipt:
        return Priced(cents=5)

    def work(job: Job, ctx: Context) -> None:
        ctx.step(price)

    box, _ = handled_by(world, work, attempts=1)
    world.settle()

    assert "step price: its return annotation loses a part of its result" in last_error(box)
    assert "a Priced is read as Receipt" in last_error(box)
    assert [] == box.query(ROWS)


def test_a_conflict_tells_what_differs(world: World) -> None:
    """Programs read the step and the places of the arguments."""
    found: list[tuple[object, ...]] = []

    def work(job: Job, ctx: Context) -> None:
        try:
            ctx.step(pair, ctx.message.attempt)
        except Conflict as error:
            found.append((error.message_id == ctx.message.id, error.key, error.differs))
            return
        raise ValueError

    handled_by(world, work)
    world.settle()
    world.wait(5)

    assert [(True, "pair", ("1",))] == found


def test_an_argument_that_is_no_value_is_refused(world: World) -> None:
    """What cannot be compared with the next call is bound to the function instead."""
    client = object()

    def fetch(of: object) -> int:
        return 1

    def work(job: Job, ctx: Context) -> None:
        if job.n == 1:
            ctx.step(fetch, client)
        ctx.step(partial(fetch, client))

    box, _ = handled_by(world, work, attempts=1)
    box.send("bob", Job(n=2))
    world.settle()

    assert "argument 1 cannot be compared" in last_error(box)
    assert [("fetch", 1, "done", 1, "1")] == box.query(ROWS)


def test_names_are_given_or_the_functions(world: World) -> None:
    """A lambda has none, and says so; a repeated name gets an ordinal of its own."""

    def work(job: Job, ctx: Context) -> None:
        ctx.step(nothing, name="first")
        ctx.step(lambda: 1, name="two")
        ctx.step(nothing)
        ctx.step(nothing)
        ctx.step(lambda: 2)

    box, _ = handled_by(world, work, attempts=1)
    world.settle()

    assert "set name=" in last_error(box)
    assert [("first", 1), ("two", 1), ("nothing", 1), ("nothing", 2)] == [
        row[:2] for row in box.query(ROWS)
    ]


def test_steps_of_threads_have_names(world: World) -> None:
    """Named steps may run at once; two of one name are refused, for their order may vary."""
    seen: list[object] = []

    def work(job: Job, ctx: Context) -> None:
        with ThreadPoolExecutor(4) as pool:
            named = [pool.submit(partial(ctx.step, pair, n, name=f"pair-{n}")) for n in range(4)]
            seen.append([each.result() for each in named])
            same = [pool.submit(partial(ctx.step, pair, n)) for n in range(2)]
            seen.append([str(each.exception()) for each in same])
        raise Reject

    box, _ = handled_by(world, work)
    world.settle()

    assert [(n, str(n)) for n in range(4)] == seen[0]
    assert any("give each its own name" in each for each in seen[1])  # type: ignore[attr-defined]
    assert {f"pair-{n}" for n in range(4)} <= {row[0] for row in box.query(ROWS)}


def test_an_error_is_tried_again_in_its_place(world: World) -> None:
    """The pauses are those of the policy, the handler's attempt is one, and the key is the same."""
    calls: list[tuple[int, str]] = []
    attempts: list[int] = []

    def away(n: int) -> int:
        calls.append((step.attempt, step.key))
        if step.attempt < 4:
            raise OSError("away")
        return n

    def work(job: Job, ctx: Context) -> None:
        ctx.step(away, job.n, attempts=4, retry_on=OSError)
        attempts.append(ctx.message.attempt)

    box, _ = handled_by(world, work)
    counts: list[int] = []
    for pause in (0, 1, 1, 1, 4):
        world.wait(pause)
        counts.append(len(calls))

    assert ([1, 2, 2, 3, 4], [1]) == (counts, attempts)
    assert [1, 2, 3, 4] == [attempt for attempt, _ in calls]
    assert 1 == len({key for _, key in calls})
    assert [("away", 1, "done", 4, "1")] == box.query(ROWS)


def test_a_pause_goes_on_after_a_restart(world: World) -> None:
    """How often it failed, and when it is due, is in the file: nothing begins once more."""
    calls: list[int] = []

    def away() -> None:
        calls.append(step.attempt)
        raise OSError("away")

    def work(job: Job, ctx: Context) -> None:
        ctx.step(away, attempts=3)

    box, _ = handled_by(world, work, attempts=1)
    world.settle()
    (box,) = world.reopen()
    world.settle()
    early = [*calls]
    world.wait(1)
    (box,) = world.reopen()
    world.wait(2)

    assert ([1], [1, 2, 3]) == (early, calls)
    assert "OSError: away" in last_error(box)
    assert [("away", 1, "given_up", 3, None)] == box.query(ROWS)


def test_what_is_not_to_be_tried_again_is_the_handlers_at_once(world: World) -> None:
    """Its policy decides then; the next attempt of the message begins the step as if new."""
    calls: list[int] = []

    def wrong() -> None:
        calls.append(step.attempt)
        raise ValueError("wrong")

    def work(job: Job, ctx: Context) -> None:
        ctx.step(wrong, attempts=5, retry_on=OSError)

    handled_by(world, work, attempts=2)
    world.settle()
    world.wait(5)

    assert [1, 1] == calls


@pytest.mark.parametrize(
    ("signal", "state"), [(Reject("no"), "dead"), (Drop(), "dropped"), (Retry(after=1), "pending")]
)
def test_what_ends_the_message_is_no_failure_of_the_step(
    world: World, signal: Exception, state: str
) -> None:
    """Reject and Drop end the message at once; Retry is tried again as the step says."""

    def stop() -> None:
        raise signal

    def work(job: Job, ctx: Context) -> None:
        ctx.step(stop, attempts=9)

    box, _ = handled_by(world, work)
    world.settle()
    rows = box.query("SELECT state FROM onceward_inbox") or [("dead",)]

    assert [(state,)] == rows
    assert (state == "pending") == bool(box.query(ROWS))


def test_a_failure_may_be_stored(world: World) -> None:
    """Each call of the handler gets it, and the function is not called again."""
    calls: list[int] = []
    told: list[tuple[str, str]] = []

    def wrong() -> None:
        calls.append(step.attempt)
        raise OSError("gone")

    def work(job: Job, ctx: Context) -> None:
        try:
            ctx.step(wrong, attempts=2, keep_failure=True)
        except StepFailed as error:
            told.append((error.step, error.error))
        if ctx.message.attempt < 2:
            raise ValueError

    box, _ = handled_by(world, work)
    for pause in (0, 1, 5):
        world.wait(pause)

    assert ([1, 2], [("wrong", "OSError: gone")] * 2) == (calls, told)
    assert [("wrong", 1, "failed", 2, None)] == box.query(ROWS)


def test_a_retry_without_a_pause_does_not_end_the_call(world: World) -> None:
    """The function is called again at once, in the same call of the handler."""
    calls: list[int] = []
    begun: list[int] = []
    at_once = RetryPolicy(lambda _: 0.0, lambda state: state.attempt_number >= 3)

    def away() -> int:
        calls.append(step.attempt)
        if step.attempt < 3:
            raise OSError
        return 1

    def work(job: Job, ctx: Context) -> None:
        begun.append(1)
        ctx.step(away, retry=at_once)
        ctx.step(away, retry=at_once, tx=True, name="written")

    handled_by(world, work)
    world.settle()

    assert ([1, 2, 3, 1, 2, 3], [1]) == (calls, begun)


def test_a_step_that_writes_commits_its_rows_its_messages_and_its_result(world: World) -> None:
    """They are there before the handler ends, once, whatever becomes of the handler."""
    seen: list[tuple[int, int]] = []

    def book(ctx: Context) -> int:
        assert step.tx is ctx.tx
        ctx.tx.execute(NOTES)
        ctx.tx.execute("INSERT INTO notes VALUES ('booked')")
        ctx.send("carol", Job(n=2))
        return 7

    def work(job: Job, ctx: Context) -> None:
        found = ctx.step(partial(book, ctx), tx=True)
        [(rows,)] = boxes[0].query("SELECT count(*) FROM notes")
        seen.append((found, rows))
        ctx.tx.execute("INSERT INTO notes VALUES ('ended')")
        if len(seen) < 3:
            raise ValueError

    boxes = [world.open("carol")]
    boxes.insert(0, handled_by(world, work)[0])
    world.settle()
    world.wait(5)
    world.wait(5)

    assert [(7, 1)] * 3 == seen
    assert [("booked",), ("ended",)] == boxes[0].query("SELECT text FROM notes")
    assert [("job",)] == boxes[1].query("SELECT type FROM onceward_inbox")


def test_a_step_that_writes_and_fails_leaves_nothing(world: World) -> None:
    """Its rows are rolled back, and no lock is held behind it."""

    def book() -> None:
        step.tx.execute(NOTES)
        step.tx.execute("INSERT INTO notes VALUES ('booked')")
        if step.attempt < 2:
            raise OSError

    def work(job: Job, ctx: Context) -> None:
        ctx.step(book, tx=True, attempts=2)

    box, _ = handled_by(world, work)
    world.settle()
    before = box.query("SELECT count(*) FROM sqlite_schema WHERE name = 'notes'")
    world.wait(2)

    assert [(0,)] == before
    assert [("booked",)] == box.query("SELECT text FROM notes")


def test_a_decorated_function_is_a_step_in_a_handler_only(world: World) -> None:
    """Elsewhere, and inside of another step, it is a plain function with a key of its own."""
    keys: list[str] = []
    calls: list[int] = []
    totals: list[int] = []

    @step(attempts=2)
    def inner(n: int) -> int:
        keys.append(step.key)
        return n

    @step
    def outer(n: int) -> int:
        keys.append(step.key)
        calls.append(n)
        return inner(n) + inner(n)

    def work(job: Job, ctx: Context) -> None:
        totals.append(outer(n=job.n) + inner(5))
        if ctx.message.attempt < 2:
            raise ValueError

    assert 4 == outer(2)
    box, _ = handled_by(world, work)
    world.settle()
    world.wait(5)

    assert ([2, 1], [7, 7]) == (calls, totals)
    assert 7 == len(keys) == len(set(keys))
    assert [("outer", 1, "done", 1, "2"), ("inner", 1, "done", 1, "5")] == box.query(ROWS)


def test_a_library_finds_the_context_of_the_handler(world: World) -> None:
    """It is the object that the handler was given; inside of a step, and outside, there is none."""
    found: list[object] = []

    def inside() -> None:
        found.append(step.context)

    def work(job: Job, ctx: Context) -> None:
        found.append(step.context is ctx)
        ctx.step(inside)

    handled_by(world, work)
    world.settle()

    assert [True, None] == found
    assert step.context is None


def test_a_library_finds_the_async_face_of_a_context(tmp_path: Path) -> None:
    """In a coroutine, and in a task that it starts, it is the context that can be awaited."""
    agent = Agent("bob")

    async def find() -> object:
        return step.context

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> bool:
        return await asyncio.create_task(find()) is ctx is step.context

    async def main() -> bool:
        async with AsyncPostbox(tmp_path / "bob.db", agent=agent) as box:
            return await box.result(await box.request("bob", Job(n=1)), reply=bool, timeout=30)

    assert asyncio.run(main())


def test_outside_of_a_step_there_is_no_key() -> None:
    """The error says where it is."""
    with pytest.raises(InvalidArgument, match=r"no step is running here: read step\.key"):
        _ = step.key


def test_a_step_and_a_request_inside_of_a_step_are_refused(world: World) -> None:
    """Neither would be found again: the function is not called then."""
    told: list[str] = []

    def inside(ctx: Context) -> None:
        for attempt in (lambda: ctx.step(nothing), lambda: ctx.request("bob", 1)):
            with pytest.raises(InvalidArgument) as caught:
                attempt()
            told.append(str(caught.value))

    def work(job: Job, ctx: Context) -> None:
        ctx.step(partial(inside, ctx))

    handled_by(world, work)
    world.settle()

    assert ["step nothing inside a step", "a request inside a step"] == [
        each.partition(" cannot")[0] for each in told
    ]


def test_requests_and_steps_are_told_apart(world: World) -> None:
    """The call that waits for a reply has its steps when it is called again."""
    calls: list[int] = []
    oracle, agent = Agent("oracle"), Agent("bob")
    oracle.on(Job)(lambda job: 10 * job.n)

    def paid(n: int) -> int:
        calls.append(n)
        return n

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        one = ctx.step(paid, 1)
        two = ctx.ask("oracle", Job(n=one), reply=int)
        three = ctx.step(paid, two)
        four = ctx.ask("oracle", Job(n=three), reply=int)
        ctx.step(paid, four)

    world.open(oracle)
    world.open(agent).send("bob", Job(n=1))
    world.settle()

    assert [1, 10, 100] == calls


def test_limits_hold_for_one_message(world: World) -> None:
    """The number of steps, and the bytes of their results; the error names the limit."""
    agent = Agent("bob")

    def text(size: int) -> str:
        return "x" * size

    @agent.on(Job, attempts=1)
    def work(job: Job, ctx: Context) -> None:
        for n in range(4 if job.n == 1 else 2):
            ctx.step(text, n if job.n == 1 else 60)

    box = world.open(agent, tuning=Tuning(max_steps=3, max_step_bytes=100))
    for n in (1, 2):
        box.send("bob", Job(n=n))
    world.settle()

    told = [str(each.last_error) for each in box.dead_letters.list()]
    assert 2 == sum("StepLimit" in each for each in told)
    assert {"max_steps", "max_step_bytes"} == {each.split("(")[-1].split(")")[0] for each in told}
    assert issubclass(StepLimit, Exception)


def test_steps_end_with_the_record_of_their_message(world: World) -> None:
    """They are kept while the message waits or is a dead letter, and pruned with its record."""

    def work(job: Job, ctx: Context) -> None:
        ctx.step(nothing)
        if job.n == 2:
            raise Reject
        if job.n == 3:
            raise Retry(after=timedelta(days=400))

    box, one = handled_by(world, work)
    two, three = box.send("bob", Job(n=2)), box.session("s").send("bob", Job(n=3))
    world.settle()
    of = "SELECT message_id FROM onceward_steps ORDER BY seq"
    box.file.run_maintenance()
    before = {found for (found,) in box.query(of)}
    world.audited = False  # the sender's row of the dead letter is pruned, and still counted
    world.clock.forward(30 * 86400)
    box.file.run_maintenance()

    assert ({one, two, three}, {(two,), (three,)}) == (before, {*box.query(of)})
    box.dead_letters.discard(two)
    box.file.run_maintenance()
    assert [(three,)] == box.query(of)


def test_a_replayed_dead_letter_goes_on_after_its_steps(world: World) -> None:
    """Its id is the same, and so are its steps."""
    calls: list[int] = []
    broken = [True]

    def paid() -> int:
        calls.append(1)
        return 1

    def work(job: Job, ctx: Context) -> None:
        ctx.step(paid)
        if broken:
            raise Reject

    box, _ = handled_by(world, work)
    world.settle()
    broken.clear()
    [letter] = box.dead_letters.list()
    box.dead_letters.replay(letter.id)
    world.settle()

    assert [1] == calls
    assert [("processed",)] == box.query("SELECT state FROM onceward_inbox")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 2, 3]),
        ({"from_step": "paid#2"}, [1, 2, 3, 2, 3]),
        ({"without_steps": True}, [1, 2, 3, 1, 2, 3]),
    ],
)
def test_a_replay_may_call_steps_again(
    world: World, options: dict[str, Any], expected: list[int]
) -> None:
    """From one of them on, or all; an unknown one is refused, and nothing is deleted."""
    calls: list[int] = []
    broken = [True]

    def paid(n: int) -> int:
        calls.append(n)
        return n

    def work(job: Job, ctx: Context) -> None:
        for n in (1, 2, 3):
            ctx.step(paid, n)
        if broken:
            raise Reject

    box, sent = handled_by(world, work)
    world.settle()
    broken.clear()
    with pytest.raises(InvalidArgument, match="no step other: there are paid, paid#2, paid#3"):
        box.dead_letters.replay(sent, from_step="other")
    [letter] = [each for each in box.dead_letters.list() if each.origin == "inbox"]
    box.dead_letters.replay(sent, **options)
    world.settle()

    assert (sent, expected) == (letter.id, calls)
    assert [("processed",)] == box.query("SELECT state FROM onceward_inbox")


def test_the_journey_of_a_message_has_its_steps(world: World) -> None:
    """With their attempts and their times, in order; and what it has put out."""

    def away() -> int:
        if step.attempt < 2:
            raise OSError("away")
        return 1

    def work(job: Job, ctx: Context) -> None:
        ctx.step(away, attempts=2)
        ctx.sleep(5)
        ctx.stream("told").append("end")
        ctx.step(nothing)

    box, sent = handled_by(world, work)
    for pause in (0, 1, 5):
        world.wait(pause)
    journey = box.journey(sent)

    assert journey is not None
    assert [("told", 1, 1)] == [(each.name, each.chunks, each.attempt) for each in journey.streams]
    assert [("away", "done", 2), ("sleep", "waiting", 0), ("nothing", "done", 1)] == [
        (each.name, each.state, each.attempts) for each in journey.steps
    ]


def test_a_worker_that_lost_its_lease_stores_nothing(world: World) -> None:
    """The other worker's result stands, and what the late one wrote is rolled back."""
    calls: list[str] = []

    def slow(box: Postbox) -> str:
        calls.append("late")
        if len(calls) == 1:
            world.elsewhere(partial(take_over, box))
        return calls[-1]

    def take_over(box: Postbox) -> None:
        with box.begin() as tx:
            tx.execute("UPDATE _onceward_lanes SET token = token + 1, owner = 'other'")

    def work(job: Job, ctx: Context) -> None:
        ctx.step(partial(slow, boxes[0]))

    box, _ = handled_by(world, work)
    boxes = [box]
    world.settle()

    assert [] == box.query(ROWS)
    assert ["late"] == calls


def test_a_thread_that_outlives_its_handler_stores_nothing(world: World) -> None:
    """Its steps belong to a call that has ended."""
    kept: list[Context] = []

    def work(job: Job, ctx: Context) -> None:
        ctx.step(nothing)
        kept.append(ctx)

    box, _ = handled_by(world, work)
    world.settle()

    with pytest.raises(Exception, match="its handler has ended"):
        kept[0].step(nothing, name="later")
    assert 1 == len(box.query(ROWS))


def test_a_batch_has_the_steps_of_its_messages(world: World) -> None:
    """Each is of one message, which has it when it is handled alone after a failure."""
    calls: list[int] = []
    agent = Agent("bob")

    def paid(n: int) -> int:
        calls.append(n)
        return n

    @step
    def decorated() -> int:
        return 1

    @agent.on(Job, batch=3, within=0)
    def work(jobs: list[Job], ctx: BatchContext) -> None:
        for job, message in zip(jobs, ctx.messages, strict=True):
            ctx.step(message, paid, job.n)
        with pytest.raises(InvalidArgument, match="a step in a batch belongs to one message"):
            decorated()
        if len(jobs) > 1:
            raise ValueError

    box = world.open(agent)
    for n in range(3):
        box.send("bob", Job(n=n))
    world.settle()
    world.wait(5)

    assert [0, 1, 2] == calls
    assert [("processed",)] * 3 == box.query("SELECT state FROM onceward_inbox")


def test_a_batch_waits_for_the_pause_of_a_step(world: World) -> None:
    """All its messages wait together, no attempt is spent, and what is stored is not called."""
    calls: list[int] = []
    agent = Agent("bob")

    def away(n: int) -> int:
        calls.append(n)
        if n == 1 and calls.count(n) < 3:
            raise OSError("away")
        return n

    @agent.on(Job, batch=2, within=0)
    def work(jobs: list[Job], ctx: BatchContext) -> None:
        for job, message in zip(jobs, ctx.messages, strict=True):
            ctx.step(message, away, job.n, attempts=3)

    box = world.open(agent)
    for n in range(2):
        box.send("bob", Job(n=n))
    world.settle()
    waiting = box.query("SELECT state, attempts FROM onceward_inbox")
    for _ in range(2):
        world.wait(5)

    assert [("pending", 0)] * 2 == waiting
    assert [0, 1, 1, 1] == calls
    assert [("processed", 1)] * 2 == box.query("SELECT state, attempts FROM onceward_inbox")


def test_an_async_handler_has_steps(tmp_path: Path) -> None:
    """Coroutines and functions, at once where they are named; the loop is never stopped."""
    calls: list[str] = []
    seen: list[object] = []
    agent = Agent("bob")

    async def fetch(name: str) -> str:
        calls.append(name)
        await asyncio.sleep(0)
        return name * 2

    def plain(n: int) -> int:
        calls.append(str(n))
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return n

    @step
    async def decorated(n: int) -> int:
        calls.append("decorated")
        return n

    @step
    def sync_one() -> int:
        return 1

    def book() -> int:
        step.tx.execute(NOTES)
        return 5

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        found: list[Any] = [
            *await asyncio.gather(
                ctx.step(fetch, "a", name="a"), ctx.step(fetch, "b", name="b"), ctx.step(plain, 3)
            )
        ]
        found += [await decorated(4), await ctx.step(book, tx=True), await ctx.step(sync_one)]
        with pytest.raises(InvalidArgument, match="would block the event loop"):
            sync_one()
        seen.append(found)
        if len(seen) < 2:
            raise Retry(after=0)

    async def main() -> None:
        async with AsyncPostbox(tmp_path / "bob.db", agent=agent) as box:
            sent = await box.request("bob", Job(n=1))
            with pytest.raises(Exception, match="without a reply"):
                await box.result(sent, reply=int, timeout=30)

    asyncio.run(main())

    assert [["aa", "bb", 3, 4, 5, 1]] * 2 == seen
    assert ["3", "a", "b", "decorated"] == sorted(calls)


def test_unnamed_steps_of_tasks_are_refused(tmp_path: Path) -> None:
    """The order in which tasks come to their steps may be another one at the next call."""
    told: list[object] = []
    agent = Agent("bob")

    async def fetch(n: int) -> int:
        return n

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        told.extend(
            await asyncio.gather(ctx.step(fetch, 1), ctx.step(fetch, 2), return_exceptions=True)
        )
        told.append(await ctx.step(fetch, 3, name="third"))
        told.append(await ctx.step(fetch, 4, name="third"))

    async def main() -> None:
        async with AsyncPostbox(tmp_path / "bob.db", agent=agent) as box:
            sent = await box.request("bob", Job(n=1))
            with pytest.raises(Exception, match="without a reply"):
                await box.result(sent, reply=int, timeout=30)

    asyncio.run(main())

    assert [1, 3, 4] == [each for each in told if isinstance(each, int)]
    assert "two steps are called fetch" in str(told[1])


def test_a_coroutine_that_waits_leaves_none_of_its_steps_unstored(tmp_path: Path) -> None:
    """The call ends when the functions that run have ended; each is called once."""
    calls: list[str] = []
    agent = Agent("bob")

    async def away() -> str:
        calls.append("away")
        if step.attempt < 2:
            raise OSError
        return "here"

    async def slow() -> str:
        calls.append("slow")
        for _ in range(50):
            await asyncio.sleep(0)
        return "slow"

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> str:
        policy = RetryPolicy(lambda _: 0.01, lambda _: False)
        found = await asyncio.gather(ctx.step(away, retry=policy), ctx.step(slow))
        return " ".join(found)

    async def main() -> str:
        async with AsyncPostbox(tmp_path / "bob.db", agent=agent) as box:
            ticket = await box.request("bob", Job(n=1))
            return await box.result(ticket, reply=str, timeout=30)

    assert "here slow" == asyncio.run(main())
    assert ["away", "away", "slow"] == sorted(calls)


def test_an_async_function_in_a_sync_handler_is_refused(world: World) -> None:
    """The error says what to do."""

    async def fetch() -> None: ...

    def work(job: Job, ctx: Context) -> None:
        ctx.step(fetch)  # type: ignore[unused-coroutine]

    box, _ = handled_by(world, work, attempts=1)
    world.settle()

    assert "make the handler async def" in last_error(box)


def test_a_decorated_function_is_a_step_in_a_thread_that_has_the_context(world: World) -> None:
    """``copy_context`` hands it to a thread of the handler's own."""
    calls: list[int] = []

    @step(name="in a thread")
    def paid(n: int) -> int:
        calls.append(n)
        return n

    def work(job: Job, ctx: Context) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(copy_context().run, paid, 1).result()
        if ctx.message.attempt < 2:
            raise ValueError

    _box, _ = handled_by(world, work)
    world.settle()
    world.wait(5)

    assert [1] == calls


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"attempts": 0}, "attempts=0"),
        ({"name": ""}, "name ''"),
        ({"retry_on": 5}, "retry_on=5"),
    ],
)
def test_options_are_checked_when_a_step_is_declared(options: Any, told: str) -> None:
    """The error is the program's at its start, and no message's."""
    with pytest.raises((InvalidArgument, InvalidMessage), match=told):
        step(**options)


def test_an_unknown_option_is_refused() -> None:
    """The nearest one is named."""
    with pytest.raises(TypeError, match="did you mean attempts"):
        step(attemps=3)  # type: ignore[call-overload]


def test_a_handler_without_steps_pays_no_statement(world: World) -> None:
    """Neither is the table read, nor a commit made."""
    box, _ = handled_by(world, lambda _job, _ctx: None)
    seen: list[str] = []
    assert box._db._con is not None
    box._db._con.exec_trace = lambda _, sql, __: seen.append(sql) or True  # type: ignore[func-returns-value]
    world.settle()

    assert seen
    assert [] == [sql for sql in seen if "_onceward_steps" in sql]


def test_a_step_costs_one_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is stored by one statement in a commit of its own."""
    commits: list[list[str]] = []
    seen: list[str] = []

    def work(job: Job, ctx: Context) -> None:
        ctx.step(nothing)
        seen.clear()
        ctx.step(nothing)
        ctx.step(nothing)
        commits.append([*seen])

    box, _ = handled_by(world, work)
    assert box._db._con is not None
    box._db._con.exec_trace = lambda _, sql, __: seen.append(sql.strip().split()[0]) or True  # type: ignore[func-returns-value]
    world.settle()

    assert [["BEGIN", "INSERT", "COMMIT"] * 2] == commits
    assert stored.STORE.count("INSERT") == 1


@pytest.mark.parametrize(
    ("durability", "syncs"), [("safe", [1, 1, 1]), ("fast", [0, 0, 0])], ids=["safe", "fast"]
)
def test_a_step_waits_for_the_disk_once(
    tmp_path: Path, durability: Durability, syncs: list[int]
) -> None:
    """One that writes, too; and not at all where commits are not synced."""
    agent, disk, made = Agent("bob"), SlowDisk(0.0), list[int]()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        if job.n == 0:
            ctx.tx.execute("CREATE TABLE made (n)")
        else:
            steps(ctx)

    def steps(ctx: Context) -> None:
        ctx.step(nothing)
        for tx in (False, False, True):
            before = disk.syncs
            ctx.step(written if tx else nothing, tx=tx)
            made.append(disk.syncs - before)

    def written() -> None:
        step.tx.execute("INSERT INTO made VALUES (1)")

    with Postbox(
        tmp_path / "bob.db",
        agent=agent,
        start=False,
        durability=durability,
        testing=Controls(vfs=disk.name),
    ) as box:
        for n in range(2):
            box.send("bob", Job(n=n))
        box.run_until_idle()
    disk.unregister()

    assert syncs == made


def test_a_run_has_the_steps_of_its_messages(world: World) -> None:
    """Tried again with the same messages it finds them; with others it begins new ones."""
    calls: list[tuple[int, ...]] = []
    ended: list[int] = []
    agent = Agent("bob")

    def paid(numbers: list[int]) -> int:
        calls.append(tuple(numbers))
        return sum(numbers)

    def book(n: int) -> int:
        step.tx.execute(NOTES)
        step.tx.execute("INSERT INTO notes VALUES (?)", (str(n),))
        return n

    @agent.runs("talk", mode="collect", debounce=0)
    def serve(run: Run) -> None:
        numbers = [each.body["n"] for each in run.messages]
        total = run.step(paid, numbers)
        run.step(book, total, tx=True)
        ended.append(total)
        if len(ended) < 2:
            raise ValueError

    box = world.open(agent)
    for n in (1, 2):
        box.session("talk").send("bob", Job(n=n))
    world.settle()
    world.wait(5)
    box.session("talk").send("bob", Job(n=4))
    world.settle()

    assert ([(1, 2), (4,)], [3, 3, 4]) == (calls, ended)
    assert [("3",), ("4",)] == box.query("SELECT text FROM notes")


def test_a_step_of_a_run_is_tried_again_in_its_place(world: World) -> None:
    """The run ends until then, and its messages have spent no attempt."""
    calls: list[int] = []
    attempts: list[int] = []
    agent = Agent("bob")

    @step(attempts=3)
    def away() -> None:
        calls.append(step.attempt)
        if step.attempt < 3:
            raise OSError("away")

    @agent.runs("talk", debounce=0, attempts=1)
    def serve(run: Run) -> None:
        away()
        attempts.append(run.message.attempt)

    box = world.open(agent)
    box.session("talk").send("bob", Job(n=1))
    for pause in (0, 1, 2):
        world.wait(pause)

    assert ([1, 2, 3], [1]) == (calls, attempts)


@pytest.mark.parametrize("n", range(4))
@pytest.mark.parametrize("when", ["before", "inside", "stored"])
def test_a_process_that_dies_at_a_step_goes_on_at_it(world: World, n: int, when: str) -> None:
    """What was stored is not done again, and what runs is done again with the same key."""
    calls: list[tuple[int, str]] = []
    alive = ["so far"]
    agent = Agent("bob")

    def die(at: str, number: int) -> None:
        if alive and (at, number) == (when, n):
            alive.clear()
            raise world.crash

    def paid(number: int) -> int:
        die("before", number)
        calls.append((number, step.key))
        die("inside", number)
        return number

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        for number in range(4):
            ctx.step(paid, number)
            die("stored", number)
        ctx.tx.execute(NOTES)
        ctx.tx.execute("INSERT INTO notes VALUES ('ended')")

    box = world.open(agent, lease=5)
    box.send("bob", Job(n=1))
    with pytest.raises(world.crash):
        world.settle()
    world.shut()
    box = world.open(agent, lease=5)
    world.wait(6)

    keys = dict(calls)
    assert [0, 1, 2, 3] == sorted(keys)
    assert {*calls} == {(number, keys[number]) for number in range(4)}
    assert 4 + (when == "inside") == len(calls)
    assert [("ended",)] == box.query("SELECT text FROM notes")


def test_a_sleep_ends_the_call_until_it_is_over(world: World) -> None:
    """No attempt is counted, a restart changes nothing, and the date is the first call's."""
    begun: list[int] = []
    woken: list[int] = []

    def work(job: Job, ctx: Context) -> None:
        begun.append(ctx.message.attempt)
        ctx.sleep("3d")
        ctx.sleep(timedelta(hours=1))
        woken.append(ctx.message.attempt)

    box, _ = handled_by(world, work)
    world.settle()
    [(reason,)] = box.query("SELECT reason FROM onceward_inbox")
    world.wait(2 * 86400)
    (box,) = world.reopen()
    world.wait(86400 - 1)
    asleep = [*begun]
    world.wait(1)
    world.wait(3600)

    assert ([1], [1, 1, 1], [1]) == (asleep, begun, woken)
    assert "sleeps until 2026-01-04T00:00:00+00:00" == reason
    assert [("sleep", 1, "waiting", 0, None), ("sleep", 2, "waiting", 0, None)] == box.query(ROWS)


def test_a_handler_that_catches_the_end_of_its_call_sleeps_all_the_same(world: World) -> None:
    """Nothing of what it writes after that is kept."""

    def work(job: Job, ctx: Context) -> None:
        with suppress(BaseException):
            ctx.sleep(60)
        ctx.tx.execute(NOTES)

    box, _ = handled_by(world, work)
    world.settle()

    assert [("pending",)] == box.query("SELECT state FROM onceward_inbox")
    assert [(0,)] == box.query("SELECT count(*) FROM sqlite_schema WHERE name = 'notes'")


def test_time_ids_and_chance_are_the_same_at_each_call(world: World) -> None:
    """They are steps: a handler may decide by them."""
    seen: list[tuple[object, ...]] = []

    def work(job: Job, ctx: Context) -> None:
        seen.append((ctx.now(), ctx.uuid(), ctx.random(), ctx.random()))
        if len(seen) < 2:
            raise ValueError

    handled_by(world, work)
    world.settle()
    world.wait(5)

    first, again = seen
    assert first == again
    assert (datetime(2026, 1, 1, tzinfo=UTC), UUID) == (first[0], type(first[1]))
    assert first[2] != first[3]


def test_a_run_sleeps_as_a_handler_does(world: World) -> None:
    """Its messages get another run when the sleep is over."""
    woken: list[str] = []
    agent = Agent("bob")

    @agent.runs("talk", debounce=0)
    def serve(run: Run) -> None:
        run.sleep(60)
        woken.append(run.message.id)

    box = world.open(agent)
    sent = box.session("talk").send("bob", Job(n=1))
    world.settle()
    asleep = [*woken]
    world.wait(61)

    assert ([], [sent]) == (asleep, woken)


def test_a_coroutine_sleeps_once_its_other_steps_have_ended(tmp_path: Path) -> None:
    """Both sleeps have their dates from the first call, and no step is called twice."""
    calls: list[str] = []
    agent = Agent("bob")

    async def slow() -> str:
        for _ in range(50):
            await asyncio.sleep(0)
        calls.append("slow")
        return "slow"

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> str:
        found, _ = await asyncio.gather(ctx.step(slow), ctx.sleep(0.05))
        return f"{found} {(await ctx.now()).year > 2000} {await ctx.random() < 1}"

    async def main() -> str:
        async with AsyncPostbox(tmp_path / "bob.db", agent=agent) as box:
            ticket = await box.request("bob", Job(n=1))
            return await box.result(ticket, reply=str, timeout=30)

    assert "slow True True" == asyncio.run(main())
    assert ["slow"] == calls


class Approved(Msg, type="approved"):
    """A person's word."""

    by: str


def waiting_agent(seen: list[object], timeout: str | None = None) -> Agent:
    """Return an agent that waits for two approvals of each job."""
    agent = Agent("bob")
    agent.waits(Approved)

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        seen.append("begun")
        first = ctx.wait(Approved, timeout=timeout)
        seen.append(first.by)
        seen.append(ctx.wait(Approved, timeout=timeout).by)

    return agent


def test_a_handler_waits_for_messages_of_its_session(world: World) -> None:
    """They may come from any agent, of its own lane too; those of other sessions are not its."""
    seen: list[object] = []
    box = world.open(waiting_agent(seen))
    alice = world.open("alice")
    box.session("s").send("bob", Job(n=1))
    world.settle()
    alice.session("t").send("bob", Approved(by="other"))
    world.settle()
    quiet = [*seen]
    alice.session("s").send("bob", Approved(by="alice"))
    world.settle()
    (box, _) = world.reopen("bob", "alice")
    box.session("s").send("bob", Approved(by="bob"))
    world.settle()

    assert ["begun"] == quiet
    assert ["begun", "begun", "alice", "begun", "alice", "bob"] == seen
    assert [("processed",)] * 4 == box.query("SELECT state FROM onceward_inbox")
    assert [] == box.dead_letters.list()


def test_a_message_that_comes_before_it_is_waited_for_is_kept(world: World) -> None:
    """Each is taken by one wait, the oldest first."""
    seen: list[object] = []
    box = world.open(waiting_agent(seen))
    for by in ("one", "two", "three"):
        box.session("s").send("bob", Approved(by=by))
    world.settle()
    box.session("s").send("bob", Job(n=1))
    world.settle()

    assert ["begun", "one", "two"] == seen
    assert [("three",)] == box.query("SELECT body ->> '$.by' FROM _onceward_awaited_messages")


def test_a_message_that_comes_while_the_call_ends_is_not_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that ends the call looks once more."""
    seen: list[object] = []
    box = world.open(waiting_agent(seen))
    box.session("s").send("bob", Job(n=1))
    suspend = MessageSteps.suspend

    def late(self: MessageSteps, *args: Any) -> None:
        monkeypatch.undo()
        with box._db.outside_handler():
            for by in ("a", "b"):
                box.session("s").send("bob", Approved(by=by))
        world.elsewhere(box.run_until_idle)
        suspend(self, *args)

    monkeypatch.setattr(MessageSteps, "suspend", late)
    world.settle()

    assert ["begun", "begun", "a", "b"] == seen


def test_a_wait_ends_at_its_timeout_and_stays_so(world: World) -> None:
    """Each later call gets the same, also when the message has come since."""
    told: list[str] = []
    agent = Agent("bob")
    agent.waits(Approved)

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        try:
            ctx.wait(Approved, timeout="1h")
        except AnswerTimeout as error:
            told.append(error.reason)
        if len(told) < 2:
            raise ValueError

    box = world.open(agent)
    box.session("s").send("bob", Job(n=1))
    world.settle()
    early = [*told]
    world.wait(3600)
    box.session("s").send("bob", Approved(by="late"))
    world.wait(5)

    assert ([], ["timeout", "timeout"]) == (early, told)


def test_a_type_that_is_not_declared_cannot_be_waited_for(world: World) -> None:
    """One that came early would be lost: the error says what to declare."""

    def work(job: Job, ctx: Context) -> None:
        ctx.wait(Approved)

    box, _ = handled_by(world, work, attempts=1)
    world.settle()

    assert "agent.waits('approved')" in last_error(box)


def test_a_type_is_waited_for_or_handled() -> None:
    """Both at once are refused, in either order."""
    agent = Agent("bob")
    agent.waits("one")
    agent.on("two")(nothing_of)
    with pytest.raises(InvalidArgument, match="has a handler for two"):
        agent.waits("two")
    with pytest.raises(InvalidArgument, match="waits for one"):
        agent.on("one")(nothing_of)


def nothing_of(body: object) -> None:
    """Handle anything."""


def test_a_type_that_is_declared_no_longer_reaches_handlers_again(world: World) -> None:
    """What came for a wait until then is pruned when its time is over."""
    seen: list[object] = []
    box = world.open(waiting_agent(seen))
    box.send("bob", Approved(by="kept"))
    world.settle()
    world.shut()
    agent = Agent("bob")
    agent.on(Approved)(lambda approved: seen.append(approved.by))
    box = world.open(agent)
    box.send("bob", Approved(by="handled"))
    world.settle()
    kept = box.query("SELECT count(*) FROM _onceward_awaited_messages")
    world.clock.forward(30 * 86400)
    box.file.run_maintenance()

    assert (["handled"], [(1,)]) == (seen, kept)
    assert [(0,)] == box.query("SELECT count(*) FROM _onceward_awaited_messages")
