"""
One of two agents that send each other numbers: a process of any release, with public names alone.

    neighbour.py FOLDER NAME OTHER COUNT [URL URL_OF_OTHER]

It serves at URL and sends COUNT numbers to OTHER, each with a row of its own in one transaction. It
prints ``got N`` for each number that it has handled. It goes on until it is killed.
"""

import sys
from pathlib import Path
from threading import Event

from onceward import Agent, Context, Postbox

TABLES = """
CREATE TABLE IF NOT EXISTS sent (n INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS got (n INTEGER NOT NULL, id TEXT NOT NULL);
"""


def say(line: str) -> None:
    """Tell the parent."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(folder: str, name: str, other: str, count: str, *urls: str) -> None:
    """Send and handle."""
    agent, listeners = Agent(name), []
    if urls:
        from onceward.http import HttpListener  # noqa: PLC0415 - an extra

        listeners.append(HttpListener(urls[0]))

    @agent.on("number")
    def take(body: dict[str, int], ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO got VALUES (?, ?)", (body["n"], ctx.message.id))
        ctx.reply({"n": body["n"]}, type="taken")
        say(f"got {body['n']}")

    @agent.on("taken")
    def end(body: dict[str, int]) -> None:
        say(f"taken {body['n']}")

    file = Path(folder) / f"{name}.db"
    with Postbox(file, agent=agent, listeners=listeners, hold_unknown=True) as box:
        if urls:
            box.peers.add(other, urls[1])
        for statement in TABLES.split(";"):
            with box.begin() as tx:
                tx.execute(statement)
        for n in range(int(count)):
            with box.begin() as tx:
                if tx.execute("INSERT OR IGNORE INTO sent VALUES (?) RETURNING n", (n,)):
                    tx.send(other, {"n": n}, type="number")
        Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
