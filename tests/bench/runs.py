"""
Sessions with runs: a backlog of many sessions through two modes.

It also measures how soon an idle session begins its run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.crew import LONGEST, Link, hear, over, running, say_when, until
from tests.bench.mail import note
from tests.bench.measure import Goal, Result, quantile_ms
from tests.bench.plan import Plan
from tests.bench.raw import connect

from onceward import Agent, Postbox, Run, Tuning
from onceward.message.vocabulary import QueueMode

SESSIONS: Final = 100
EACH: Final = 100
ROUNDS: Final = 60
WARM: Final = 3
REST: Final = 0.02
P50_MS: Final = 10.0
COLLECT: Final = (Goal("ratio", at_least=0.2),)
TABLES: Final = """
CREATE TABLE message (seq INTEGER PRIMARY KEY, session TEXT NOT NULL, run INTEGER,
  state INTEGER NOT NULL DEFAULT 0, body TEXT NOT NULL);
CREATE INDEX message_waiting ON message (session, seq) WHERE state = 0;
CREATE TABLE run (seq INTEGER PRIMARY KEY, session TEXT NOT NULL, messages INTEGER NOT NULL,
  ended INTEGER NOT NULL);
"""
FILL: Final = "INSERT INTO message (session, body) VALUES (?, ?)"
TAKE: Final = "SELECT seq, body FROM message WHERE session = ? AND state = 0 ORDER BY seq LIMIT ?"
BEGUN: Final = "INSERT INTO run (session, messages, ended) VALUES (?, ?, 0)"
ENDED: Final = "UPDATE run SET ended = 1 WHERE seq = ?"
DONE: Final = "UPDATE message SET state = 1, run = ? WHERE seq = ?"


def runs(plan: Plan) -> Iterator[Result]:
    """
    Run a backlog through ``collect`` and ``followup``, against the same by hand, in turns.

    Then send one message at a time to idle sessions.
    """
    sessions = plan.scaled(SESSIONS, per_second=40)
    each = plan.scaled(EACH, per_second=40)
    for mode in ("collect", "followup"):
        pairs = [
            (_ours(plan, mode, lap, sessions, each), _by_hand(plan, mode, lap, sessions, each))
            for lap in range(min(3, plan.rounds))
        ]
        ours, raw = median(one for one, _ in pairs), median(other for _, other in pairs)
        yield Result(
            case=f"runs-{mode}",
            durability="safe",
            rate=ours,
            raw_rate=raw,
            ratio=median(one / other for one, other in pairs),
            more={"sessions": sessions, "messages": sessions * each},
            goals=COLLECT if mode == "collect" else (),
        )
    yield latency(plan)


def _ours(plan: Plan, mode: QueueMode, lap: int, sessions: int, each: int) -> float:
    """Return the messages per second from opening a backlog to its last processed mark."""
    home = plan.room(f"ours-{mode}-{lap}")
    agent = Agent("coder")
    agent.runs(mode=mode, debounce=0, cap=each)(_nothing)
    total = sessions * each
    with Postbox(home / "user.db", agent="user", start=False) as user:
        Postbox(home / "coder.db", agent="coder", start=False).close()
        for number in range(sessions):
            user.session(f"s{number}").send_many([("coder", note())] * each)
        user.run_until_idle()
        started = time.perf_counter()
        with Postbox(home / "coder.db", agent=agent) as box:
            until(lambda: box.file.stats()["processed"] >= total)
            return total / (time.perf_counter() - started)


def _nothing(run: Run) -> None:
    del run


def _by_hand(plan: Plan, mode: str, lap: int, sessions: int, each: int) -> float:
    """
    Return the rate of one thread that commits each run's end with the next beginning.

    It reads the messages of each run, and does no more than that.
    """
    total, size = sessions * each, each if mode == "collect" else 1
    with closing(connect(plan.room(f"raw-{mode}-{lap}") / "raw.db", "safe", schema=TABLES)) as con:
        with con:
            text = note().model_dump_json()
            names = [f"s{number}" for number in range(sessions)]
            con.executemany(FILL, [(name, text) for name in names for _ in range(each)])
        started = time.perf_counter()
        for number in range(sessions):
            while rows := con.execute(TAKE, (f"s{number}", size)).fetchall():
                con.execute("BEGIN IMMEDIATE")
                con.execute(BEGUN, (f"s{number}", len(rows)))
                run = con.last_insert_rowid()
                for _, body in rows:
                    json.loads(str(body))
                con.executemany(DONE, [(run, seq) for seq, _ in rows])
                con.execute(ENDED, (run,))
                con.execute("COMMIT")
        return total / (time.perf_counter() - started)


def latency(plan: Plan) -> Result:
    """
    Measure from the call of send to the first line of the handler in another process.

    That process has nothing else to do.
    """
    rounds = plan.scaled(ROUNDS, per_second=100)
    home = plan.room("idle")
    with (
        running(serve, home) as link,
        Postbox(home / "user.db", agent="user", tuning=Tuning(poll_interval=0)) as user,
    ):
        plan.settle()
        waits = [_once(user, link) for _ in range(rounds + WARM)][WARM:]
    ordered = sorted(waits)
    return Result(
        case="runs-begin",
        durability="safe",
        p50_ms=quantile_ms(ordered, 0.5),
        p99_ms=quantile_ms(ordered, 0.99),
        more={"rounds": len(waits)},
        goals=(Goal("p50_ms", at_most=P50_MS),),
    )


def _once(user: Postbox, link: Link) -> float:
    time.sleep(REST)
    before = time.monotonic_ns()
    user.send("coder", note())
    return (int(hear(link)) - before) / 1e9


def serve(link: Link, home: Path) -> None:
    """Begin a run for whatever comes and tell when; the body of the other process."""
    agent = Agent("coder")

    @agent.runs(mode="collect", debounce=0)
    def turn(run: Run) -> None:
        del run
        say_when(link)

    with Postbox(home / "coder.db", agent=agent, tuning=Tuning(poll_interval=0)):
        link.send("ready")
        over(link, LONGEST)
