"""
A session under test: an agent with runs, its peers, and a clock turned by hand.

Handlers are played on the test's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from onceward import Agent, Message, Postbox, Run
from onceward.testing import Harness

Step = Callable[[Run], Any]


class ScriptedAgent:
    """An agent called coder whose runs are written down, and that does what a test tells it to."""

    def __init__(self, options: dict[str, Any], settings: dict[str, Any]) -> None:
        self.agent = Agent("coder")
        self.seen: list[list[Any]] = []
        """The bodies of every run, in the order of their beginning."""
        self.runs: list[Run] = []
        self.script: list[Step] = []
        """What the next runs do; afterwards they return nothing."""
        self.agent.runs(**options)(self._turn)
        self.harness = Harness(self.agent, **settings)
        self.harness.peer("user")

    def _turn(self, run: Run) -> Any:
        self.seen.append([message.body for message in run.messages])
        self.runs.append(run)
        return self.script.pop(0)(run) if self.script else None

    def say(self, *bodies: Any, **options: Any) -> list[str]:
        """Send from user, in one session; return the ids."""
        named = {"sender": "user", "session": "s"} | options
        return [self.harness.send(body, **named) for body in bodies]

    def go(self, seconds: float = 0.0) -> list[list[Any]]:
        """Let time pass and everything run; return what runs have seen so far."""
        if seconds:
            self.harness.advance(seconds)
        self.harness.deliver()
        return self.seen

    @property
    def box(self) -> Postbox:
        """The coder's postbox."""
        return self.harness.postbox

    @property
    def user(self) -> Postbox:
        """The user's postbox."""
        return self.harness.peer("user")

    def got(self) -> list[Message[Any]]:
        """Return what has come back to the user, taken for good."""
        found: list[Message[Any]] = []
        while (message := self.user.receive()) is not None:
            message.ack()
            found.append(message)
        return found

    def states(self) -> list[tuple[str, bool]]:
        """Return state and consumption of all runs, oldest first."""
        return [(run.state, run.consumed) for run in reversed(self.box.runs.list(limit=1000))]

    def ends(self) -> dict[Any, str]:
        """Return by message id how it stands."""
        rows = self.harness.sql(
            "SELECT id, state FROM onceward_inbox "
            "UNION ALL SELECT id, 'dead' FROM onceward_dead_letters WHERE recipient = 'coder'"
        )
        return dict(rows)


Make = Callable[..., ScriptedAgent]


@pytest.fixture
def scripted_agent() -> Iterator[Make]:
    """Return a factory of scripted agents; their files must be sound when the test is over."""
    with ExitStack() as stack:
        made: list[ScriptedAgent] = []

        def make(settings: dict[str, Any] | None = None, **options: Any) -> ScriptedAgent:
            one = ScriptedAgent(options, {"queue_debounce": 0.0} | (settings or {}))
            stack.enter_context(one.harness)
            made.append(one)
            return one

        yield make
        wrong = [
            str(violation)
            for one in made
            for box in (one.box, one.user)
            for violation in box.file.check()
        ]
        assert [] == wrong
