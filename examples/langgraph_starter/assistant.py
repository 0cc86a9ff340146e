"""A LangGraph agent; after a kill it continues at the interrupted node."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from onceward import Agent, Context, Msg, step
from onceward.integrations.langgraph import OncewardSaver, invoke, node_step


class Task(Msg, type="task"):
    """A goal that a user sets."""

    goal: str


class Approval(Msg, type="approval"):
    """The user says yes."""


class State(TypedDict):
    """The state of a conversation, kept across its messages."""

    goal: str
    plan: str
    done: Annotated[list[str], operator.add]


def call_model(goal: str) -> str:
    """Call your model here."""
    return goal.strip().lower()


def do(plan: str) -> str:
    """Call your own service here; ``step.key`` stays the same in every call for one task."""
    return f"written down: {plan}" if step.key else "never"


def think(state: State) -> dict[str, str]:
    """Make a plan."""
    return {"plan": node_step(call_model, state["goal"], attempts=5)}


def approve(state: State) -> dict[str, str]:
    """Wait for the user: the handler ends, and the next message continues here."""
    interrupt(f"May I {state['plan']}?")
    return {}


def act(state: State) -> dict[str, list[str]]:
    """Do what was approved."""
    return {"done": [node_step(do, state["plan"])]}


builder = StateGraph(State)
for node in (think, approve, act):
    builder.add_node(node.__name__, node)
builder.add_edge(START, "think")
builder.add_edge("think", "approve")
builder.add_edge("approve", "act")
builder.add_edge("act", END)
graph = builder.compile(checkpointer=OncewardSaver())
assistant = Agent("assistant", description="does tasks, when they are approved")


def answer(found: dict[str, Any]) -> str:
    """Return the graph's question, or the result of its last action."""
    asked = found.get("__interrupt__")
    return str(asked[0].value if asked else found["done"][-1])


@assistant.on(Task)
def begin(task: Task, ctx: Context) -> str:
    """Run the graph; its state, the reply and the end of the message are one commit."""
    return answer(invoke(graph, {"goal": task.goal}, ctx))


@assistant.on(Approval)
def go_on(_: Approval, ctx: Context) -> str:
    """Resume the graph of this session."""
    return answer(invoke(graph, Command(resume=True), ctx))
