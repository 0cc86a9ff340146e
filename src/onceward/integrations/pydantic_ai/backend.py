"""Call each operation of an agent as a step of the handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from pydantic_ai import RunContext
from pydantic_ai.durable_exec import (
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    record_durable_unit,
)

from onceward.integrations.kept_context import kept_step
from onceward.integrations.pydantic_ai.scopes import handled, scope_here
from onceward.message.handler_options import StepOptions

Body = Callable[[], Awaitable[object]]


class StepBackend(JournalCallableOperationBackend[StepOptions]):
    """Calls operations as steps; their names are stored and never change."""

    def __init__(
        self,
        agent_name: str,
        config: RoleBasedOperationConfig[StepOptions],
        *,
        default_model_id: str | None,
    ) -> None:
        super().__init__(agent_name=agent_name, default_model_id=default_model_id, config=config)

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Body,
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        """Return the result of an operation: the stored one, or that of *body*."""
        context = handled()
        if context is None:  # the handler has ended, or a step is being called
            return await body()
        scope = scope_here(context)
        options: StepOptions = {**config, "name": scope.step_name(name, _call_id(cache_key))}
        told = _told(operation_id, cache_key)
        found, called = await kept_step(context, scope.kept, body, *told, **options)
        record_durable_unit(executed=called)
        return found


def _call_id(cache_key: tuple[object, ...]) -> str | None:
    """Return the id of the tool call that an operation is made for."""
    for each in cache_key:
        if isinstance(each, RunContext):
            return cast("str | None", each.tool_call_id)
    return None


def _told(operation_id: DurableOperationId, cache_key: tuple[object, ...]) -> tuple[int, ...]:
    """
    Return what an operation is compared by when its result is found again.

    A request of a model has as many messages as before. Messages themselves have dates in
    them, and what a tool is called with is a stored answer of the model.
    """
    if not isinstance(operation_id, ModelRequestId):
        return ()
    return (len(cast("list[object]", cache_key[1])),)
