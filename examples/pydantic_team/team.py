"""A team of pydantic-ai agents: a planner asks a researcher, and books what it has found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_ai import Agent as Brain

from onceward import Agent, AsyncContext, Msg, step
from onceward.integrations.pydantic_ai import OncewardDurability


class Goal(Msg, type="goal"):
    """A trip to make."""

    city: str


class Question(Msg, type="question"):
    """A question to the researcher."""

    text: str


class Ledger:
    """The services that tools call: a request with a known key has no second effect."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def record(self, effect: str, key: str) -> str:
        """Take an effect, once for each key."""
        path = self._folder / f"{key}.effect"
        if not path.exists():
            path.write_text(effect, encoding="utf-8")
        return f"{effect}: done"

    @property
    def effects(self) -> list[str]:
        """Return the effects that were taken, by all processes."""
        return sorted(path.read_text(encoding="utf-8") for path in self._folder.glob("*.effect"))


def brain(name: str, model: Any, tools: list[Any], **options: Any) -> Any:
    """Return an agent of pydantic-ai that is durable in handlers."""
    return Brain(model, name=name, tools=tools, capabilities=[OncewardDurability()], **options)


def researcher(model: Any, ledger: Ledger) -> Agent:
    """Return the agent that answers questions by searching."""

    def search(query: str) -> str:
        return ledger.record(f"search {query}", step.key)

    mind = brain("researcher", model, [search])
    agent = Agent("researcher")

    @agent.on(Question)
    async def answer(question: Question) -> str:
        return str((await mind.run(question.text)).output)

    return agent


def planner(model: Any, ledger: Ledger) -> Agent:
    """Return the agent that plans a trip, and books it."""

    def book(what: str) -> str:
        return ledger.record(f"book {what}", step.key)

    def pay(cents: int) -> str:
        return ledger.record(f"pay {cents}", step.key)

    mind = brain("planner", model, [book, pay])
    agent = Agent("planner")

    @agent.on(Goal)
    async def plan(goal: Goal, ctx: AsyncContext) -> str:
        found = await ctx.ask("researcher", Question(text=f"a trip to {goal.city}"), reply=str)
        trip = await mind.run(f"Book a trip to {goal.city}. The researcher says: {found}")
        return str(trip.output)

    return agent
