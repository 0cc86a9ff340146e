"""
Case ``fleet-lanes``: what a fleet of many pairs and lanes costs in one process, without Spark.

The rival attaches each file and groups the same rows of all of them in one temporary table.

The goal is the ratio of both, which does not depend on the machine: on the machine of the published
figures a million messages by hand took 5.513 s of CPU, and 10.0 s were wanted, so the goal is
10.0 / 5.513 = 1.81. The seconds are told beside it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import apsw
from tests.bench.measure import Goal, Lap, Result, alternate, compare
from tests.bench.plan import Plan
from tests.bench.reconcile import AGE, BEGAN, FEW, ID, LOST, NUMBERS, check, fill

from onceward.fleet import Rules
from onceward.fleet import reconcile as job
from onceward.message.names import DIRECTORY

MESSAGES: Final = 1_000_000
PAIRS: Final = 400
LANES: Final = 50
"""Lanes of each pair."""
MILLION: Final = 1_000_000
ROUNDS: Final = 2
STORED: Final = "1 + i * 7919 % 97"
HANDLED: Final = f"{STORED} + 1 + i * 7907 % 499"
"""Milliseconds after its sending at which a message was stored and handled: hundreds of values."""
TURNED: Final = "ORDER BY i / 100, -(i % 100)"
"""Of two messages in a lane the later one was handled first: all lanes are out of order."""
TAKEN: Final = f"""
{NUMBERS}
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, rank, state, frame, digest,
  received_at, ended_at)
SELECT :peer, {ID}, 1 + i % 50, 's' || (i % 50), 'bench.note', 2, 'processed', :frame, :digest,
  :at + i + {STORED}, :at + i + {HANDLED} FROM n
"""
MARKED: Final = f"""
{NUMBERS}
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
SELECT :peer, {ID}, 's' || (i % 50), 'processed', :at + i + {HANDLED} FROM n {TURNED}
"""
ATTACH: Final = "ATTACH DATABASE ? AS agent"
SEEN: Final = "CREATE TEMP TABLE seen (sender, recipient, id, side, state, seq, at, ended)"
SEE: Final = (
    "INSERT INTO temp.seen SELECT sender, recipient, id, {columns} FROM agent.onceward_{view}"
)
VIEWS: Final = {
    "near": {"outbox": "1, state, seq, created_at, ended_at"},
    "far": {
        "inbox": "2, state, seq, received_at, ended_at",
        "processed_messages": "3, outcome, seq, processed_at, NULL",
    },
}
"""What is read of each file of a pair."""
JUDGED: Final = """
SELECT verdict, count(*)
  FROM (SELECT CASE WHEN max(side) = 1 THEN 'lost' ELSE 'delivered_once' END AS verdict,
               max(at) - min(at) AS span, max(seq)
          FROM temp.seen GROUP BY sender, recipient, id)
 GROUP BY verdict
"""
GOALS: Final = (Goal("times", at_most=1.81),)


def lanes(plan: Plan) -> Iterator[Result]:
    """Reconcile pairs of files whose lanes are all out of order; count the processor's seconds."""
    size = plan.messages(MESSAGES, per_second=100_000)
    pairs = PAIRS if plan.seconds is None else FEW
    folder = fill(plan.room("lanes"), pairs, max(LOST + 1, size // pairs), (TAKEN, MARKED))
    numbers = count()
    laps = alternate(
        lambda: ours(folder, plan.folder / f"out-{next(numbers)}"),
        lambda: by_hand(folder),
        rounds=min(ROUNDS, plan.rounds),
    )
    more = {
        "cpu_s": MILLION / max(one.rate for one in laps.ours),
        "raw_cpu_s": MILLION / max(one.rate for one in laps.raw),
        "times": 1 / laps.ratio,
        "messages": laps.ours[0].messages,
        "senders": pairs,
        "lanes": pairs * LANES,
    }
    yield compare("fleet-lanes", laps, durability="none", goals=GOALS, files=2 * pairs, **more)


def ours(folder: Path, out: Path) -> Lap:
    """Reconcile as the command does; a lap's seconds are those of the processor."""
    began = time.process_time()
    report = job(folder, out=out, rules=Rules(now=BEGAN + AGE * 24))
    spent = time.process_time() - began
    check(report.verdicts, report.files)
    return Lap(report.messages, spent)


def by_hand(folder: Path) -> Lap:
    """Group the rows of all files by message in one temporary table, and count two verdicts."""
    began = time.process_time()
    paths = sorted(path for path in folder.glob("*.db") if path.name != DIRECTORY)
    con = apsw.Connection("")
    con.execute("PRAGMA temp_store = FILE")
    con.execute(SEEN)
    for path in paths:
        con.execute(ATTACH, (str(path),))
        con.execute("BEGIN")
        for view, columns in VIEWS[path.stem.partition("-")[0]].items():
            con.execute(SEE.format(view=view, columns=columns))
        con.execute("COMMIT")
        con.execute("DETACH DATABASE agent")
    verdicts = Counter({str(name): int(str(found)) for name, found in con.execute(JUDGED)})
    con.close()
    spent = time.process_time() - began
    check(verdicts, len(paths))
    return Lap(verdicts.total(), spent)
