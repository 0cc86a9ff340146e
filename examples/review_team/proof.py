"""
The proof: opens the team's files afresh and counts what was lost, doubled or torn apart.

    python proof.py HOME

Prints one JSON document and ends with 0 if nothing was. It knows the files only:
no process of the team need be alive, and none is believed.
"""

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles
from typing import Any

from onceward import Postbox

TASKS = "SELECT number, path, worker, sent_at, answers FROM task"
RESULTS = "SELECT task, worker, findings, attempt, at FROM result"
# A task without its message, or a message without its task: then the two were not one commit.
HALF_TASKS = """
SELECT count(*) FROM task AS t FULL JOIN (
    SELECT id FROM outbox_view WHERE type = 'review.wanted'
    UNION SELECT id FROM dead_letter_view WHERE type = 'review.wanted') AS m ON m.id = t.message_id
 WHERE m.id IS NULL OR t.number IS NULL
"""
FILES = "SELECT count(*) FROM file"
REVIEWS = "SELECT task, attempt, at FROM review"
FINDINGS = "SELECT task, count(*) FROM finding GROUP BY task"
RULES = "SELECT rule, count(*) FROM finding WHERE task <= ? GROUP BY rule"

# What to try by oneself: (question, whose file, query).
QUESTIONS = (
    ("tasks that nobody answered", "coordinator", "SELECT * FROM task WHERE answers = 0"),
    ("tasks that were answered twice", "coordinator", "SELECT task, count(*) FROM result GROUP BY task HAVING count(*) > 1"),
    ("what became of the tasks' messages", "coordinator", "SELECT type, state, count(*) FROM outbox_view GROUP BY type, state"),
    ("reviews that took effect twice", "worker-1", "SELECT task, count(*) FROM review GROUP BY task HAVING count(*) > 1"),
    ("what the worker's inbox saw", "worker-1", "SELECT state, count(*) FROM inbox_view GROUP BY state"),
)

Row = tuple[Any, ...]


def look(box: Postbox, *queries: str, given: tuple[int, ...] = ()) -> list[list[Row]]:
    """Return the rows of each query, all from one snapshot."""
    with box.begin() as tx:
        return [tx.execute(query, given or None) for query in queries]


def inspect(home: Path) -> dict[str, Any]:
    """Return the whole report."""
    boxes = {path.stem: Postbox(path, run=False) for path in sorted(home.glob("*.db"))}
    try:
        report = judge(boxes.pop("coordinator"), boxes, kills(home))
    finally:
        for box in boxes.values():
            box.close()
    return report


def judge(coordinator: Postbox, workers: dict[str, Postbox], killed: list[tuple[str, int]]) -> dict[str, Any]:
    """Hold the coordinator's file against those of its workers."""
    with coordinator:
        tasks, results, [(half,)], [(files,)] = look(coordinator, TASKS, RESULTS, HALF_TASKS, FILES)
        boxes = [coordinator, *workers.values()]
        reviews, findings = Counter[int](), Counter[int]()
        times: dict[str, list[int]] = {"coordinator": [at for *_, at in results]}
        repeated = sum(attempt > 1 for _, _, _, attempt, _ in results)
        for name, box in workers.items():
            done, found = look(box, REVIEWS, FINDINGS)
            reviews.update(task for task, _, _ in done)
            findings.update(dict(found))
            repeated += sum(attempt > 1 for _, attempt, _ in done)
            times[name] = [at for _, _, at in done]
        sent_at = {number: sent_at for number, _, _, sent_at, _ in tasks}
        numbers = [box.stats() for box in boxes]
        return {
            "files": files,
            "tasks": len(tasks),
            "results": len(results),
            **verdicts(tasks, results, reviews, findings, half),
            "violations": [{"agent": box.agent} | asdict(found) for box in boxes for found in box.check()],
            "dead_letters": sum(each["dead_letters"] for each in numbers),
            "handled_again": repeated,
            "pushed_again": sum(each["duplicates"] for each in numbers),
            "latency_ms": spread([at - sent_at[task] for task, _, _, _, at in results if task in sent_at]),
            "back_after_ms": spread(recoveries(killed, times)),
            "findings": dict(sum((Counter(dict(look(box, RULES, given=(files,))[0])) for box in workers.values()), Counter())),
        }
