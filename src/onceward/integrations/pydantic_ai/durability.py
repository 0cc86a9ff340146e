"""Make an agent durable in handlers and runs: the capability that it is given."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

from pydantic_ai import RunContext, UserError
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities.abstract import WrapRunHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    RoleBasedOperationConfig,
    ToolsetKind,
    conversation_id_from_run_id,
    external_event_scope,
    replay_scope,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, ToolDefinition

from onceward import AsyncContext, AsyncRun, Reject
from onceward.integrations.kept_context import kept_context
from onceward.integrations.pydantic_ai.backend import StepBackend
from onceward.integrations.pydantic_ai.resolving import MessageWaiter
from onceward.integrations.pydantic_ai.scopes import CALL, HANDLER, SCOPE, handled, scopes_of
from onceward.integrations.pydantic_ai.tokens import Chunks, putting_out
from onceward.message.handler_options import StepOptions

T = TypeVar("T")
KEY: Final = "onceward"
"""Key of a tool's metadata: options of its step, or False for a tool that is not a step."""


def _not_stored(error: Exception) -> BaseException:
    """Return what ends a message whose step returned what cannot be stored; it stays so."""
    return Reject(f"the result of a step cannot be written as JSON: {error}")


SPEC: Final = DurabilityEngineSpec(
    engine_name="Onceward",
    durable_unit_noun="step",
    durable_container_noun="handler",
    codec=JSON_CODEC,
    serialization_failure=_not_stored,
    # Added for one run they would be called without a step.
    unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
    wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
    # Steps run in the handler's process: a session with an MCP server lasts as long as the run.
    toolset_lifecycles={
        "function": "enter-always",
        "mcp": "enter-in-durable-unit",
        "dynamic": "enter-never",
    },
    tool_config_key=KEY,
)


class OncewardDurability(BaseDurabilityCapability[AgentDepsT]):
    """
    Make the agent's model requests, tool calls and events steps of the handler that runs it.

    ``Agent(…, capabilities=[OncewardDurability()])``, awaited in an ``async def`` handler or
    run. Called again, after a kill or a retry, the handler gets the stored results, and goes
    on at the first call that has none. Elsewhere the agent is as it is without this.
    """

    engine_spec = SPEC

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        stream: Chunks | None = None,
        model_options: StepOptions | None = None,
        tool_options: StepOptions | None = None,
        event_options: StepOptions | None = None,
    ) -> None:
        """
        Choose what differs from step to step.

        *models* are other models of the agent, by the names that ``run(model=…)`` gives;
        *name* stands in the names of the steps in place of the agent's; *stream* returns the
        chunk that each event of a model is put out as, such as ``text``. The options are those
        of steps; ``metadata={"onceward": …}`` of a tool has its own.
        """
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._chunks = stream
        self._model_options: StepOptions = model_options or {}
        self._tool_options: StepOptions = tool_options or {}
        self._event_options: StepOptions = event_options or {}

    # -- the engine -------------------------------------------------------------------------

    @property
    def in_durable_context(self) -> bool:
        """Whether a handler runs here, outside of its steps."""
        return handled() is not None

    def get_durable_operation_backend(self) -> StepBackend:
        """Return what calls the agent's operations as steps."""

        def tool(
            operation: DurableOperationId, tool: Any, tool_name: str
        ) -> StepOptions | Literal[False]:
            kind: ToolsetKind = getattr(operation, "toolset_kind", "function")
            found: StepOptions | Literal[False] = self._build_resolve_tool_config(
                self._toolset_base_config(kind)
            )(tool, tool_name)
            return found

        config = RoleBasedOperationConfig(
            model=self._model_options,
            event=self._event_options,
            capability=StepOptions(),
            tool=self._tool_options,
            resolve_tool=tool,
        )
        return StepBackend(self.name, config, default_model_id=self.default_model_id)

    def _toolset_base_config(self, kind: ToolsetKind) -> StepOptions:  # noqa: ARG002 - theirs
        return self._tool_options

    # -- the same at each call of the handler -----------------------------------------------

    def get_default_run_id(self) -> str | None:
        """Return the id of a run: that of the handler's message, the agent's name and a number."""
        context = handled()
        if context is None:
            return None
        return scopes_of(context).begin(self.name)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of a conversation, which follows from that of its run."""
        found: str | None = conversation_id_from_run_id(run_id) if handled() else None
        return found

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when a run with a timeout began first."""
        context = handled()
        if context is None:
            return None
        name = (
            scopes_of(context).of(run_id, self.name).step_name(f"{self.name}__run_start_time", None)
        )
        return await context.step(_now, name=name)

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        """Run the agent with steps, and with events of parallel tools in the order of the calls."""
        context = handled()
        if context is None or self.agent is None:
            return await super().wrap_run(ctx, handler=handler)
        if not isinstance(context, AsyncContext | AsyncRun):
            raise UserError(
                f"agent {self.name} is run in a handler whose steps it cannot await:"
                " make the handler async def, not of a batch, and await agent.run(…)"
            )
        scope = scopes_of(context).of(str(ctx.run_id), self.name)
        scope.kept = kept_context(context, ctx.deps)
        with ExitStack() as stack:
            stack.enter_context(_set(HANDLER, context))
            stack.enter_context(_set(SCOPE, scope))
            stack.enter_context(external_event_scope(MessageWaiter(context, self.name)))
            stack.enter_context(replay_scope())
            stack.enter_context(
                self.agent.parallel_tool_call_execution_mode("parallel_ordered_events")
            )
            return await super().wrap_run(ctx, handler=handler)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Let an agent that is run by a tool outside of a step have steps of its own."""
        with _set(CALL, call.tool_call_id):
            return await super().wrap_tool_execute(
                ctx, call=call, tool_def=tool_def, args=args, handler=handler
            )

    # -- output -----------------------------------------------------------------------------

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Whether models are asked to stream: for a handler of events, or for readers."""
        wanted: bool = super().has_wrap_run_event_stream
        return wanted or (self._chunks is not None and handled() is not None)

    def _model_stream_event_handler(self) -> EventStreamHandler[AgentDepsT] | None:
        """Return the handler of a model's events, which also puts them out."""
        then: EventStreamHandler[AgentDepsT] | None = super()._model_stream_event_handler()
        context = HANDLER.get()
        if self._chunks is None or context is None:
            return then
        return putting_out(context, self._chunks, then)


def _now() -> datetime:
    return datetime.now(UTC)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Generator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)
