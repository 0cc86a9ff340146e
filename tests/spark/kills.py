"""
Send one batch to several files, killed at its n-th statement, then send it again and look.

It does so for every n, or for each STRIDE-th.

    python kills.py FOLDER [STRIDE]

Runs by itself because it forks, which only a process of one thread does safely. Prints a JSON
object: how many points there were, and what was wrong at which.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import apsw

from onceward import Postbox
from onceward.fleet.opening import opened
from onceward.fleet.spark.sink import Batch, hand_over

AGENTS = ("alice", "carol")
ROWS: list[dict[str, Any]] = [
    {"agent": agent, "recipient": "bob", "body": json.dumps({"number": number // 2})}
    for agent in AGENTS
    for number in range(4)
]
"""Four messages of each agent, each body twice: equal rows are two messages."""
BAD: list[dict[str, Any]] = [{"agent": agent, "recipient": None, "body": "0"} for agent in AGENTS]
"""One row of each agent that can never be sent."""


def main(folder: Path, stride: int) -> None:
    """Try every point, or one in *stride*."""
    logging.basicConfig(level=logging.ERROR)  # a copied file warns that it greets its peers
    fresh, fleet = folder / "fresh", folder / "fleet"
    fresh.mkdir()
    in_child(partial(make, fresh))
    wrong, points = {}, 0
    for point in count(1, stride):
        shutil.copytree(fresh, fleet)
        died = in_child(partial(send, fleet, point)) == -signal.SIGKILL
        ended = in_child(partial(again, fleet))
        shutil.rmtree(fleet)
        if ended:
            wrong[point] = ended
        if not died:
            break
        points += 1
    print(json.dumps({"points": points, "wrong": wrong}))  # noqa: T201 - that is its answer


def in_child(work: Callable[[], object]) -> int:
    """Run *work* in a process of its own, and return how it ended: 0, or minus the signal."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by its exit code
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def make(folder: Path) -> None:
    """Make the agents."""
    for agent in AGENTS:
        Postbox(folder / f"{agent}.db", agent=agent, start=False, durability="fast").close()


def send(folder: Path, point: int) -> None:
    """Send the batch, and die before the statement of that number."""
    left = count(1)

    def statement(_: object) -> None:
        if next(left) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    apsw.connection_hooks.append(lambda con: con.trace_v2(apsw.SQLITE_TRACE_STMT, statement))
    every = [*BAD, *ROWS]
    by_sender = {("", agent): [row for row in every if row["agent"] == agent] for agent in AGENTS}
    bad = str(folder / "bad")
    hand_over(by_sender, Batch("query", 7, (str(folder),), hold_unknown=True, bad_records_path=bad))


def again(folder: Path) -> None:
    """Send the batch again, and look that each file holds its four messages once."""
    send(folder, 0)
    for agent in AGENTS:
        with opened(str(folder / f"{agent}.db")) as source:
            bodies = [
                body
                for (body,) in source.con.execute(
                    "SELECT frame ->> '$.data.number' FROM onceward_outbox ORDER BY seq"
                )
            ]
            assert [0, 0, 1, 1] == bodies, bodies
    kept = [line for path in folder.glob("bad/query/7/*.json") for line in path.open()]
    assert len(BAD) == len(kept), kept


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1)
