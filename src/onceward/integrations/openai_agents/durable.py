"""Make the requests of models and the calls of tools steps of the handler that runs here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from agents import Agent, FunctionTool, Handoff, Model, ModelProvider, ModelResponse, Tool
from agents.items import TResponseStreamEvent
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext
from pydantic import BaseModel, TypeAdapter

from onceward import AsyncContext, AsyncRun, step
from onceward.integrations.kept_context import KeptContext, kept_step
from onceward.message.handler_options import StepOptions

RESPONSE: Final = TypeAdapter(ModelResponse)
EVENT: Final[TypeAdapter[TResponseStreamEvent]] = TypeAdapter(TResponseStreamEvent)
OUTPUTS: Final[dict[str, type[BaseModel]]] = {
    kind.__name__: kind for kind in (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
}
DELTA: Final = "response.output_text.delta"


@dataclass(slots=True)
class RunSteps:
    """The steps of one run of an agent, in the call of a handler."""

    context: AsyncContext | AsyncRun
    number: int
    """Which run of the call it is."""
    model: StepOptions
    tool: StepOptions
    shared: KeptContext
    """The context of the run, which is stored with its steps."""
    requests: int = 0
    agents: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Agents by the id of the one that they make durable; both are kept."""

    def name(self, words: str) -> str:
        """Return the name of a step: the first run of a call needs no number."""
        return words if self.number == 1 else f"{words} of run {self.number}"

    def next_request(self, agent: str) -> str:
        """Return the name of the next request of a model; a run makes one after the other."""
        self.requests += 1
        return self.name(f"model {self.requests}" if not agent else f"{agent} {self.requests}")

    async def step(self, function: Callable[[], Awaitable[Any]], options: StepOptions) -> Any:
        """Return the result of a step, and give back what the context was when it was stored."""
        found, _ = await kept_step(self.context, self.shared, function, **options)
        return found


RUN: Final[ContextVar[RunSteps | None]] = ContextVar("onceward_agents_run", default=None)
"""The run of an agent that goes on here."""


def run_here() -> RunSteps | None:
    """Return the run whose requests and calls are steps; None elsewhere, and inside of a step."""
    run = RUN.get()
    return run if run is not None and step.context is run.context else None


class DurableModel(Model):
    """A model whose requests are steps."""

    def __init__(self, inner: Model, agent: str = "") -> None:
        self._inner, self._agent = inner, agent

    def __getattr__(self, name: str) -> Any:
        """Return what the model itself has."""
        return getattr(self._inner, name)

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        """Return the response of a request: the stored one, or that of the model."""

        async def request() -> dict[str, Any]:
            response = await self._inner.get_response(*args, **options)
            found: dict[str, Any] = RESPONSE.dump_python(response, mode="json")
            return found

        run = run_here()
        if run is None:
            return await self._inner.get_response(*args, **options)
        given: StepOptions = {**run.model, "name": run.next_request(self._agent)}
        return RESPONSE.validate_python(await run.step(request, given))

    async def stream_response(
        self, *args: Any, **options: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """
        Return the events of a request once its step is stored.

        Text is put out while it comes, by the stream of the step: ``box.follow`` follows it.
        """
        run = run_here()
        if run is None:
            async for event in self._inner.stream_response(*args, **options):
                yield event
            return
        request = partial(self._put_out, run, args, options)
        given: StepOptions = {**run.model, "name": run.next_request(self._agent)}
        for each in await run.step(request, given):
            yield EVENT.validate_python(each)

    async def _put_out(
        self, run: RunSteps, args: tuple[Any, ...], options: dict[str, Any]
    ) -> list[Any]:
        """Return the events of a request as JSON, and put its text out."""
        events, stream = list[Any](), run.context.stream()
        async for event in self._inner.stream_response(*args, **options):
            events.append(EVENT.dump_python(event, mode="json"))
            if event.type == DELTA:
                await stream.append(event.delta)
        return events


class DurableProvider(ModelProvider):
    """A provider of models whose requests are steps."""

    def __init__(self, inner: ModelProvider) -> None:
        self._inner = inner

    def get_model(self, model_name: str | None) -> Model:
        """Return a model by its name."""
        return DurableModel(self._inner.get_model(model_name))

    async def aclose(self) -> None:
        """Close the provider itself."""
        await self._inner.aclose()


def durable_tool(tool: Tool) -> Tool:
    """Return a function tool, or one of an MCP server, whose calls are steps; or another tool."""
    if not isinstance(tool, FunctionTool):
        return tool
    invoke = tool.on_invoke_tool

    async def call(context: ToolContext[Any], arguments: str) -> Any:
        async def effect() -> Any:
            return _plain(await invoke(context, arguments))

        run = run_here()
        if run is None:
            return await invoke(context, arguments)
        name = run.name(f"tool {tool.name} {context.tool_call_id}")
        given: StepOptions = {**run.tool, "name": name}
        return _output(await run.step(effect, given))

    return replace(tool, on_invoke_tool=call)


def _plain(output: Any) -> Any:
    """Return the output of a tool as JSON; what is not JSON is text, as for the model."""
    if type(output).__name__ in OUTPUTS and isinstance(output, BaseModel):
        return {"output": type(output).__name__, "value": output.model_dump(mode="json")}
    if isinstance(output, list | tuple):
        return {"output": "list", "value": [_plain(each) for each in output]}
    if output is None or isinstance(output, str | int | float | bool):
        return {"output": "value", "value": output}
    if isinstance(output, BaseModel):
        return {"output": "value", "value": output.model_dump(mode="json")}
    return {"output": "value", "value": output if isinstance(output, dict) else str(output)}


def _output(stored: dict[str, Any]) -> Any:
    kind, value = stored["output"], stored["value"]
    if kind == "list":
        return [_output(each) for each in value]
    return OUTPUTS[kind].model_validate(value) if kind in OUTPUTS else value


def durable_agent(agent: Agent[Any], run: RunSteps) -> Agent[Any]:
    """Return an agent like this one, with those that it hands over to, whose calls are steps."""
    if id(agent) in run.agents:
        found: Agent[Any] = run.agents[id(agent)][1]
        return found
    made = agent.clone(handoffs=[])
    run.agents[id(agent)] = (agent, made)
    made.__class__ = _durable_class(type(agent))
    made.handoffs = [_durable_handoff(each, run) for each in agent.handoffs]
    if isinstance(agent.model, Model):
        made.model = DurableModel(agent.model, agent.name)
    return made


def _durable_handoff(handoff: Agent[Any] | Handoff[Any, Any], run: RunSteps) -> Any:
    if isinstance(handoff, Agent):
        return durable_agent(handoff, run)

    async def invoke(context: Any, arguments: str) -> Agent[Any]:
        return durable_agent(await handoff.on_invoke_handoff(context, arguments), run)

    return replace(handoff, on_invoke_handoff=invoke)


def _durable_class(kind: type[Any]) -> type[Any]:
    """Return the class of an agent whose tools, those of MCP servers too, are durable."""

    async def get_all_tools(self: Any, run_context: Any) -> list[Tool]:
        return [durable_tool(each) for each in await kind.get_all_tools(self, run_context)]

    return type(kind.__name__, (kind,), {"get_all_tools": get_all_tools})
