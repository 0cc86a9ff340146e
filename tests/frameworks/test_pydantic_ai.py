"""Agents of pydantic-ai in handlers and runs: each of their calls is a step, made once."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncContext, AsyncPostbox, AsyncRun, Context, Retry, step
from onceward.errors import InvalidArgument, RequestCancelled
from onceward.testing import Harness
from onceward.types import Chunk, Ended

pytest.importorskip("pydantic_ai", reason="pip install 'onceward[pydantic-ai]' brings it")

from pydantic_ai import Agent as Brain
from pydantic_ai import ModelRetry, RunContext, ToolDenied
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.toolsets import FunctionToolset

from onceward.integrations.pydantic_ai import OncewardDurability, Resolved, resolve, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable
    from pathlib import Path

NAMES = "SELECT name FROM onceward_steps ORDER BY seq"
TOOL = "helper__function_toolset__<agent>.call_tool:"


def call(tool: str, call_id: str, **args: Any) -> Any:
    """Return the part of an answer that calls a tool."""
    return ToolCallPart(tool, args, tool_call_id=call_id)


def handled_by(brain: Any, outputs: list[Any], fails: int = 0) -> Agent:
    """Return an agent whose handler runs *brain*, and fails after it at first."""
    agent = Agent("bob")

    @agent.on("json")
    async def work(body: dict[str, str], ctx: AsyncContext) -> None:
        outputs.append((await brain.run(body["prompt"])).output)
        if ctx.message.attempt <= fails:
            raise Retry(after=0)

    return agent


def played(agent: Agent, prompt: str = "go") -> list[str]:
    """Send one prompt, handle it to its end, and return the names of the steps."""
    with Harness(agent) as harness:
        harness.send({"prompt": prompt})
        for _ in range(4):  # what fails is tried again
            harness.deliver()
            harness.advance("5m")
        assert [("processed",)] == harness.sql("SELECT state FROM onceward_inbox")
        return [name for (name,) in harness.sql(NAMES)]


@pytest.fixture
def payer(model: Callable[..., Any], calls: list[str]) -> Any:
    """Return an agent that pays twice at once, looks once, and answers."""
    brain: Any = Brain(
        model(
            [call("pay", "c1", cents=5), call("pay", "c2", cents=6)],
            [call("look", "c3", where="there")],
            [TextPart("done")],
        ),
        name="helper",
        capabilities=[OncewardDurability()],
    )

    @brain.tool_plain
    def pay(cents: int) -> str:
        calls.append(f"pay {cents}")
        return f"paid {cents}"

    @brain.tool
    async def look(ctx: RunContext[Any], where: str) -> str:
        calls.append(f"look {where} {ctx.tool_call_id}")
        return "seen"

    return brain


ONCE = ["look there c3", "model", "model", "model", "pay 5", "pay 6"]


def test_each_call_of_an_agent_is_made_once(payer: Any, calls: list[str]) -> None:
    """A handler that is called again gets the stored answers and results; names never change."""
    outputs: list[Any] = []

    names = played(handled_by(payer, outputs, fails=2))

    assert ["done"] * 3 == outputs
    assert ONCE == sorted(calls)
    assert [
        "helper__model.request",
        f"{TOOL}pay[c1]",
        f"{TOOL}pay[c2]",
        "helper__model.request#2",
        f"{TOOL}look[c3]",
        "helper__model.request#3",
    ] == [names[0], *sorted(names[1:3]), *names[3:]]


@pytest.mark.parametrize("point", ["before-step", "after-step", "stored-step"])
@pytest.mark.parametrize(
    "at",
    [
        "helper__model.request",
        f"{TOOL}pay[c1]",
        f"{TOOL}pay[c2]",
        "helper__model.request#2",
        f"{TOOL}look[c3]",
        "helper__model.request#3",
    ],
)
def test_a_killed_agent_goes_on_at_the_call_that_it_died_at(
    payer: Any, calls: list[str], at: str, point: Any
) -> None:
    """Only a call whose result was not stored yet is made once more."""
    outputs: list[Any] = []
    with Harness(handled_by(payer, outputs), lease=5) as harness:
        harness.send({"prompt": "go"})
        with harness.crash_at(point, step=at):
            harness.deliver()
        harness.advance(6)
        harness.deliver()

        again = Counter(calls) - Counter(ONCE)
        assert ["done"] == outputs
        assert again.total() <= 2  # a parallel call may have been cut off, too
        assert (point == "after-step") <= (again.total() >= 1)
        assert [] == harness.check()


@dataclass
class Basket:
    """The dependencies of a run."""

    items: list[str] = field(default_factory=list)
    client: object = None


def shopper(model: Callable[..., Any], calls: list[str], *, connects: bool = False) -> Any:
    """Return an agent that puts two things at once into its basket, then one more."""
    brain: Any = Brain(
        model(
            [call("put", "c1", what="apple"), call("put", "c2", what="pear")],
            [call("connect" if connects else "put", "c3", what="fig")],
            [TextPart("done")],
        ),
        name="shopper",
        deps_type=Basket,
        capabilities=[OncewardDurability()],
    )

    @brain.tool
    async def put(ctx: RunContext[Basket], what: str) -> str:
        calls.append(what)
        ctx.deps.items.append(what)
        return f"{len(ctx.deps.items)} things"

    @brain.tool
    async def connect(ctx: RunContext[Basket], what: str) -> str:
        calls.append(what)
        ctx.deps.client = object()
        return "connected"

    return brain


def test_dependencies_are_what_they_were_when_a_step_was_stored(
    model: Callable[..., Any], calls: list[str]
) -> None:
    """In the handler's own object, also for tools that were called at once."""
    brain, seen, agent = shopper(model, calls), list[Any](), Agent("bob")

    @agent.on("json")
    async def work(body: object, ctx: AsyncContext) -> None:
        items = list[str]()
        await brain.run("go", deps=Basket(items))
        seen.append(sorted(items))
        if ctx.message.attempt < 3:
            raise Retry(after=0)

    played(agent)

    assert [["apple", "fig", "pear"]] * 3 == seen
    assert 3 == len([each for each in calls if each != "model"])


@pytest.mark.parametrize("point", ["before-step", "stored-step"])
@pytest.mark.parametrize("at", ["put[c1]", "put[c2]", "put[c3]"])
def test_a_killed_agent_goes_on_with_the_dependencies_of_its_steps(
    model: Callable[..., Any], calls: list[str], at: str, point: Any
) -> None:
    """Nothing that a stored tool has added is missing."""
    brain, seen, agent = shopper(model, calls), list[Any](), Agent("bob")

    @agent.on("json")
    async def work(body: object, ctx: AsyncContext) -> None:
        basket = Basket()
        await brain.run("go", deps=basket)
        seen.append(set(basket.items))

    with Harness(agent, lease=5) as harness:
        harness.send({})
        with harness.crash_at(point, step=f"shopper__function_toolset__<agent>.call_tool:{at}"):
            harness.deliver()
        harness.advance(6)
        harness.deliver()

    assert [{"apple", "pear", "fig"}] == seen


def test_dependencies_that_cannot_be_given_back_end_the_message(
    model: Callable[..., Any], calls: list[str]
) -> None:
    """Its reason names the field; the tool is not called again."""
    brain, agent = shopper(model, calls, connects=True), Agent("bob")

    @agent.on("json")
    async def work(body: object, ctx: AsyncContext) -> None:
        await brain.run("go", deps=Basket())

    with Harness(agent) as harness:
        harness.send({})
        for _ in range(3):
            harness.deliver()
            harness.advance("5m")

        [(reason, said)] = harness.sql("SELECT reason, last_error FROM onceward_dead_letters")
        assert "rejected" == reason
        assert "field 'client'" in said
        assert 1 == calls.count("fig")


def test_outside_of_a_handler_an_agent_is_plain(payer: Any, calls: list[str]) -> None:
    """Nothing is stored, and each run makes its calls."""
    for _ in range(2):
        assert "done" == asyncio.run(payer.run("go")).output

    assert sorted(ONCE * 2) == sorted(calls)


def test_a_model_that_is_named_by_a_string_has_plain_names() -> None:
    """So another default model does not rename the steps; one of a run stands in their names."""
    brain = Brain("test", name="helper", capabilities=[OncewardDurability()])
    agent = Agent("bob")

    @agent.on("json")
    async def work(body: dict[str, str], ctx: AsyncContext) -> None:
        await brain.run("go")
        await brain.run("go", model="test")

    assert ["helper__model.request", "helper__model.request@2"] == played(agent)


def test_a_sync_handler_is_refused(payer: Any, calls: list[str]) -> None:
    """Its steps cannot be awaited, and calls that are silently no steps would be made again."""
    agent, told = Agent("bob"), list[str]()

    @agent.on("json")
    def work(body: dict[str, str], ctx: Context) -> None:
        with pytest.raises(UserError, match="make the handler async def") as error:
            asyncio.run(payer.run(body["prompt"]))  # run_sync would leave its loop open
        told.append(str(error.value))

    played(agent)

    assert 1 == len(told)
    assert [] == calls


def test_a_tool_has_an_idempotency_key(model: Callable[..., Any]) -> None:
    """``step.key`` in a tool is the same at each call for the message."""
    keys: list[str] = []
    brain: Any = Brain(
        model([call("pay", "c1", cents=5)], [TextPart("done")]),
        name="helper",
        capabilities=[OncewardDurability()],
    )

    @brain.tool_plain
    def pay(cents: int) -> str:
        keys.append(step.key)
        if len(keys) < 3:
            raise OSError("the bank is away")
        return "paid"

    played(handled_by(brain, []))

    assert 3 == len(keys)
    assert 1 == len(set(keys))


def test_options_are_those_of_steps(model: Callable[..., Any], calls: list[str]) -> None:
    """For all tools, and for one by its metadata; the attempts are seen in the view."""
    brain: Any = Brain(
        model([call("pay", "c1", cents=5), call("look", "c2")], [TextPart("done")]),
        name="helper",
        capabilities=[OncewardDurability(tool_options={"attempts": 2})],
    )

    def flaky(name: str, failures: int) -> str:
        calls.append(name)
        if calls.count(name) <= failures:
            raise OSError("away")
        return "done"

    @brain.tool_plain
    def pay(cents: int) -> str:
        return flaky("pay", 1)

    @brain.tool_plain(metadata={"onceward": {"attempts": 4}})
    def look() -> str:
        return flaky("look", 3)

    outputs: list[Any] = []
    with Harness(handled_by(brain, outputs)) as harness:
        harness.send({"prompt": "go"})
        for _ in range(8):
            harness.deliver()
            harness.advance("5m")

        attempts = dict(harness.sql("SELECT name, attempts FROM onceward_steps"))
        assert (2, 4) == (attempts[f"{TOOL}pay[c1]"], attempts[f"{TOOL}look[c2]"])
        assert ["done"] == outputs
        assert [(1,)] == harness.sql("SELECT attempts FROM onceward_inbox")


def test_what_a_model_is_told_by_an_exception_is_a_result(
    model: Callable[..., Any], calls: list[str]
) -> None:
    """A tool that asks the model to try again has ended its step."""
    brain: Any = Brain(
        model([call("pay", "c1", cents=5)], [call("pay", "c2", cents=4)], [TextPart("done")]),
        name="helper",
        capabilities=[OncewardDurability()],
    )

    @brain.tool_plain
    def pay(cents: int) -> str:
        calls.append(f"pay {cents}")
        if cents > 4:
            raise ModelRetry("too much")
        return "paid"

    played(handled_by(brain, [], fails=1))

    assert ["model", "pay 5", "model", "pay 4", "model"] == calls


def test_a_result_that_cannot_be_stored_ends_the_message(
    model: Callable[..., Any], calls: list[str]
) -> None:
    """To try again would take the effect again each time, and fail."""
    brain: Any = Brain(
        model([call("pay", "c1", cents=5)], [TextPart("done")]),
        name="helper",
        capabilities=[OncewardDurability()],
    )

    @brain.tool_plain
    def pay(cents: int) -> Any:
        calls.append("pay")
        return object()

    with Harness(handled_by(brain, [])) as harness:
        harness.send({"prompt": "go"})
        harness.deliver()
        [letter] = harness.postbox.dead_letters.list()

        assert ["model", "pay"] == calls
        assert "cannot be written as JSON" in str(letter.last_error)


# -- several agents -----------------------------------------------------------------------------


def test_two_runs_of_an_agent_at_once_have_steps_of_their_own(
    model: Callable[..., Any], calls: list[str]
) -> None:
    """The second run has its number in the names of its steps, by the order of the calls."""
    brain, other = (
        Brain(model([TextPart("a")]), name=name, capabilities=[OncewardDurability()])
        for name in ("helper", "other")
    )
    agent = Agent("bob")

    @agent.on("json")
    async def work(body: dict[str, str], ctx: AsyncContext) -> None:
        await other.run("none")
        await asyncio.gather(brain.run("one"), brain.run("two"))
        await brain.run("three", run_id="mine")
        if ctx.message.attempt < 2:
            raise Retry(after=0)

    names = played(agent)

    assert 4 == len(calls)
    requests = [f"helper__model.request{each}" for each in ("", "@2", "@3")]
    assert [*requests, "other__model.request"] == sorted(names)


def test_an_agent_that_a_tool_runs_has_steps_of_its_own(
    model: Callable[..., Any], calls: list[str]
) -> None:
    """Where the tool itself is no step; the ids of the tool's calls tell its runs apart."""
    writer: Any = Brain(model([TextPart("text")]), name="w", capabilities=[OncewardDurability()])
    brain: Any = Brain(
        model([call("write", "c1"), call("write", "c2")], [TextPart("done")]),
        name="helper",
        capabilities=[OncewardDurability()],
    )

    @brain.tool_plain(metadata={"onceward": False})
    async def write() -> str:
        calls.append("write")
        return str((await writer.run("a page")).output)

    names = played(handled_by(brain, [], fails=1))

    assert 4 == calls.count("model")
    assert 4 == calls.count("write")  # it is called again, and finds the steps of its agent
    assert ["w__model.request@c1", "w__model.request@c2"] == sorted(
        name for name in names if name.startswith("w__")
    )


def test_a_conflict_tells_of_another_conversation(payer: Any) -> None:
    """A stored answer to fewer messages than are asked now is not given."""
    agent = Agent("bob")
    history: list[Any] = []

    @agent.on("json")
    async def work(body: dict[str, str], ctx: AsyncContext) -> None:
        await payer.run("go", message_history=history)
        history.append(ModelRequest.user_text_prompt("before"))
        history.append(ModelResponse(parts=[TextPart("yes")]))
        raise Retry(after=0)

    with Harness(agent, handler_attempts=2) as harness:
        harness.send({"prompt": "go"})
        harness.deliver()
        [letter] = harness.postbox.dead_letters.list()

    assert "had other arguments" in str(letter.last_error)


# -- other operations ---------------------------------------------------------------------------


def test_names_of_all_operations_are_pinned(model: Callable[..., Any], calls: list[str]) -> None:
    """Events, validation, dynamic tools, MCP servers and streams: the names are stored."""
    from mcp.server import MCPServer  # noqa: PLC0415 - of this test alone
    from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415 - as above
    from pydantic_ai.toolsets import DynamicToolset  # noqa: PLC0415 - as above

    server = MCPServer("shop")

    @server.tool()
    def price(item: str) -> str:
        calls.append(f"price {item}")
        return "5 cents"

    def fresh(ctx: RunContext[Any]) -> Any:
        return FunctionToolset([weigh])

    def weigh(item: str) -> str:
        calls.append(f"weigh {item}")
        return "2 kg"

    def check(ctx: RunContext[Any], cents: int) -> None:
        calls.append(f"check {cents}")

    async def hear(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        calls.extend(
            [type(event).__name__ async for event in events if not hasattr(event, "delta")]
        )

    brain: Any = Brain(
        model(
            [call("price", "c1", item="tea")],
            [call("weigh", "c2", item="tea")],
            [call("pay", "c3", cents=5)],
            [TextPart("done")],
        ),
        name="helper",
        toolsets=[MCPToolset(server, id="shop"), DynamicToolset(fresh, id="scales")],
        capabilities=[OncewardDurability(event_stream_handler=hear)],
    )

    @brain.tool_plain(args_validator=check)
    def pay(cents: int) -> str:
        calls.append(f"pay {cents}")
        return "paid"

    names = played(handled_by(brain, [], fails=1))

    effects = ["price tea", "weigh tea", "check 5", "pay 5"]
    assert effects == [each for each in calls if each in effects]
    assert 3 == calls.count("FunctionToolCallEvent") == calls.count("FunctionToolResultEvent")
    plain = {name.partition("#")[0] for name in names}
    assert {
        "helper__model.request_stream",
        "helper__event_stream_handler",
        "helper__mcp_server__shop.get_tools",
        "helper__mcp_server__shop.call_tool[c1]",
        "helper__dynamic_toolset__scales.get_tools",
        "helper__dynamic_toolset__scales.call_tool:weigh[c2]",
        "helper__function_toolset__<agent>.validate_args[c3]",
        f"{TOOL}pay[c3]",
    } == plain
    assert len(names) == len(set(names))


def test_a_runs_timeout_counts_from_its_first_call(payer: Any) -> None:
    """When a run with a timeout began is a step."""
    agent = Agent("bob")

    @agent.on("json")
    async def work(body: dict[str, str], ctx: AsyncContext) -> None:
        await payer.run("go", timeout=60)

    assert "helper__run_start_time" == played(agent)[0]


def test_text_is_put_out_while_the_model_speaks(model: Callable[..., Any]) -> None:
    """Readers follow it by ``box.stream``, and get it once, however often the handler is called."""
    words = ("once", "upon", "a", "time")
    brain: Any = Brain(
        model([TextPart(" ".join(words))]),
        name="helper",
        capabilities=[OncewardDurability(stream=text)],
    )
    with Harness(handled_by(brain, [], fails=1)) as harness:
        sent = harness.send({"prompt": "go"})
        harness.deliver()
        [*chunks, ended] = harness.postbox.follow(sent)

        named = "helper__model.request_stream"
        assert [Chunk(n, named, word) for n, word in enumerate(words, 1)] == chunks
        assert Ended(len(words), "processed", None) == ended


# -- people -------------------------------------------------------------------------------------


@pytest.fixture
def asked() -> list[tuple[str, list[str]]]:
    """Return the tokens that were handed out, each with the calls that it is for."""
    return []


@pytest.fixture
def careful(
    model: Callable[..., Any], calls: list[str], asked: list[tuple[str, list[str]]]
) -> Callable[..., Any]:
    """Return what makes an agent whose two payments a person has to approve."""

    def make(**options: Any) -> Any:
        async def ask(_ctx: RunContext[Any], requests: Any, token: str) -> None:
            asked.append((token, [each.tool_call_id for each in requests.approvals]))

        brain: Any = Brain(
            model([call("pay", "c1", cents=5), call("pay", "c2", cents=6)], [TextPart("done")]),
            name="helper",
            capabilities=[OncewardDurability(), RequestInput(ask=ask, **options)],
        )

        @brain.tool_plain(requires_approval=True)
        def pay(cents: int) -> str:
            calls.append(f"pay {cents}")
            return f"paid {cents}"

        return brain

    return make


def waiting(brain: Any, outputs: list[Any]) -> Agent:
    """Return an agent that runs *brain*, and waits for what is resolved."""
    agent = handled_by(brain, outputs)
    agent.waits(Resolved)
    return agent


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("point", [None, "after-step", "stored-step"])
def test_ask_sends_a_message_once(
    model: Callable[..., Any], calls: list[str], point: Any, is_async: bool
) -> None:
    """It is sent after ``ask`` was stored, also if the process is killed between them."""

    def tell(_ctx: Any, requests: Any, token: str) -> None:
        calls.append("ask")
        step.context.send("ada", Resolved(token=token), topic="approve")

    async def ask(ctx: RunContext[Any], requests: Any, token: str) -> None:
        tell(ctx, requests, token)

    brain: Any = Brain(
        model([call("pay", "c1", cents=5)], [TextPart("done")]),
        name="helper",
        capabilities=[OncewardDurability(), RequestInput(ask=ask if is_async else tell)],
    )

    @brain.tool_plain(requires_approval=True)
    def pay(cents: int) -> str:
        return f"paid {cents}"

    outputs: list[Any] = []
    with Harness(waiting(brain, outputs), lease=5) as harness:
        ada = harness.peer("ada")
        harness.send({"prompt": "go"})
        if point is None:
            harness.deliver()
        else:
            name = "helper__external_event.deferred_tool_calls"
            with harness.crash_at(point, step=name):
                harness.deliver()
            harness.advance(6)
            harness.deliver()
        told = ada.receive()
        assert told is not None
        assert ("pydantic-ai.resolved", "approve") == (told.type, told.topic)
        resolve(ada, told.body["token"], {"approvals": {"c1": True}})
        told.ack()
        harness.deliver()

        assert (["done"], None) == (outputs, ada.receive())
        assert (2 if point == "after-step" else 1) == calls.count("ask")


def test_a_person_approves_days_later(
    careful: Callable[..., Any], calls: list[str], asked: list[tuple[str, list[str]]]
) -> None:
    """The call ends until the resolution comes, over a restart; it is asked for once."""
    outputs: list[Any] = []
    with Harness(waiting(careful(), outputs)) as harness:
        harness.send({"prompt": "go"}, session="a/b")
        harness.deliver()
        harness.restart()
        harness.advance("3d")
        harness.deliver()
        [(token, ids)] = asked
        assert (["c1", "c2"], ["model"], []) == (ids, calls, outputs)

        denied = ToolDenied("no way")
        for _ in range(2):  # the person clicks twice
            resolve(
                harness.peer("ada"),
                token,
                {"approvals": {"c1": True, "c2": {"kind": denied.kind, "message": denied.message}}},
            )
        harness.deliver()

        assert ["done"] == outputs
        assert ["model", "pay 5", "model"] == calls
        assert "helper__external_event.deferred_tool_calls" in harness.sql(NAMES)[1]
        assert [] == harness.check()


def test_a_wait_that_is_over_denies_the_calls(
    careful: Callable[..., Any], calls: list[str], asked: list[tuple[str, list[str]]]
) -> None:
    """After its timeout, and where the token is resolved with an error, the model is told."""
    for way in ("late", "error"):
        calls.clear()
        outputs: list[Any] = []
        with Harness(waiting(careful(timeout=timedelta(hours=1)), outputs)) as harness:
            harness.send({"prompt": "go"})
            harness.deliver()
            if way == "late":
                harness.advance("2h")
            else:
                resolve(harness.peer("ada"), asked[-1][0], error="ada is ill")
            harness.deliver()

            assert ["done"] == outputs
            assert ["model", "model"] == calls


def test_a_resolution_of_another_wait_is_passed_over(
    careful: Callable[..., Any], asked: list[tuple[str, list[str]]]
) -> None:
    """One that comes too late for its own wait does not end the next one of the session."""
    outputs: list[Any] = []
    with Harness(waiting(careful(), outputs)) as harness:
        harness.send({"prompt": "go"})
        harness.deliver()
        [(token, _)] = asked
        old = f"old/{token.partition('/')[2]}"
        resolve(harness.peer("ada"), old, {"approvals": {"c1": True, "c2": True}})
        harness.deliver()
        assert [] == outputs

        resolve(harness.peer("ada"), token, {"approvals": {"c1": False, "c2": False}})
        harness.deliver()
        assert ["done"] == outputs


def test_a_text_that_is_no_token_is_refused() -> None:
    """The error says what to pass."""
    with (
        Harness(Agent("bob")) as harness,
        pytest.raises(InvalidArgument, match="handed to ask"),
    ):
        resolve(harness.postbox, "approve")


# -- cancelling, and conversations ----------------------------------------------------------------


class Slow:
    """A model that does not answer until it is let go, and what it was asked."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.asked, self.go_on, self.cancelled = (asyncio.Event() for _ in range(3))

    def brain(self) -> Any:
        """Return an agent on this model."""
        from pydantic_ai.models.function import FunctionModel  # noqa: PLC0415 - with the model

        async def respond(messages: list[Any], _info: Any) -> Any:
            self.prompts.append(str(messages[-1].parts[-1].content))
            self.asked.set()
            try:
                await asyncio.wait_for(self.go_on.wait(), 30)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return ModelResponse(parts=[TextPart(f"answer to {self.prompts[-1]}")])

        return Brain(FunctionModel(respond), name="helper", capabilities=[OncewardDurability()])


def test_a_cancelled_message_cancels_its_agent(tmp_path: Path) -> None:
    """The request of the model ends, and nothing of it is stored."""

    async def main() -> None:
        slow, outputs = Slow(), list[Any]()
        agent = handled_by(slow.brain(), outputs)
        async with AsyncPostbox(tmp_path / "bob.db", agent=agent) as box:
            sent = await box.request("bob", {"prompt": "go"})
            await asyncio.wait_for(slow.asked.wait(), 30)
            await box.cancel(sent.id)
            with pytest.raises(RequestCancelled):
                await box.result(sent, reply=str, timeout=30)

            await asyncio.wait_for(slow.cancelled.wait(), 30)
            assert [] == outputs
            assert [("cancelled",)] == await box.query("SELECT state FROM onceward_inbox")
            assert [] == await box.query(NAMES)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("mode", "prompts"),
    [
        ("steer", ["one", "one, two"]),
        ("interrupt", ["one", "one, two"]),
        ("collect", ["one", "two"]),
    ],
)
def test_a_conversation_is_served_by_runs(tmp_path: Path, mode: Any, prompts: list[str]) -> None:
    """A message that steers or interrupts cancels the agent; one that is collected waits."""

    async def main() -> None:
        slow = Slow()
        brain, agent = slow.brain(), Agent("bob")

        @agent.runs(mode=mode, debounce=0)
        async def turn(run: AsyncRun) -> str:
            found = await brain.run(", ".join(str(each.body) for each in run.messages))
            return str(found.output)

        async with (
            AsyncPostbox(tmp_path / "bob.db", agent=agent),
            AsyncPostbox(tmp_path / "ann.db", agent="ann") as box,  # bob's answers begin no run
        ):
            chat = box.session("chat")
            await chat.send("bob", "one")
            await asyncio.wait_for(slow.asked.wait(), 30)
            last = await chat.request("bob", "two")
            if mode != "collect":
                slow.asked.clear()
                await asyncio.wait_for(slow.asked.wait(), 30)
            slow.go_on.set()

            assert f"answer to {prompts[-1]}" == await box.result(last, reply=str, timeout=30)
            assert prompts == slow.prompts
            assert (mode != "collect") == slow.cancelled.is_set()

    asyncio.run(main())


def test_a_run_that_is_tried_again_has_its_steps(payer: Any, calls: list[str]) -> None:
    """A run of a session finds them as a handler does."""
    agent, tries = Agent("bob"), list[int]()

    @agent.runs(debounce=0)
    async def turn(run: AsyncRun) -> None:
        await payer.run("go")
        tries.append(1)
        if len(tries) < 2:
            raise Retry(after=0)

    with Harness(agent) as harness:
        harness.send({"prompt": "go"})
        harness.deliver()
        harness.advance(60)
        harness.deliver()

    assert 2 == len(tries)
    assert ONCE == sorted(calls)
