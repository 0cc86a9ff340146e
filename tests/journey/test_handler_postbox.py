"""What a handler may ask of its postbox: it reads, takes no lock, and is told what to use else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward import (
    Agent,
    AsyncContext,
    AsyncRun,
    BatchContext,
    Context,
    Postbox,
    Run,
)
from onceward.errors import AnswerTimeout, InvalidArgument
from onceward.types import AsyncBatchContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.journey.conftest import World


def answered(world: World, ask: Callable[..., Any], *, declared: str = "on") -> list[Any]:
    """Return what a handler gets that asks after a message which was handled."""
    found = list[Any]()
    hands, boss = Agent("hands"), Agent("boss")
    hands.on("work", keep_result=True)(lambda n: 2 * n)

    async def later(ctx: AsyncContext | AsyncRun, done: str) -> None:
        found.extend(await ask(ctx.postbox, done))

    def work(done: str, ctx: Context) -> None:
        found.extend(ask(ctx.postbox, done))

    async def await_work(done: str, ctx: AsyncContext) -> None:
        await later(ctx, done)

    def run(run: Run) -> None:
        found.extend(ask(run.postbox, run.message.body))

    async def await_run(run: AsyncRun) -> None:
        await later(run, run.message.body)

    handlers: dict[str, Any] = {
        "on": work, "await_on": await_work, "run": run, "await_run": await_run
    }  # fmt: skip
    runs = declared.endswith("run")
    declare = boss.runs("talk", mode="followup", debounce=0) if runs else boss.on("ask")
    declare(handlers[declared])
    box, _ = world.open(boss), world.open(hands)
    done = box.send("hands", 21, type="work")
    world.settle()
    box.session("talk").send("boss", done, type="ask")
    world.settle()
    return found


@pytest.mark.parametrize("declared", ["on", "run"])
def test_a_handler_reads_what_became_of_a_message(world: World, declared: str) -> None:
    """Its state, status and result, rows, and the history; handlers and runs alike."""

    def ask(box: Any, done: str) -> list[Any]:
        return [
            box.agent,
            box.state(done),
            box.status(done).state,
            box.result(done, reply=int),
            box.progress_of(done),
            box.query("SELECT count(*) FROM onceward_outbox WHERE id = ?", (done,)),
            [each.id for each in box.history(type="work").messages],
            [each.id for each in box.thread(done)],
            box.journey(done).record.id == done,
        ]

    found = answered(world, ask, declared=declared)

    known = found[6][0]
    assert ["boss", "acked", "done", 42, None, [(1,)], [known], [known], True] == found


@pytest.mark.parametrize("declared", ["await_on", "await_run"])
def test_a_coroutine_awaits_the_same(world: World, declared: str) -> None:
    """By the same names."""

    async def ask(box: Any, done: str) -> list[Any]:
        return [
            box.agent,
            await box.state(done),
            (await box.status(done)).state,
            await box.result(done, reply=int),
            await box.query("SELECT 1"),
        ]

    assert ["boss", "acked", "done", 42, [(1,)]] == answered(world, ask, declared=declared)


def raised(call: Callable[[], object]) -> str:
    """Return the type and the text of what a call raises."""
    with pytest.raises((InvalidArgument, AttributeError, AnswerTimeout)) as caught:
        call()
    return f"{caught.type.__name__}: {caught.value}"


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("send", "ctx.send"),
        ("begin", "ctx.tx"),
        ("ask", "ctx.ask"),
        ("receive", "ctx.wait"),
        ("flush", "a postbox outside of the handler"),
        ("channels", "a postbox outside of the handler"),
        ("dead_letters", "a postbox outside of the handler"),
        ("close", "a postbox outside of the handler"),
    ],
)
@pytest.mark.parametrize("declared", ["on", "await_on"])
def test_what_would_write_or_wait_is_refused(
    world: World, name: str, use: str, declared: str
) -> None:
    """Before anything is written, with what to use in its place; a typing error is none of it."""

    def ask(box: Any, _: str) -> list[Any]:
        return [raised(lambda: getattr(box, name)), raised(lambda: box.sned)]

    async def await_ask(box: Any, done: str) -> list[Any]:
        return ask(box, done)

    found = answered(world, ask if declared == "on" else await_ask, declared=declared)

    assert [
        f"InvalidArgument: ctx.postbox only reads: use {use} in place of {name}",
        "AttributeError: the postbox of a handler has no attribute 'sned'",
    ] == found


def test_every_name_of_a_postbox_reads_or_is_refused() -> None:
    """A name that is added to the postbox is refused until it is known to read."""
    from onceward.api.handler_postbox import USE, HandlerPostbox  # noqa: PLC0415

    assert set() == {name for name in USE if not hasattr(Postbox, name)} | (
        USE.keys() & vars(HandlerPostbox)
    )


def test_a_result_that_is_not_there_is_not_waited_for(world: World) -> None:
    """It is asked for again in a later call."""
    found = list[str]()
    boss = Agent("boss")

    @boss.on("ask")
    def work(_: Any, ctx: Context) -> None:
        later = sent[0]
        found.append(raised(lambda: ctx.postbox.result(later, reply=int)).partition(":")[0])
        found.append(ctx.postbox.status(later).state)

    box = world.open(boss)
    world.open("hands")
    sent = [box.send("hands", 1, type="work")]
    box.send("boss", None, type="ask")
    world.settle()

    assert ["AnswerTimeout", "waiting"] == found


def test_no_call_holds_the_lock_of_the_file(world: World) -> None:
    """While a handler reads, another process may write; after its first write, it is refused."""
    found, boss, hands = list[Any](), Agent("boss"), Agent("hands")
    hands.on("work")(lambda n: n)

    @boss.on("ask")
    def work(done: str, ctx: Context) -> None:
        ctx.postbox.status(done)
        world.elsewhere(lambda: ctx._outbox.db.write(lambda tx: found.append(tx.now > 0)))
        ctx.tx.execute("CREATE TABLE kept (n)")
        found.append(raised(lambda: ctx.postbox.status(done)).partition(",")[0])
        found.append(ctx.postbox.state(done))

    box, _ = world.open(boss), world.open(hands)
    done = box.send("hands", 1, type="work")
    world.settle()
    box.send("boss", done, type="ask")
    world.settle()

    assert [
        True,
        "InvalidArgument: this handler has already sent a message or used ctx.tx",
        "acked",
    ] == found


@pytest.mark.parametrize("awaits", [False, True])
def test_the_handler_of_a_batch_has_it_too(world: World, awaits: bool) -> None:
    """It is the same for all messages of the batch."""
    found, boss = list[object](), Agent("boss")

    def work(ids: list[str], ctx: BatchContext) -> None:
        found.extend([ctx.postbox.agent, ctx.postbox.state(ids[0])])

    async def await_work(ids: list[str], ctx: AsyncBatchContext) -> None:
        found.extend([ctx.postbox.agent, await ctx.postbox.state(ids[0])])

    boss.on("ask", batch=10, within=0)(await_work if awaits else work)
    box = world.open(boss)
    world.open("hands")
    sent = box.send("hands", 1, type="work")
    world.settle()
    box.send("boss", sent, type="ask")
    world.settle()

    assert ["boss", "sent"] == found
