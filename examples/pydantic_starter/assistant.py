"""A pydantic-ai agent whose calls are steps; after a kill it continues at the interrupted call."""

import os

from pydantic_ai import Agent as Brain
from pydantic_ai import RunContext

from onceward import Agent, Msg, Postbox, step
from onceward.integrations.pydantic_ai import OncewardDurability

MODEL = os.environ.get("MODEL", "test")
"""For example ``anthropic:claude-sonnet-4-5``; ``test`` needs no key and makes answers up."""


class Task(Msg, type="task"):
    """A goal that a user sets."""

    goal: str


brain = Brain(
    MODEL,
    name="assistant",
    instructions="Do the task, and save notes that should be kept.",
    capabilities=[OncewardDurability(model_options={"attempts": 5})],
)
assistant = Agent("assistant", description="does tasks, and keeps notes")


@assistant.at_open
def create_tables(box: Postbox) -> None:
    """Create the agent's own table, beside those of onceward in the same file."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS note (text TEXT)")


@brain.tool(metadata={"onceward": False})  # not a step itself: it calls one that commits its row
async def remember(ctx: RunContext, text: str) -> str:
    """Save a note; its row and the tool's result are one commit."""

    def write(text: str) -> str:
        step.tx.execute("INSERT INTO note VALUES (?)", (text,))
        return "written down"

    return str(await step.context.step(write, text, tx=True, name=f"note {ctx.tool_call_id}"))


@brain.tool_plain
def look_up(question: str) -> str:
    """Call your own service here; ``step.key`` stays the same in every call for one message."""
    return f"nothing is known of {question}"


@assistant.on(Task)
async def work(task: Task) -> str:
    """Let the model work; its answer is the reply."""
    result = await brain.run(task.goal)
    return str(result.output)
