"""An agent that leaves one row for each job, and what reads the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward import Agent, Context, Msg

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


def counting(name: str = "billing") -> Agent:
    """Return an agent that writes one row per job into its own file."""
    agent = Agent(name)

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS effects (n)")
        ctx.tx.execute("INSERT INTO effects VALUES (?)", (job.n,))

    return agent


def effects(world: World, name: str = "billing") -> list[int]:
    """Return the numbers of the jobs that had their effect, in order."""
    box = world.boxes[name]
    if not box._db.read("SELECT 1 FROM sqlite_schema WHERE name = 'effects'"):
        return []
    return [n for (n,) in box._db.read("SELECT n FROM effects ORDER BY rowid")]
