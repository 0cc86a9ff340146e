"""
Kill processes that serve sessions, at random instants, and audit what is left.

An audit finds messages that were lost, doubled, reordered or said too late, and
sessions that had two calls at a time.

    python3 tests/core/engines/arena.py --rounds 10000

Each mode has a folder of its own with three agents. Two processes at a time
serve it and compete for its runs; a round is the SIGKILL of one of them. At
the end everything is drained and compared. Prints JSON; exit code 1 is a find.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from onceward import Agent, Postbox, Reject, Run
from onceward.message.vocabulary import QUEUE_MODES, Aborted, QueueMode
from onceward.testing.kills import end_with_parent

SESSIONS = ("red", "green", "blue")
BRISK: dict[str, Any] = {
    "durability": "fast", "tuning": {"abort_grace": 600.0, "breaker_open_for": 0.05},
    "lease": 2.0, "delivery_retry": "0.01s..0.05s ±0%", "handler_retry": "0.01s..0.05s ±0%",
    "ack_timeout": 0.2,
    "stop_timeout": 0.5, "max_runs": 4, "handler_attempts": 10_000, "hold_unknown": True,
    "delivery_attempts": 10_000, "ack": "stored", "deliver_timeout": 1.0,
}  # fmt: skip
"""Short spans, so that what died is replaced soon; SIGKILL needs no stronger durability."""
LIFE = 0.06
"""Longest life of a process once it serves, in seconds."""
DRAIN = 120.0
CALM = 5
PRELOADED = ["onceward.api.postbox", "onceward.features.runs.worker", "onceward.testing.kills"]
"""Imported once, by the server that forks: importing it takes longer than a process here lives."""


@contextmanager
def alone(home: Path, run: Run) -> Iterator[None]:
    """Note it where a session has another call, in this process or another one that lives."""
    with (home / f"{run.session}.call").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with (home / "overlaps").open("a") as noted:
                noted.write(f"run {run.id} of {run.session} began beside another call\n")
        yield


def coder(mode: QueueMode, rng: random.Random, home: Path) -> Agent:
    """Return an agent that speaks before and after a checkpoint, and sometimes gives work away."""
    agent = Agent("coder")

    aborted: Aborted = "deliver" if mode == "steer" else "return"

    @agent.runs(mode=mode, debounce=0.005, cap=1_000_000, aborted=aborted)
    def turn(run: Run) -> None:
        with alone(home, run):
            work(run)

    def work(run: Run) -> None:
        run.send("user", ["before", run.id])
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.01)
            run.checkpoint([each.id for each in run.messages])
        if run.message.type != "worker_result" and rng.random() < 0.3:
            run.dispatch("worker", {"of": run.id})
        time.sleep(rng.random() * 0.01)
        run.send("user", ["after", run.id])
        if rng.random() < 0.1:
            raise RuntimeError("bad luck")

    return agent


def worker(rng: random.Random) -> Agent:
    """Return an agent whose runs end in every way."""
    agent = Agent("worker")

    @agent.runs(mode="steer")
    def work(run: Run) -> str:
        time.sleep(rng.random() * 0.01)
        if rng.random() < 0.2:
            raise Reject("will not")
        if rng.random() < 0.2:
            raise RuntimeError("could not")
        run.checkpoint("half")
        return "done"

    return agent


def serve(home: str, mode: QueueMode, seed: int, ready: Connection) -> None:
    """Open all three agents, speak, and serve until killed."""
    end_with_parent()
    rng = random.Random(seed)
    with opened(Path(home), mode, rng) as boxes:
        ready.send(None)
        while True:
            boxes.speak(rng)
            time.sleep(rng.random() * 0.1)


class opened:  # noqa: N801 - read as a word
    """The three agents of one folder, open in this process."""

    def __init__(self, home: Path, mode: QueueMode, rng: random.Random) -> None:
        self.coder = Postbox(home / "coder.db", agent=coder(mode, rng, home), **BRISK)
        self.worker = Postbox(home / "worker.db", agent=worker(rng), **BRISK)
        self.user = Postbox(home / "user.db", agent="user", **BRISK)

    def __enter__(self) -> Self:
        """Serve."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        for box in (self.user, self.worker, self.coder):
            box.close()

    def speak(self, rng: random.Random) -> None:
        """Send a few messages, in one of the sessions."""
        self.user.session(rng.choice(SESSIONS)).send_many(
            [("coder", n) for n in range(rng.randint(1, 2))]
        )

    @property
    def busy(self) -> int:
        """How much has not come to its end yet."""
        boxes = (self.user, self.worker, self.coder)
        return sum(
            box.file.stats()[name] for box in boxes for name in ("pending", "sending", "sent")
        ) + sum(
            box.file.stats()[name]
            for box in (self.worker, self.coder)
            for name in ("inbox_pending", "inbox_processing")
        )


def fight(home: Path, mode: QueueMode, rounds: int, seed: int) -> dict[str, Any]:
    """
    Kill *rounds* processes that serve one folder, two at a time.

    Then drain the folder and audit the rest.
    """
    rng, crew = random.Random(seed), multiprocessing.get_context("forkserver")
    with opened(home, mode, rng):
        pass  # the files are there
    alive: list[tuple[BaseProcess, Connection]] = []
    for number in range(rounds):
        while len(alive) < 2:
            hear, ready = crew.Pipe(duplex=False)
            process = crew.Process(
                target=serve, args=(str(home), mode, seed * 1_000_003 + number, ready), daemon=True
            )
            process.start()
            ready.close()
            alive.append((process, hear))
        if rng.random() < 0.8:  # the others die while they open their files
            alive[-1][1].poll(DRAIN)
        time.sleep(rng.random() * LIFE)
        end(*alive.pop(rng.randrange(len(alive))))
    for one in alive:
        end(*one)
    return {"mode": mode, "rounds": rounds} | drain(home, mode, rng)


def end(process: BaseProcess, hear: Connection) -> None:
    """Kill a process, whatever it does just now."""
    process.kill()
    process.join()
    hear.close()


def drain(home: Path, mode: QueueMode, rng: random.Random) -> dict[str, Any]:
    """Let everything come to its end, and return figures and finds."""
    with opened(home, mode, rng) as boxes:
        deadline, calm = time.monotonic() + DRAIN, 0
        while calm < CALM and time.monotonic() < deadline:  # a look at six queues is not one look
            calm = 0 if boxes.busy else calm + 1
            time.sleep(0.02)
        found = (
            []
            if calm == CALM
            else [f"{boxes.busy} messages had not come to their end after {DRAIN} s"]
        )
    with (
        Postbox(home / "coder.db", start=False) as coder,
        Postbox(home / "user.db", start=False) as user,
    ):
        found += [str(violation) for box in (coder, user) for violation in box.file.check()]
        runs = coder._db.read(
            "SELECT seq, id, session, state, consumed, event_ids, checkpoint_at "
            "FROM _onceward_runs ORDER BY seq"
        )
        overlaps = home / "overlaps"
        found += overlaps.read_text().splitlines() if overlaps.exists() else []
        found += [*unordered(user, runs), *overdue(user, runs), *unanswered(coder)]
        states = Counter(str(row[3]) for row in runs)
    return {
        "messages": sum(len(json.loads(row[5])) for row in runs if row[4]),
        "runs": dict(states),
        "found": found[:20],
    }


def unordered(user: Postbox, runs: list[tuple[Any, ...]]) -> list[str]:
    """Return sessions whose runs did not consume what was sent, once each and in order."""
    found = []
    ours = {message_id for (message_id,) in user._db.read("SELECT id FROM _onceward_outbox")}
    for session in SESSIONS:
        sent = [
            message_id
            for (message_id,) in user._db.read(
                "SELECT id FROM _onceward_outbox WHERE session = ? ORDER BY seq", (session,)
            )
        ]
        taken = [
            each
            for row in runs
            if row[2] == session and row[4]
            for each in json.loads(row[5])
            if each in ours
        ]
        if sent != taken:
            twice = [each for each, count in Counter(taken).items() if count > 1]
            lost = [each for each in sent if each not in set(taken)]
            found.append(
                f"{session}: {len(sent)} sent, {len(taken)} taken; twice {twice[:3]}, "
                f"lost {lost[:3]}, else out of order"
            )
    return found


def overdue(user: Postbox, runs: list[tuple[Any, ...]]) -> list[str]:
    """
    Return messages of runs that must not have been heard.

    Those are said after a checkpoint by a run that is not done, or before one by a run without.
    """
    about = {row[1]: (row[3], row[6]) for row in runs}
    found = [
        f"run {row[1]} is aborted, left nothing behind, and kept its messages"
        for row in runs
        if row[3] == "aborted" and row[4] and not row[6]
    ]
    for (frame,) in user._db.read("SELECT frame FROM _onceward_inbox"):
        when, run_id = json.loads(frame)["data"]
        state, checkpoint_at = about[run_id]
        if state != "done" and (when == "after" or checkpoint_at is None):
            found.append(f"run {run_id} is {state} and was heard {when} a checkpoint")
    return found


def unanswered(coder: Postbox) -> list[str]:
    """Return tasks that do not have exactly one result."""
    tasks = [
        message_id
        for (message_id,) in coder._db.read(
            "SELECT id FROM _onceward_outbox WHERE recipient = 'worker'"
        )
    ]
    told = Counter(
        json.loads(frame)["inreplyto"]
        for (frame,) in coder._db.read(
            "SELECT frame FROM _onceward_inbox WHERE type = 'worker_result'"
        )
    )
    return [f"task {each} has {told[each]} results" for each in tasks if told[each] != 1]


def main() -> int:
    """Fight in every mode, several at a time."""
    parser = argparse.ArgumentParser(description="Kill processes that serve sessions.")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--side-by-side", type=int, default=min(4, 2 * (os.cpu_count() or 1)))
    asked = parser.parse_args()
    each = -(-asked.rounds // len(QUEUE_MODES))
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="onceward-arena-") as made,
        ThreadPoolExecutor(asked.side_by_side) as pool,
    ):
        homes = [Path(made) / mode for mode in QUEUE_MODES]
        for home in homes:
            home.mkdir()
        fights = [
            pool.submit(fight, home, mode, each, asked.seed + n)
            for n, (home, mode) in enumerate(zip(homes, QUEUE_MODES, strict=True))
        ]
        results = [fight.result() for fight in fights]
    finds = sum(len(result["found"]) for result in results)
    print(  # noqa: T201
        json.dumps(
            {
                "rounds": each * len(QUEUE_MODES),
                "seconds": round(time.monotonic() - started, 1),
                "modes": results,
            }
        )
    )
    return min(finds, 1)


if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(PRELOADED)
    sys.exit(main())
