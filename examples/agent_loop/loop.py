"""An agent loop in 40 lines: the model's turns and the tools' effects are steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pydantic import BaseModel

from onceward import Agent, Context, Msg, step


class Task(Msg, type="task"):
    """A goal of a user."""

    goal: str


class Turn(BaseModel):
    """What a model says: a tool to call, or the answer."""

    tool: str | None = None
    argument: str = ""
    answer: str = ""


class Model(Protocol):
    """Any model: it is given what was said, and says what comes next."""

    def __call__(self, said: list[str]) -> Turn:
        """Return the next turn."""
        ...


Tool = Callable[[str, str], str]
"""A tool of an argument and an idempotency key."""


def agent_with(model: Model, tools: dict[str, Tool]) -> Agent:
    """Return the agent of a model and its tools."""
    agent = Agent("assistant")

    def think(said: list[str]) -> Turn:
        return model(said)

    def use(tool: str, argument: str) -> str:
        return tools[tool](argument, step.key)

    @agent.on(Task)
    def work(task: Task, ctx: Context) -> str:
        said = [task.goal]
        while True:
            turn = ctx.step(think, said, attempts=5, retry_on=OSError)
            if turn.tool is None:
                return turn.answer
            said.append(ctx.step(use, turn.tool, turn.argument, attempts=3))

    return agent
