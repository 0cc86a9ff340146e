"""An agent of the OpenAI Agents SDK is killed at each of its calls, and goes on there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.frameworks.killed_trips import FATAL, PLAN, World, finish, killed_and_finished

pytest.importorskip("agents", reason="needs onceward[frameworks-test]")

import agents as sdk
from agents.testing import ScriptedModel, assistant_message, function_call

from onceward import Agent, AsyncContext, Msg, Postbox, step
from onceward.integrations.openai_agents import OncewardRunner, OncewardSession

sdk.set_tracing_disabled(disabled=True)


class Task(Msg, type="task"):
    """A goal of a user."""

    goal: str


class PlanModel(ScriptedModel):
    """The model of the world: it is given what was said, and says what comes next."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def get_response(self, *args: Any, **options: Any) -> Any:
        """Answer."""
        given = options["input"] if "input" in options else args[1]
        said = [each["output"] for each in given if each.get("type") == "function_call_output"]
        turn = self._world.model(["a trip", *said])
        if turn.tool is None:
            answer = assistant_message(turn.answer)
        else:
            arguments = {"argument": turn.argument}
            answer = function_call(turn.tool, arguments, call_id=f"call-{len(said)}")
        return await ScriptedModel([[answer]]).get_response(*args, **options)


def agent_with(world: World) -> Agent:
    """Return an agent of ours that runs one of theirs."""

    def tool(name: str) -> sdk.Tool:
        async def use(argument: str) -> str:
            return str(world.tool(name)(argument, step.key))

        return sdk.function_tool(use, name_override=name)

    desk, tools = Agent("assistant"), [tool(name) for name in world.tools]
    bot = sdk.Agent("bot", model=PlanModel(world), tools=tools)

    @desk.on(Task)
    async def work(task: Task, ctx: AsyncContext) -> str:
        found = await OncewardRunner.run(bot, task.goal, session=OncewardSession(ctx))
        return str(found.final_output)

    return desk


def play(folder: Path, fatal: int, when: str) -> None:
    """Run the agent until its task is done, or its process is killed."""
    finish(folder, agent_with(World(folder, fatal, when)), Task(goal="a trip"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fatal", FATAL)
def test_a_killed_agent_goes_on_at_the_call_that_it_died_at(
    tmp_path: Path, fatal: int, when: str
) -> None:
    """Every other call is made once, each tool has its effect once, and so has the session."""
    killed_and_finished(__file__, tmp_path, fatal, when)

    with Postbox(tmp_path / "assistant.db", agent="assistant", start=False) as box:
        items = box.query("SELECT count(*) FROM onceward_agent_items")
        assert [(2 + 2 * len(PLAN),)] == items
        assert [] == box.file.check()


if __name__ == "__main__":
    play(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
