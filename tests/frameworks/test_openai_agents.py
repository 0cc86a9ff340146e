"""Agents of the OpenAI Agents SDK are durable in handlers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="needs onceward[frameworks-test]")

import agents as sdk
from agents.memory import SessionSettings
from agents.testing import ScriptedModel, assistant_message, function_call

from onceward import (
    Agent,
    AsyncContext,
    AsyncPostbox,
    AsyncRun,
    Context,
    Msg,
    Postbox,
    Retry,
    errors,
    step,
)
from onceward.integrations.openai_agents import OncewardRunner, OncewardSession
from onceward.testing import Controls, ManualClock

ITEMS = "SELECT session_id, coalesce(role, type) FROM onceward_agent_items ORDER BY seq"
sdk.set_tracing_disabled(disabled=True)


class Question(Msg, type="question"):
    """A message for an agent of the SDK."""

    text: str


class Approved(Msg, type="approved"):
    """A person's answer."""

    by: str


class World:
    """An agent of ours whose handler runs one of theirs, and what was called."""

    def __init__(self, folder: Path) -> None:
        self.path, self.clock = folder / "desk.db", ManualClock()
        self.agent = Agent("desk")
        self.calls = list[str]()
        self.fails = dict[str, int]()

    def pass_by(self, name: str) -> None:
        """Note a call; fail as often as it was told."""
        self.calls.append(name)
        if self.fails.get(name, 0):
            self.fails[name] -= 1
            raise OSError("the network is down")

    def model(self, *answers: Any) -> sdk.Model:
        """Return a model that gives each answer for the number of its request."""
        return NotedModel(self, answers)

    def tool(self, name: str, **options: Any) -> sdk.FunctionTool:
        """Return a tool of one argument, which says it with its key."""

        async def use(argument: str) -> str:
            self.pass_by(f"{name} {argument}")
            return f"{name} {argument} by {len(step.key)}"

        return sdk.function_tool(use, name_override=name, failure_error_function=None, **options)

    async def handle(self, *bodies: object, rounds: int = 4) -> list[Any]:
        """Send messages, one after the other is handled; return the dead letters."""
        async with self.open() as box:
            for body in bodies:
                await box.session("s").send("desk", body)
                for _ in range(rounds):
                    await box.run_until_idle()
                    self.clock.advance(60)
            return await box.query("SELECT reason FROM onceward_dead_letters")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncPostbox]:
        """Open the agent's file, without threads."""
        async with AsyncPostbox(
            self.path,
            agent=self.agent,
            start=False,
            delivery_retry="±0%",
            handler_retry="±0%",
            testing=Controls(clock=self.clock),
        ) as box:
            yield box

    def query(self, sql: str) -> list[Any]:
        """Return rows of the file."""
        with Postbox(self.path, agent="desk", start=False) as box:
            return box.query(sql)


class NotedModel(sdk.Model):
    """A model that says one of its answers, by how many calls of tools it has seen."""

    def __init__(self, world: World, answers: tuple[Any, ...]) -> None:
        self._world, self._answers = world, answers

    def _script(self, args: tuple[Any, ...], options: dict[str, Any]) -> ScriptedModel:
        given = options["input"] if "input" in options else args[1]
        mine = given if isinstance(given, list) else []
        done = sum(each.get("type") == "function_call_output" for each in mine)
        self._world.pass_by(f"model {done}")
        answer = self._answers[min(done, len(self._answers) - 1)]
        return ScriptedModel([answer if isinstance(answer, list) else [answer]])

    async def get_response(self, *args: Any, **options: Any) -> Any:
        """Answer."""
        return await self._script(args, options).get_response(*args, **options)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Answer in pieces."""
        async for event in self._script(args, options).stream_response(*args, **options):
            yield event


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An agent."""
    return World(tmp_path)


def use(name: str, argument: str) -> Any:
    """Return a model's call of a tool."""
    return function_call(name, {"argument": argument}, call_id=f"call-{name}-{argument}")


async def same_operations(theirs: sdk.Session, ours: sdk.Session, rng: random.Random) -> None:
    """Do the same to both, and compare what they return."""
    for number in range(40):
        verbs = ["add", "add", "get", "get", "pop", "get" if number % 7 else "clear"]
        verb, asked = rng.choice(verbs), rng.choice([None, 0, 1, 2, 100, -1])
        items: Any = [
            {"role": "user", "content": f"{number}.{n} é"} for n in range(rng.randrange(3))
        ]
        both = list[Any]()
        for session in (theirs, ours):
            calls: dict[str, Callable[[], Any]] = {
                "add": partial(session.add_items, items),
                "get": partial(session.get_items, asked),
                "pop": session.pop_item,
                "clear": session.clear_session,
            }
            both.append(await calls[verb]())
        assert both[0] == both[1], (number, verb, asked)
    assert await theirs.get_items(1000) == await ours.get_items(1000)
    assert ours.session_id == theirs.session_id
    assert isinstance(ours, sdk.Session)


# -- the session --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("kind", ["box", "async box", "handler"])
def test_a_session_does_what_the_sqlite_session_does(
    tmp_path: Path, seed: int, limit: int | None, kind: str
) -> None:
    """The same operations have the same results, side by side."""
    rng = random.Random(seed)
    settings = SessionSettings(limit=limit)
    ours = partial(OncewardSession, session_settings=settings)
    theirs = sdk.SQLiteSession("s", tmp_path / "theirs.db", session_settings=settings)

    async def main() -> None:
        path, agent = tmp_path / "ours.db", Agent("a")

        @agent.on(Question)
        async def handle(_: Question, ctx: AsyncContext) -> None:
            await same_operations(theirs, ours(ctx), rng)
            seen.append(ctx.session)

        seen = list[str]()
        async with AsyncPostbox(path, agent=agent, start=False) as box:
            if kind == "handler":
                await box.session("s").send("a", Question(text="go"))
                await box.run_until_idle()
                assert ["s"] == seen
            elif kind == "async box":
                await same_operations(theirs, ours(box, "s"), rng)
            else:
                with Postbox(tmp_path / "b.db", agent="b", start=False) as plain:
                    await same_operations(theirs, ours(plain, "s"), rng)
                return
            # what a handler has left is in the file
            left = OncewardSession(box, "s")
            assert await theirs.get_items(1000) == await left.get_items()

    asyncio.run(main())
    theirs.close()


def test_a_conversation_is_committed_with_the_processed_mark(world: World) -> None:
    """A call that fails leaves no item, and the next message of the session sees all of them."""
    bot = sdk.Agent("bot", model=world.model(assistant_message("hello")))
    world.fails = {"end": 2}
    seen = list[int]()

    @world.agent.on(Question)
    async def handle(question: Question, ctx: AsyncContext) -> None:
        session = OncewardSession(ctx)
        await OncewardRunner.run(bot, question.text, session=session)
        seen.append(len(await session.get_items()))
        world.pass_by("end")

    dead = asyncio.run(world.handle(Question(text="one"), Question(text="two")))

    assert [] == dead
    assert [2, 2, 2, 4] == seen
    assert 2 == world.calls.count("model 0")
    assert [("s", "user"), ("s", "assistant")] * 2 == world.query(ITEMS)


# -- the runner ---------------------------------------------------------------------------------


def test_requests_and_calls_of_tools_are_made_once(world: World) -> None:
    """Wherever the handler fails, what was done before it is not done again."""
    bot = sdk.Agent(
        "bot",
        model=world.model(
            use("search", "x"),
            [use("book", "y"), use("book", "z")],
            None,
            assistant_message("done"),
        ),
        tools=[world.tool("search"), world.tool("book")],
    )
    answers = list[Any]()
    world.fails = {"model 0": 1, "search x": 1, "model 1": 1, "book z": 1, "model 3": 1, "end": 1}

    @world.agent.on(Question)
    async def handle(question: Question) -> None:
        found = await OncewardRunner.run(bot, question.text)
        world.pass_by("end")
        answers.append(found.final_output)

    dead = asyncio.run(world.handle(Question(text="go"), rounds=8))

    assert ([], ["done"]) == (dead, answers)
    tries = {name: world.calls.count(name) for name in world.calls}
    assert tries == {
        "model 0": 2, "search x": 2, "model 1": 2, "book y": 1, "book z": 2, "model 3": 2, "end": 2
    }  # fmt: skip
    names = [name for (name,) in world.query("SELECT name FROM onceward_steps ORDER BY seq")]
    assert {
        "bot 1", "tool search call-search-x", "bot 2", "tool book call-book-y",
        "tool book call-book-z", "bot 3",
    } == set(names)  # fmt: skip


def test_an_agent_that_is_handed_over_to_is_durable_too(world: World) -> None:
    """Also where both hand over to each other."""
    first = sdk.Agent(
        "first", model=world.model(function_call("transfer_to_second", {}, call_id="h"))
    )
    second = sdk.Agent(
        "second",
        model=world.model(None, use("pay", "7"), assistant_message("paid")),
        tools=[world.tool("pay")],
        handoffs=[sdk.handoff(first)],
    )
    first.handoffs = [second]
    answers = list[Any]()
    world.fails = {"end": 2}

    @world.agent.on(Question)
    async def handle(question: Question) -> None:
        found = await OncewardRunner.run(first, question.text)
        world.pass_by("end")
        answers.append((found.last_agent.name, found.final_output))

    dead = asyncio.run(world.handle(Question(text="go")))

    assert ([], [("second", "paid")]) == (dead, answers)
    assert ["model 0", "model 1", "pay 7", "model 2"] == [
        each for each in world.calls if each != "end"
    ]
    assert first.model.__class__ is NotedModel
    assert [second] == first.handoffs


def test_a_model_of_a_provider_is_durable(world: World) -> None:
    """Models that are named, and those of a run's own config."""
    model = world.model(assistant_message("hello"))

    class Provider(sdk.ModelProvider):
        """Gives one model for every name."""

        def get_model(self, model_name: str | None) -> sdk.Model:
            """Return it."""
            world.calls.append(f"model called {model_name}")
            return model

    bot = sdk.Agent("bot", model="small")
    world.fails = {"end": 1}

    @world.agent.on(Question)
    async def handle(question: Question) -> None:
        provided = sdk.RunConfig(model_provider=Provider())
        await OncewardRunner.run(bot, question.text, run_config=provided)
        await OncewardRunner.run(bot, question.text, run_config=sdk.RunConfig(model=model))
        world.pass_by("end")

    dead = asyncio.run(world.handle(Question(text="go")))

    assert [] == dead
    assert 2 == world.calls.count("model 0")
    steps = "SELECT name FROM onceward_steps ORDER BY seq"
    assert [("model 1",), ("model 1 of run 2",)] == world.query(steps)


def test_a_streamed_run_puts_its_text_out(world: World) -> None:
    """Its events are those of the SDK, and box.stream follows the text."""
    bot = sdk.Agent("bot", model=world.model(assistant_message("once upon a time")))
    seen = list[Any]()
    world.fails = {"end": 1}

    @world.agent.on(Question)
    async def handle(question: Question) -> None:
        found = OncewardRunner.run_streamed(bot, question.text)
        text = [
            event.data.delta
            async for event in found.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        world.pass_by("end")
        seen.append(("".join(text), found.final_output))

    dead = asyncio.run(world.handle(Question(text="go")))

    assert ([], [("once upon a time",) * 2]) == (dead, seen)
    assert 1 == world.calls.count("model 0")
    chunks = world.query("SELECT name, body FROM onceward_output_chunks ORDER BY position")
    assert {"bot 1"} == {name for name, _ in chunks}
    assert "once upon a time" == "".join(body for _, body in chunks)


def test_a_tool_that_needs_approval_waits_for_a_message(world: World) -> None:
    """The run is interrupted, the handler waits, and the approved call is made once."""
    bot = sdk.Agent(
        "bot",
        model=world.model(use("pay", "9"), assistant_message("paid")),
        tools=[world.tool("pay", needs_approval=True)],
    )
    answers = list[Any]()
    world.agent.waits(Approved)
    world.fails = {"end": 1}

    @world.agent.on(Question)
    async def handle(question: Question, ctx: AsyncContext) -> None:
        found = await OncewardRunner.run(bot, question.text)
        while found.interruptions:
            approved = await ctx.wait(Approved)
            state = found.to_state()
            for each in found.interruptions:
                state.approve(each)
            found = await OncewardRunner.run(bot, state)
            answers.append(approved.by)
        world.pass_by("end")
        answers.append(found.final_output)

    dead = asyncio.run(world.handle(Question(text="go"), Approved(by="ada")))

    assert [] == dead
    assert ["ada", "ada", "paid"] == answers
    assert ["model 0", "pay 9", "model 1"] == [each for each in world.calls if each != "end"]


def test_a_runner_outside_of_handlers_is_the_plain_one(world: World) -> None:
    """The same agents can be tried without a postbox."""
    bot = sdk.Agent(
        "bot",
        model=world.model(use("pay", "9"), assistant_message("paid")),
        tools=[sdk.function_tool(lambda argument: argument, name_override="pay")],
    )

    found = asyncio.run(OncewardRunner.run(bot, "go"))

    assert "paid" == found.final_output


def test_a_plain_handler_is_told_to_be_a_coroutine(world: World) -> None:
    """The runner of a plain function could make no steps."""
    bot = sdk.Agent("bot", model=world.model(assistant_message("x")))
    said = list[str]()

    @world.agent.on(Question)
    def handle(question: Question, ctx: Context) -> None:
        with pytest.raises(errors.InvalidArgument) as refused:
            asyncio.run(OncewardRunner.run(bot, question.text))
        said.append(str(refused.value))

    assert [] == asyncio.run(world.handle(Question(text="go")))
    assert "async def" in said[0]


@dataclass
class Airline:
    """What the tools, hooks and handoffs of a run share."""

    flight: str = ""
    seat: str | None = None
    log: list[str] = field(default_factory=list)
    client: object = None


class Hooks(sdk.RunHooks[Airline]):
    """Hooks that change the context, differently at each call."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt

    async def on_tool_start(self, context: Any, _: Any, tool: Any) -> None:
        """Note a call of a tool."""
        context.context.log.append(f"{tool.name} of call {self._attempt}")


def test_a_context_is_what_it_was_when_a_step_was_stored(world: World) -> None:
    """What tools, hooks and handoffs have changed comes back, into the handler's own object."""

    @sdk.function_tool(failure_error_function=None)
    async def book(wrapper: sdk.RunContextWrapper[Airline], seat: str) -> str:
        wrapper.context.seat = seat
        wrapper.context.log.append("booked")
        return f"booked {seat} on {wrapper.context.flight}"

    seats = sdk.Agent[Airline](
        "seats",
        model=world.model(
            None,
            function_call("book", {"seat": "4A"}, call_id="call-book"),
            assistant_message("your seat is 4A"),
        ),
        tools=[book],
    )
    seen = list[Any]()

    @world.agent.on(Question)
    async def handle(question: Question, ctx: AsyncContext) -> None:
        attempt = ctx.message.attempt

        def choose(wrapper: sdk.RunContextWrapper[Airline]) -> None:
            wrapper.context.flight = f"flight of call {attempt}"

        triage = sdk.Agent[Airline](
            "triage",
            model=world.model(function_call("transfer_to_seats", {}, call_id="h")),
            handoffs=[sdk.handoff(seats, on_handoff=choose)],
        )
        context = Airline()
        log = context.log
        await OncewardRunner.run(triage, question.text, context=context, hooks=Hooks(attempt))
        seen.append((context, log is context.log))
        if attempt < 3:
            raise Retry(after=0)

    dead = asyncio.run(world.handle(Question(text="go")))

    assert [] == dead
    assert [(Airline("flight of call 1", "4A", ["book of call 1", "booked"]), True)] * 3 == seen


def test_a_context_that_cannot_be_given_back_ends_the_message(world: World) -> None:
    """Its reason names the field; the tool is not called again."""

    @sdk.function_tool(failure_error_function=None)
    async def connect(wrapper: sdk.RunContextWrapper[Airline]) -> str:
        world.calls.append("connect")
        wrapper.context.client = object()
        return "connected"

    bot = sdk.Agent[Airline](
        "bot",
        model=world.model(function_call("connect", {}, call_id="c"), assistant_message("done")),
        tools=[connect],
    )

    @world.agent.on(Question)
    async def handle(question: Question) -> None:
        await OncewardRunner.run(bot, question.text, context=Airline())

    dead = asyncio.run(world.handle(Question(text="go")))

    assert [("rejected",)] == dead
    assert 1 == world.calls.count("connect")
    [(said,)] = world.query("SELECT last_error FROM onceward_dead_letters")
    assert "field 'client'" in said


def test_a_run_of_a_session_has_the_same(world: World) -> None:
    """The messages of a session are one conversation, and its end commits it."""
    bot = sdk.Agent(
        "bot",
        model=world.model(use("pay", "9"), assistant_message("paid")),
        tools=[world.tool("pay")],
    )
    world.fails = {"end": 1}

    @world.agent.runs("*")
    async def serve(run: AsyncRun) -> None:
        given: Any = [{"role": "user", "content": each.body["text"]} for each in run.messages]
        await OncewardRunner.run(bot, given, session=OncewardSession(run))
        world.pass_by("end")

    dead = asyncio.run(world.handle({"text": "go"}))

    assert [] == dead
    assert ["model 0", "pay 9", "model 1"] == [each for each in world.calls if each != "end"]
    kinds = [("s", "user"), ("s", "function_call"), ("s", "function_call_output")]
    assert [*kinds, ("s", "assistant")] == world.query(ITEMS)
