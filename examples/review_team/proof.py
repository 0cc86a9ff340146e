"""
Open the team's files and count what was lost, doubled or torn.

    python proof.py HOME

Prints one JSON document and ends with 0 if nothing was. It reads files only: no
process of the team need be alive.
"""

import json
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onceward import Postbox

TASKS = "SELECT number, sent_at, answers, message_id FROM task"
RESULTS = "SELECT task, worker, findings, attempt, at FROM result"
MESSAGES = """
SELECT id FROM onceward_outbox WHERE type = 'review.wanted'
UNION SELECT id FROM onceward_dead_letters WHERE type = 'review.wanted'
"""
FILES = "SELECT count(*) FROM file"
REVIEWS = "SELECT task, attempt, at FROM review"
FINDINGS = "SELECT task, count(*) FROM finding GROUP BY task"
RULES = "SELECT rule, count(*) FROM finding WHERE task <= ? GROUP BY rule"

QUESTIONS = (
    ("coordinator", "tasks without an answer", "SELECT * FROM task WHERE answers = 0"),
    (
        "coordinator",
        "tasks answered twice",
        "SELECT task FROM result GROUP BY task HAVING count(*) > 1",
    ),
    (
        "coordinator",
        "states of its messages",
        "SELECT type, state, count(*) FROM onceward_outbox GROUP BY type, state",
    ),
    ("worker-1", "reviews done twice", "SELECT task FROM review GROUP BY task HAVING count(*) > 1"),
    (
        "worker-1",
        "what it received",
        "SELECT type, state, count(*) FROM onceward_inbox GROUP BY type, state",
    ),
    ("worker-2", "all its numbers", "SELECT * FROM onceward_stats"),
)
"""Queries to try: agent of the file, question, SQL."""


@dataclass
class Evidence:
    """The contents of the files."""

    files: int = 0
    tasks: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    """Per task: when it was sent, how many answers its row counts, the id of its message."""
    results: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    """Task, worker, findings, attempt and time of every answer that took effect."""
    messages: set[str] = field(default_factory=set)
    """The ids of the tasks' messages, as the coordinator's outbox has them."""
    reviews: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Task, worker, attempt and time of every review that took effect."""
    findings: Counter[int] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    """Findings by task, and by rule in the first wave."""
    violations: list[dict[str, str]] = field(default_factory=list)
    stats: Counter[str] = field(default_factory=Counter)

    def hear(self, box: Postbox) -> None:
        """Add one file: its tables in one snapshot, its invariants, its numbers."""
        with box.begin() as tx:
            if box.agent == "coordinator":
                [(self.files,)] = tx.execute(FILES)
                self.tasks = {
                    number: (sent_at, answers, sent)
                    for number, sent_at, answers, sent in tx.execute(TASKS)
                }
                self.results = [(t, w, n, a, at) for t, w, n, a, at in tx.execute(RESULTS)]
                self.messages = {str(message_id) for (message_id,) in tx.execute(MESSAGES)}
            else:
                self.reviews += [
                    (task, box.agent, attempt, at) for task, attempt, at in tx.execute(REVIEWS)
                ]
                self.findings.update(dict(tx.execute(FINDINGS)))
                self.rules.update(dict(tx.execute(RULES, (self.files,))))
        self.violations += [{"agent": box.agent} | asdict(found) for found in box.file.check()]
        self.stats.update(box.file.stats())


def lost(seen: Evidence) -> set[int]:
    """Return the tasks without an answer."""
    return set(seen.tasks) - {task for task, *_ in seen.results}


def doubled(seen: Evidence) -> set[int]:
    """Return the tasks of which anything took effect twice, at the worker or at the coordinator."""
    answers, reviews = Counter(r[0] for r in seen.results), Counter(r[0] for r in seen.reviews)
    counted = {task for task, (_, times, _) in seen.tasks.items() if times > 1}
    return counted | {task for times in (answers, reviews) for task, n in times.items() if n > 1}


def torn(seen: Evidence) -> list[str]:
    """Return where two things that are one commit are not both there."""
    sent = {message_id: task for task, (_, _, message_id) in seen.tasks.items()}
    reviewed = {(task, worker) for task, worker, *_ in seen.reviews}
    return [
        *(f"task {sent[i]} has no message" for i in sent.keys() - seen.messages),
        *(f"message {i} has no task" for i in seen.messages - sent.keys()),
        *(
            f"answer to task {task}, which does not exist"
            for task, *_ in seen.results
            if task not in seen.tasks
        ),
        *(
            f"task {t} is answered by {w}, which did not review it"
            for t, w, *_ in seen.results
            if (t, w) not in reviewed
        ),
        *(
            f"task {t}: {n} findings told, {seen.findings[t]} kept"
            for t, _, n, *_ in seen.results
            if n != seen.findings[t]
        ),
        *(
            f"task {t}: counted {n} answers"
            for t, (_, n, _) in seen.tasks.items()
            if n == 0 and t not in lost(seen)
        ),
    ]


def recoveries(seen: Evidence, kills: Iterable[tuple[str, int]]) -> list[int]:
    """Return for every kill how long it took until that agent's work took effect again."""
    moments: dict[str, list[int]] = {"coordinator": sorted(at for *_, at in seen.results)}
    for _, worker, _, at in sorted(seen.reviews, key=lambda review: review[-1]):
        moments.setdefault(worker, []).append(at)
    found = []
    for agent, killed_at in kills:
        times = moments.get(agent, [])
        after = times[bisect_right(times, killed_at) :]
        found += [after[0] - killed_at] if after else []
    return found


def spread(values: list[int]) -> dict[str, int]:
    """Return the middle, the slow end and the slowest of some milliseconds."""
    ordered = sorted(values) or [0]
    last = len(ordered) - 1
    return {"p50": ordered[last // 2], "p99": ordered[last - last // 100], "max": ordered[last]}


def report(seen: Evidence, kills: list[tuple[str, int]]) -> dict[str, Any]:
    """Return the report of a run."""
    wrong = {
        "lost": len(lost(seen)),
        "duplicates": len(doubled(seen)),
        "torn": torn(seen),
        "violations": seen.violations,
    }
    return {
        "ok": bool(seen.tasks) and not any(wrong.values()),
        "files": seen.files,
        "tasks": len(seen.tasks),
        "results": len(seen.results),
        **wrong,
        "dead_letters": seen.stats["dead_letters"],
        "kills": dict(Counter(agent for agent, _ in kills)),
        "handled_again": sum(r[2] > 1 for r in seen.reviews) + sum(r[3] > 1 for r in seen.results),
        "pushed_again": seen.stats["duplicates"],
        "latency_ms": spread(
            [at - seen.tasks[task][0] for task, *_, at in seen.results if task in seen.tasks]
        ),
        "back_after_ms": spread(recoveries(seen, kills)),
        "findings": dict(seen.rules.most_common()),
    }


def main(home: Path) -> int:
    """Print the report; return 0 if nothing was lost, doubled or torn."""
    seen, log = Evidence(), home / "kills.json"
    files = sorted(path for path in home.glob("*.db") if path.name != "directory.db")
    for path in files:  # the coordinator's comes first: workers ask how many files there are
        with Postbox(path, start=False) as box:
            seen.hear(box)
    kills = (
        [(agent, at) for agent, at in json.loads(log.read_text(encoding="utf-8"))]
        if log.exists()
        else []
    )
    questions = [{"agent": agent, "question": asked, "sql": sql} for agent, asked, sql in QUESTIONS]
    found = report(seen, kills) | {"home": str(home), "questions": questions}
    json.dump(found, sys.stdout)
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
