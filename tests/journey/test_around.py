"""``agent.around``: generators around every call of a handler."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncContext, BatchContext, Context, Drop, Reject, Retry
from onceward.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward import Postbox

Heard = list[str]
Steps = Iterator[None]


def bracket(agent: Agent, heard: Heard, name: str) -> None:
    """Note in *heard* what goes in and out of a generator called *name*."""

    @agent.around
    def noting(ctx: Any) -> Any:
        heard.append(f"{name} in")
        try:
            value = yield
        except BaseException as error:
            heard.append(f"{name} {type(error).__name__}")
            raise
        heard.append(f"{name} {value}")


def ended(box: Postbox, message_id: str) -> str:
    """Return the state of a received message."""
    [(state,)] = box.query("SELECT state FROM onceward_inbox WHERE id = ?", (message_id,))
    return str(state)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_first_declared_is_outermost(world: World, kind: str) -> None:
    """Around sync and async handlers alike, also those that were declared before."""
    bob, heard = Agent("bob"), Heard()
    if kind == "sync":

        @bob.on("job")
        def work(body: int) -> None:
            heard.append("work")
    else:

        @bob.on("job")
        async def work_async(body: int) -> None:
            heard.append("work")

    bracket(bob, heard, "a")
    bracket(bob, heard, "b")
    world.open(bob).send("bob", 1, type="job")
    world.settle()

    assert ["a in", "b in", "work", "b None", "a None"] == heard


def test_what_it_sets_is_there_for_an_async_handler(world: World) -> None:
    """A context variable and the transaction are those of the call."""
    bob, heard, user = Agent("bob"), Heard(), ContextVar("user", default="none")

    @bob.around
    def login(ctx: Context) -> Steps:
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS calls (user TEXT)")
        known = user.set(str(ctx.message.body))
        yield
        user.reset(known)

    @bob.on("job")
    async def work(body: str, ctx: AsyncContext) -> None:
        heard.append(user.get())
        await ctx.tx.execute("INSERT INTO calls VALUES (?)", (user.get(),))

    box = world.open(bob)
    box.send("bob", "ada", type="job")
    world.settle()

    assert (["ada"], [("ada",)]) == (heard, box.query("SELECT user FROM calls"))


@pytest.mark.parametrize(
    ("raised", "state"), [(Reject("no"), "dead"), (Drop(), "dropped"), (Retry(after=5), "pending")]
)
@pytest.mark.parametrize("when", ["before", "after", "instead"])
def test_what_it_raises_counts_as_the_handler_s(
    world: World, raised: Exception, state: str, when: str
) -> None:
    """Before the yield it is a veto; afterwards it undoes what the handler did."""
    bob, ran = Agent("bob"), list[int]()

    @bob.around
    def deciding(ctx: Context) -> Steps:
        if when == "before":
            raise raised
        try:
            yield
        except ValueError:
            raise raised from None
        raise raised

    @bob.on("job")
    def work(body: int, ctx: Context) -> None:
        ran.append(body)
        ctx.send("bob", 2, type="told")
        if when == "instead":
            raise ValueError

    box = world.open(bob)
    message = box.send("bob", 1, type="job")
    box.run_until_idle()

    assert [] == box.query("SELECT 1 FROM onceward_outbox WHERE type = 'told'")
    assert (when != "before") == bool(ran)
    if state == "dead":
        assert ["rejected"] == [each.reason for each in box.dead_letters.list()]
    else:
        assert state == ended(box, message)


def test_it_changes_the_answer(world: World) -> None:
    """A returned value is the answer, also in place of a failure, or of the call."""
    bob, ran = Agent("bob"), list[int]()

    @bob.around
    def doubling(ctx: Context) -> Any:
        if ctx.message.body == 0:
            return {"n": "none"}
        try:
            answer = yield
        except ValueError:
            return {"n": "failed"}
        return None if ctx.message.body == 1 else {"n": 2 * answer["n"]}

    @bob.on("job")
    def work(body: int) -> dict[str, int]:
        ran.append(body)
        if body == 9:
            raise ValueError
        return {"n": body}

    box = world.open(bob)
    tickets = [box.request("bob", n, type="job") for n in (0, 1, 2, 9)]
    world.settle()
    answers = [box.result(ticket, reply=dict) for ticket in tickets]

    assert [1, 2, 9] == ran
    assert ["none", 1, 4, "failed"] == [answer["n"] for answer in answers]


def test_batches_and_runs_are_surrounded(world: World) -> None:
    """With their own contexts."""
    bob, heard = Agent("bob"), Heard()

    @bob.around
    def noting(ctx: Any) -> Steps:
        heard.append(type(ctx).__name__)
        yield
        heard.append("end")

    @bob.on("job", batch=2)
    def work(bodies: list[int], ctx: BatchContext) -> None:
        heard.append(f"batch {bodies}")

    @bob.runs("chat")
    def chat(run: Any) -> None:
        heard.append("run")

    @bob.runs("talk")
    async def talk(run: Any) -> None:
        heard.append("async run")

    box = world.open(bob)
    box.send_many([("bob", 1), ("bob", 2)], type="job")
    world.settle()
    for session in ("chat", "talk"):
        box.session(session).send("bob", 1)
        world.settle()

    assert ["BatchContext", "batch [1, 2]", "end"] == heard[:3]
    assert ["Run", "run", "end", "Run", "async run", "end"] == heard[3:]


def test_an_included_agent_keeps_its_own_inside(world: World) -> None:
    """The outer agent's are around all handlers, the included one's around its own."""
    bob, module, heard = Agent("bob"), Agent("module"), Heard()
    bracket(module, heard, "module")

    @module.on("inner")
    def inner(body: int) -> None:
        heard.append("inner")

    @bob.on("outer")
    def outer(body: int) -> None:
        heard.append("outer")

    bob.include(module)
    bracket(bob, heard, "bob")
    box = world.open(bob)
    for kind in ("inner", "outer"):
        box.send("bob", 1, type=kind)
        world.settle()

    assert ["bob in", "module in", "inner", "module None", "bob None"] == heard[:5]
    assert ["bob in", "outer", "bob None"] == heard[5:]


def test_a_handler_that_waits_for_a_reply_goes_on_waiting(world: World) -> None:
    """Catching all at the yield does not end it: the call is made again with the reply."""
    bob, heard = Agent("bob"), Heard()

    @bob.around
    def careless(ctx: Context) -> Steps:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - what a user should not write
            heard.append(type(error).__name__)

    @bob.on("job")
    def work(body: int, ctx: Context) -> None:
        heard.append(ctx.ask("carol", body, reply=str, type="question"))

    carol = Agent("carol")

    @carol.on("question")
    def answer(body: int) -> str:
        return "yes"

    world.open(carol)
    world.open(bob).send("bob", 1, type="job")
    world.settle()

    assert "yes" == heard[-1]
    assert 2 == len(heard)


@pytest.mark.parametrize("count", [2, 3])
def test_a_generator_that_yields_again_fails_the_message(world: World, count: int) -> None:
    """The handler's writes are undone with it."""
    bob = Agent("bob")

    @bob.around
    def twice(ctx: Context) -> Steps:
        for _ in range(count):
            yield

    bob.on("job", attempts=1)(lambda _: None)
    box = world.open(bob)
    box.send("bob", 1, type="job")
    box.run_until_idle()

    [letter] = box.dead_letters.list()
    assert "yields once" in str(letter.last_error)


def test_what_is_no_generator_function_is_refused() -> None:
    """An ``async def`` too: the generator runs on the worker's thread around both kinds."""
    agent = Agent("bob")

    async def steps(ctx: Any) -> Any:
        yield

    for wrong in (lambda _: None, steps, 7):
        with pytest.raises(InvalidArgument, match="generator function"):
            agent.around(wrong)  # type: ignore[type-var]
