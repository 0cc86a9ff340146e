"""Run the SDK's agents in handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from agents import (
    Agent,
    Model,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunResult,
    RunResultStreaming,
    RunState,
    UserError,
)

from onceward import AsyncContext, AsyncRun, Drop, Reject, step
from onceward.errors import InvalidArgument, LeaseLost, Paused
from onceward.integrations.kept_context import kept_context
from onceward.integrations.openai_agents.durable import (
    RUN,
    DurableModel,
    DurableProvider,
    RunSteps,
    durable_agent,
)
from onceward.message.handler_options import StepOptions

ASYNC_ONLY: Final = (
    "the runner's calls are steps of coroutines: make the handler an async def, opened by an"
    " AsyncPostbox or a Postbox"
)
_runs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Runs by the context of the handler that they were begun in."""


class OncewardRunner:
    """
    Runs the SDK's agents like ``agents.Runner``; in a handler, their calls are steps.

    Each request of a model and each call of a function or MCP tool is made once for the message;
    when the handler is called again, the stored result is returned. An agent that another one
    has as a tool is one step. Outside of handlers it is the plain runner.
    """

    @classmethod
    async def run(
        cls,
        agent: Agent[Any],
        given: Any,
        *,
        model_step: StepOptions | None = None,
        tool_step: StepOptions | None = None,
        **options: Any,
    ) -> RunResult:
        """
        Run an agent; *options* are those of ``Runner.run``.

        *model_step* and *tool_step* are options of the steps, such as ``attempts``.

        Raises:
            InvalidArgument: the handler is not a coroutine function.

        """
        begun = _begun(model_step, tool_step, _context_of(given, options))
        with _in_steps(agent, options, begun) as (runs, told), _ended_by_tools():
            return await Runner.run(runs, given, **told)

    @classmethod
    def run_streamed(
        cls,
        agent: Agent[Any],
        given: Any,
        *,
        model_step: StepOptions | None = None,
        tool_step: StepOptions | None = None,
        **options: Any,
    ) -> RunResultStreaming:
        """
        Run an agent, and return its events; see ``run``.

        The events of a request come once its step is stored. ``box.follow`` follows the text
        of a model while it comes.
        """
        begun = _begun(model_step, tool_step, _context_of(given, options))
        with _in_steps(agent, options, begun) as (runs, told):
            return Runner.run_streamed(runs, given, **told)


def _context_of(given: Any, options: dict[str, Any]) -> object:
    """Return the object that tools and hooks of a run share: its own, or that of its state."""
    wrapper = given._context if isinstance(given, RunState) else options.get("context")
    return wrapper.context if isinstance(wrapper, RunContextWrapper) else wrapper


@contextmanager
def _ended_by_tools() -> Iterator[None]:
    """Raise what a tool has raised to end the message, which the SDK wraps in an error of its."""
    try:
        yield
    except UserError as error:
        if isinstance(error.__cause__, Reject | Drop | Paused | LeaseLost):
            raise error.__cause__ from error
        raise


def _begun(model: StepOptions | None, tool: StepOptions | None, shared: object) -> RunSteps | None:
    """Return the steps of a new run in the handler that runs here; None outside of handlers."""
    context = step.context
    if context is None:
        return None
    if not isinstance(context, AsyncContext | AsyncRun):
        raise InvalidArgument(ASYNC_ONLY)
    number = _runs[context] = _runs.get(context, 0) + 1
    kept = kept_context(context, shared)
    return RunSteps(context, number, model or {}, tool or {}, kept)


@contextmanager
def _in_steps(
    agent: Agent[Any], options: dict[str, Any], run: RunSteps | None
) -> Iterator[tuple[Agent[Any], dict[str, Any]]]:
    """Give the agent and the options whose calls are steps of a run; the same without one."""
    if run is None:
        yield agent, options
        return
    token = RUN.set(run)
    try:
        yield durable_agent(agent, run), _with_steps(options)
    finally:
        RUN.reset(token)


def _with_steps(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run with models whose requests are steps."""
    given = options.get("run_config")
    config = RunConfig(**given) if isinstance(given, dict) else given or RunConfig()
    model = DurableModel(config.model) if isinstance(config.model, Model) else config.model
    changed = replace(config, model=model, model_provider=DurableProvider(config.model_provider))
    return {**options, "run_config": changed}
