"""Tell the steps of one agent run from those of others in the same call of a handler."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from onceward import AsyncContext, AsyncRun, step
from onceward.integrations.kept_context import KeptContext

FIRST: Final = ""
"""Label of the first run of an agent in a call of a handler, whose steps have plain names."""


@dataclass(slots=True)
class RunScope:
    """One run of an agent: names its steps, the same at each call of the handler."""

    label: str = FIRST
    counts: dict[str, int] = field(default_factory=dict)
    """Steps by name that it has begun."""
    kept: KeptContext = field(default_factory=lambda: KeptContext(None))
    """Its dependencies, which are stored with its steps."""

    def step_name(self, operation: str, call_id: str | None) -> str:
        """Return the name of the next step of an operation; tool calls have their ids in it."""
        name = operation if call_id is None else f"{operation}[{call_id}]"
        name = f"{name}@{self.label}" if self.label else name
        count = self.counts[name] = self.counts.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


@dataclass(slots=True)
class HandlerScopes:
    """The runs of agents in one call of a handler."""

    message_id: str
    by_run_id: dict[str, RunScope] = field(default_factory=dict)
    begun: dict[tuple[str, str], int] = field(default_factory=dict)
    """Runs by agent, and by the tool call that they are made in."""

    def begin(self, agent_name: str) -> str:
        """Begin a run of an agent, and return its id: the same at each call of the handler."""
        scope = self._next(agent_name)
        run_id = scope.step_name(f"{self.message_id}:{agent_name}", None)
        self.by_run_id[run_id] = scope
        return run_id

    def of(self, run_id: str, agent_name: str) -> RunScope:
        """Return the scope of a run, which begins here where its caller has named it."""
        if run_id not in self.by_run_id:
            self.by_run_id[run_id] = self._next(agent_name)
        return self.by_run_id[run_id]

    def _next(self, agent_name: str) -> RunScope:
        call = CALL.get()
        count = self.begun[agent_name, call] = self.begun.get((agent_name, call), 0) + 1
        return RunScope("/".join(filter(None, [call, str(count) if count > 1 else FIRST])))


SCOPE: Final[ContextVar[RunScope | None]] = ContextVar("onceward_agent_run", default=None)
"""The run of an agent that goes on here."""
HANDLER: Final[ContextVar[AsyncContext | AsyncRun | None]] = ContextVar(
    "onceward_agent_handler", default=None
)
"""The context of the handler whose agent runs here, also inside of a step."""
CALL: Final[ContextVar[str]] = ContextVar("onceward_tool_call", default="")
"""The tool call that goes on here, outside of a step."""
_KNOWN: Final[WeakKeyDictionary[Any, HandlerScopes]] = WeakKeyDictionary()


def handled() -> AsyncContext | AsyncRun | None:
    """Return the context of the handler that runs here; None outside, and inside of a step."""
    found: AsyncContext | AsyncRun | None = step.context
    return found


def scopes_of(context: AsyncContext | AsyncRun) -> HandlerScopes:
    """Return the runs of agents in the call of a handler."""
    known: HandlerScopes | None = _KNOWN.get(context)
    if known is None:
        known = _KNOWN[context] = HandlerScopes(context.message.id)
    return known


def scope_here(context: AsyncContext | AsyncRun) -> RunScope:
    """Return the run of an agent that goes on in a handler."""
    return SCOPE.get() or scopes_of(context).of("", "")
