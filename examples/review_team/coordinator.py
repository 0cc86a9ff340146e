"""
Ask workers for a review of every file, wave after wave, and store every answer.

    python coordinator.py HOME WORKER... [--code FOLDER...]

It works until its standard input ends, and then waits for the open answers. Kill it
at any instant: what it has sent and what it knows are rows of one file, so the next
process continues where the last one stopped.
"""

import argparse
import asyncio
import email
import http
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Event, Thread

from team import PATIENCE, Review, Reviewed, until_input_ends

from onceward import Agent, Context, Postbox
from onceward.events import Processed

MAX_OPEN = 8
"""Tasks that one worker may have open; so work goes to workers that are alive."""
GIVE_UP_AFTER = 60.0
"""Seconds without any answer after which the open tasks are given up, to be examined."""
GAVE_UP = 75
STANDARD_LIBRARY = [Path(package.__path__[0]) for package in (json, email, asyncio, http)]

# A task's row commits with its message, a result's row with the processed mark of its answer.
# No UNIQUE and no OR IGNORE: an answer that took effect twice would be here twice, and be seen.
TABLES = """
CREATE TABLE IF NOT EXISTS file (number INTEGER PRIMARY KEY, path TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS task (
    number INTEGER PRIMARY KEY, path TEXT NOT NULL, worker TEXT NOT NULL, message_id TEXT NOT NULL,
    sent_at INTEGER NOT NULL, answers INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS task_open ON task (worker) WHERE answers = 0;
CREATE TABLE IF NOT EXISTS result (
    task INTEGER NOT NULL, worker TEXT NOT NULL, findings INTEGER NOT NULL,
    attempt INTEGER NOT NULL, at INTEGER NOT NULL);
"""
FILES = "SELECT EXISTS (SELECT 1 FROM file)"
ADD_FILE = "INSERT INTO file (path) VALUES (?)"
OPEN = "SELECT worker, count(*) FROM task WHERE answers = 0 GROUP BY worker"
NEXT = """
SELECT 1 + last, (SELECT path FROM file WHERE number = 1 + last % (SELECT count(*) FROM file))
  FROM (SELECT coalesce(max(number), 0) AS last FROM task)
"""
ADD_TASK = "INSERT INTO task (number, path, worker, message_id, sent_at) VALUES (?, ?, ?, ?, ?)"
ADD_RESULT = "INSERT INTO result (task, worker, findings, attempt, at) VALUES (?, ?, ?, ?, ?)"
ANSWERED = "UPDATE task SET answers = answers + 1 WHERE number = ?"

coordinator = Agent("coordinator")


@coordinator.on(Reviewed)
def note(answer: Reviewed, ctx: Context) -> None:
    """Store one answer."""
    sender, attempt = ctx.message.sender, ctx.message.attempt
    ctx.tx.execute(ADD_RESULT, (answer.task, sender, answer.findings, attempt, now()))
    ctx.tx.execute(ANSWERED, (answer.task,))


def assign(box: Postbox, team: list[str]) -> bool:
    """Send the next file to the worker with the fewest open tasks; return False if all are full."""
    with box.session("review").begin() as tx:
        tasks = dict.fromkeys(team, 0) | dict(tx.execute(OPEN))
        worker = min(team, key=tasks.__getitem__)
        if tasks[worker] >= MAX_OPEN:
            return False
        [(number, path)] = tx.execute(NEXT)
        message_id = tx.send(worker, Review(task=number, path=path), key=f"task-{number}")
        tx.execute(ADD_TASK, (number, path, worker, message_id, now()))
    return True


def work(box: Postbox, team: list[str], closing: Event) -> bool:
    """Assign tasks until *closing*, then wait for open ones; return whether all were answered."""
    answered = Event()
    box.on(Processed, lambda _: answered.set())  # called after the commit
    while not closing.is_set():
        tell(box)
        if not assign(box, team):
            answered.wait(0.1)
            answered.clear()
    return finish(box, answered)


def finish(box: Postbox, answered: Event) -> bool:
    """Wait until nothing is open; give up when no answer comes any more."""
    deadline = time.monotonic() + GIVE_UP_AFTER
    while time.monotonic() < deadline:
        tell(box)
        with box.begin() as tx:
            if not tx.execute(OPEN):
                return True
        if answered.wait(0.1):
            deadline = time.monotonic() + GIVE_UP_AFTER
            answered.clear()
    return False


def tell(box: Postbox) -> None:
    """Print the numbers of tasks and results."""
    stats = box.file.stats()
    print(stats["enqueued"], stats["processed"], flush=True)


def python_files(folders: Iterable[Path]) -> list[str]:
    """Return every Python file under *folders*; a name that is not text is spelled with escapes."""
    found = sorted({path for folder in folders for path in folder.rglob("*.py") if path.is_file()})
    return [
        str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for path in found
    ]


def prepare(path: Path, folders: Iterable[Path]) -> None:
    """Make the tables, and the list of files at the first start."""
    with Postbox(path, agent="coordinator", start=False) as box, box.begin() as tx:
        tx.execute(TABLES)
        if tx.execute(FILES) == [(0,)]:
            tx.executemany(ADD_FILE, [(name,) for name in python_files(folders)])
        if tx.execute(FILES) == [(0,)]:
            sys.exit("there is no Python file to review")


def end_of_input() -> Event:
    """Return the flag that will be set when standard input ends."""
    ended = Event()

    def wait() -> None:
        until_input_ends()
        ended.set()

    Thread(target=wait, daemon=True).start()
    return ended


def now() -> int:
    """Return the time in milliseconds."""
    return time.time_ns() // 1_000_000


def main() -> int:
    """Coordinate until standard input ends and everything is answered."""
    parser = argparse.ArgumentParser(
        description="Asks workers for reviews and writes down their answers."
    )
    parser.add_argument("home", type=Path)
    parser.add_argument("team", nargs="+", metavar="WORKER")
    parser.add_argument("--code", nargs="+", type=Path, default=STANDARD_LIBRARY, metavar="FOLDER")
    args = parser.parse_args()
    path = args.home / "coordinator.db"
    prepare(path, args.code)
    # hold_unknown: the workers may start after their first task was sent.
    with Postbox(path, agent=coordinator, settings=PATIENCE, hold_unknown=True) as box:
        return 0 if work(box, args.team, end_of_input()) else GAVE_UP


if __name__ == "__main__":
    sys.exit(main())
