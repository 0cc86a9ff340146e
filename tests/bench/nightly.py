"""
Cost of a reconciliation that keeps its state, by history and by day.

``python -m tests.bench.nightly HISTORY DAY PAIRS`` makes pairs of files with so many messages in
all, and prints the CPU seconds of the first run, of two nights, and of one without any message.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import apsw
from tests.bench.mail import note
from tests.bench.reconcile import AGE, BEGAN, HEADER, NUMBERS, fill

from onceward.fleet import Rules, reconcile
from onceward.message.frame import digest

ID: Final = "printf('%08x-0000-7000-8000-000000000000', i + :base)"
GROWN: Final = {
    "near": (
        f"""
{NUMBERS}
INSERT INTO _onceward_outbox (id, recipient, session, lane, type, state, sent_at, ended_at, frame,
  created_at)
SELECT {ID}, :peer, 's' || (i % 50), 's' || (i % 50), 'bench.note', 'acked', :at + i + 5,
  :at + i + 9, :frame, :at + i FROM n
""",
    ),
    "far": (
        f"""
{NUMBERS}
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, rank, state, frame, digest,
  received_at, ended_at)
SELECT :peer, {ID}, 1 + i % 50, 's' || (i % 50), 'bench.note', 2, 'processed', :frame, :digest,
  :at + i + 5, :at + i + 7 FROM n
""",
        f"""
{NUMBERS}
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
SELECT :peer, {ID}, 's' || (i % 50), 'processed', :at + i + 7 FROM n
""",
    ),
}
"""Statements that add the messages of a day to the files of a pair."""
APART: Final = 10_000_000
"""Numbers between the ids of two days."""
DAY: Final = 24 * AGE


def main(history: int, day: int, pairs: int) -> None:
    """Measure in a temporary folder, and print one line for each run."""
    with tempfile.TemporaryDirectory(prefix="onceward-nightly-") as folder:
        agents = Path(folder, "agents")
        agents.mkdir()
        fill(agents, pairs, history // pairs)
        _night(Path(folder), "first run", 0)
        for number in (1, 2):
            for pair in range(pairs):
                grow(agents, pair, day // pairs, number)
            _night(Path(folder), f"night {number}", number)
        _night(Path(folder), "no message", 3)


def _night(folder: Path, name: str, number: int) -> None:
    began, rules = time.process_time(), Rules(now=BEGAN + (number + 1) * DAY)
    report = reconcile(
        folder / "agents", out=folder / "out", rules=rules, state=folder / "state.db"
    )
    spent = time.process_time() - began
    print(f"{name}: {report.messages:,} messages, {spent:.2f} CPU s")  # noqa: T201 - its result


def grow(agents: Path, pair: int, count: int, number: int) -> None:
    """Add a day's messages to the files of a pair."""
    frame = HEADER % note().model_dump_json()
    known = {"count": count, "base": number * APART, "at": BEGAN + number * DAY, "frame": frame}
    known |= {"digest": digest(frame)}
    for side, other in (("near", "far"), ("far", "near")):
        con = apsw.Connection(str(agents / f"{side}-{pair}.db"))
        for sql in GROWN[side]:
            con.execute(sql, known | {"peer": f"{other}-{pair}"})
        con.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
