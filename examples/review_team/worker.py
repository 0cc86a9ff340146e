"""
Review the files that the coordinator asks for.

    python worker.py HOME NAME

Its findings, the processed mark and its answer are one commit. Kill it
at any instant: either all three are there, or the task is done again.
"""

import sys
import time
from pathlib import Path

import rules
from team import PATIENCE, Review, Reviewed, until_input_ends

from onceward import Agent, Context, Postbox

# No UNIQUE and no OR IGNORE: a task that took effect twice would be here twice, and be seen.
TABLES = """
CREATE TABLE IF NOT EXISTS review (
    task INTEGER NOT NULL, attempt INTEGER NOT NULL, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS finding (
    task INTEGER NOT NULL, line INTEGER NOT NULL, rule TEXT NOT NULL, note TEXT NOT NULL);
"""
DONE = "INSERT INTO review (task, attempt, at) VALUES (?, ?, ?)"
FOUND = "INSERT INTO finding (task, line, rule, note) VALUES (?, ?, ?, ?)"

reviewer = Agent("reviewer")


@reviewer.on(Review)
def review(task: Review, ctx: Context) -> None:
    """Review one file, and send what was found to the coordinator."""
    findings = rules.review(Path(task.path))  # the slow part comes first: nothing is locked yet
    ctx.tx.execute(DONE, (task.task, ctx.message.attempt, time.time_ns() // 1_000_000))
    ctx.tx.executemany(
        FOUND, [(task.task, found.line, found.rule, found.note) for found in findings]
    )
    ctx.reply(Reviewed(task=task.task, findings=len(findings)))


def main(home: Path, name: str) -> None:
    """Work until standard input ends."""
    path = home / f"{name}.db"
    with Postbox(path, agent=name, start=False) as box, box.begin() as tx:
        tx.execute(TABLES)
    with Postbox(path, agent=Agent(name).include(reviewer), settings=PATIENCE):
        until_input_ends()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
