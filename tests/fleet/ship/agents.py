"""Agents of a small world."""

from __future__ import annotations

from onceward import Agent, Drop, Reject


def handler(name: str) -> Agent:
    """Return an agent that does with each message as its body says."""
    agent = Agent(name)

    @agent.on("#")
    def handle(body: dict[str, str]) -> None:
        if body["wish"] == "reject":
            raise Reject
        if body["wish"] == "drop":
            raise Drop

    return agent
