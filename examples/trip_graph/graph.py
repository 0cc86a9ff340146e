"""A LangGraph graph that survives kills: the model's turns and the tools' effects are steps."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Protocol, TypedDict

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel

from onceward import Agent, Context, Msg, step
from onceward.integrations.langgraph import OncewardSaver, invoke, node_step


class Task(Msg, type="task"):
    """A goal of a user."""

    goal: str


class Turn(BaseModel):
    """What a model says: a tool to call, or the answer."""

    tool: str | None = None
    argument: str = ""
    answer: str = ""


class State(TypedDict):
    """The state of the graph: what was said, and what the model said last."""

    said: Annotated[list[str], operator.add]
    turn: Turn


class Model(Protocol):
    """Any model: it is given what was said, and says what comes next."""

    def __call__(self, said: list[str]) -> Turn:
        """Return the next turn."""
        ...


Tool = Callable[[str, str], str]
"""A tool of an argument and an idempotency key."""


def agent_with(model: Model, tools: dict[str, Tool]) -> Agent:
    """Return the agent of a model and its tools."""
    agent, graph = Agent("assistant"), StateGraph(State)

    def call_model(said: list[str]) -> Turn:
        return model(said)

    def call_tool(tool: str, argument: str) -> str:
        return tools[tool](argument, step.key)

    def think(state: State) -> dict[str, Turn]:
        return {"turn": node_step(call_model, state["said"], attempts=5, retry_on=OSError)}

    def act(state: State) -> dict[str, list[str]]:
        turn = state["turn"]
        return {"said": [node_step(call_tool, str(turn.tool), turn.argument, attempts=3)]}

    def what_next(state: State) -> str:
        return END if state["turn"].tool is None else "act"

    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", what_next, ["act", END])
    graph.add_edge("act", "think")
    serde = JsonPlusSerializer(allowed_msgpack_modules=[Turn])
    trip = graph.compile(checkpointer=OncewardSaver(serde=serde))

    @agent.on(Task)
    def work(task: Task, ctx: Context) -> str:
        turn: Turn = invoke(trip, {"said": [task.goal]}, ctx)["turn"]
        return turn.answer

    return agent
