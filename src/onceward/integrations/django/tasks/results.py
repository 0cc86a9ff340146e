"""Read how the message of a task stands, in the transaction of the caller."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from onceward.integrations.django.tasks.body import change, result_of, task_of
from onceward.integrations.django.tasks.library import (
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from onceward.integrations.django.times import moment

# Of several rows of one message the first counts: at its recipient, among the dead, at its sender.
MESSAGE: Final = """
SELECT 1 AS place, state, attempts, received_at, ended_at, body
  FROM onceward_inbox WHERE id = %(id)s AND type = %(type)s
 UNION ALL
SELECT 2, 'dead', attempts, created_at, dead_at, body
  FROM onceward_dead_letters WHERE id = %(id)s AND type = %(type)s
 UNION ALL
SELECT 3, state, 0, created_at, NULL, body
  FROM onceward_outbox WHERE id = %(id)s AND type = %(type)s
 ORDER BY place LIMIT 1
"""
VALUE: Final = "SELECT body FROM onceward_results WHERE message_id = %(id)s"
FAILURES: Final = """
SELECT worker, error, trace, coalesce(took, 0), failed_at FROM onceward_failed_attempts
 WHERE message_id = %(id)s ORDER BY seq
"""
STATUS: Final = {
    "pending": TaskResultStatus.READY,
    "sent": TaskResultStatus.READY,
    "processing": TaskResultStatus.RUNNING,
    "processed": TaskResultStatus.SUCCESSFUL,
}
"""By the state of the message; all others have failed."""
UNKNOWN: Final = "unknown"
"""Name of a worker that died in the call."""
EXITED: Final = "RuntimeError: the handler raised SystemExit("
"""How the error of a task that raised SystemExit begins."""
CAUSED: Final = "\nThe above exception was the direct cause"
"""The text of a traceback between SystemExit and the error that it caused."""


def enqueued_at(cursor: Any, message_id: str, message_type: str) -> Any:
    """Return when the message of a task was stored, as ``read`` does."""
    row = cursor.execute(MESSAGE, {"id": message_id, "type": message_type}).fetchone()
    return moment(row[3])


class Failure(NamedTuple):
    """One failed call, as stored."""

    worker: str
    error: str
    trace: str
    took: float
    failed_at: int


def read(cursor: Any, message_id: str, message_type: str, alias: str) -> TaskResult:
    """
    Return the result of a task.

    Raises:
        TaskResultDoesNotExist: there is no such message, or its value is not kept any more.

    """
    asked = {"id": str(message_id), "type": message_type}
    found = cursor.execute(MESSAGE, asked).fetchone()
    if found is None:
        raise TaskResultDoesNotExist(message_id)
    _, state, attempts, at, ended_at, text = found
    body = json.loads(text)
    try:
        task = task_of(body, alias)
    except ImportError as error:
        raise TaskResultDoesNotExist(message_id) from error
    result = result_of(task, message_id, body, enqueued_at=moment(at))
    change(result, status=STATUS.get(state, TaskResultStatus.FAILED), finished_at=moment(ended_at))
    failures = [_as_raised(Failure(*row)) for row in cursor.execute(FAILURES, asked).fetchall()]
    _add_calls(result, failures, attempts)
    if state == "processed":
        _add_value(result, cursor.execute(VALUE, asked).fetchone())
    return result


def _as_raised(failure: Failure) -> Failure:
    """Return a failure with the exception of the task, if that was SystemExit."""
    if not failure.error.startswith(EXITED):
        return failure
    return failure._replace(error="SystemExit", trace=failure.trace.partition(CAUSED)[0])


def _add_calls(result: TaskResult, failures: list[Failure], attempts: int) -> None:
    """Add what is known of each call of the task."""
    result.errors.extend(
        TaskError(exception_class_path=_path(e), traceback=e.trace) for e in failures
    )
    workers = [each.worker for each in failures]
    result.worker_ids.extend([*workers, *[UNKNOWN] * (attempts - len(workers))])
    if failures:
        first, last = failures[0], failures[-1]
        change(
            result,
            started_at=_began(first, result.enqueued_at),
            last_attempted_at=_began(last, result.enqueued_at),
        )


def _began(failure: Failure, earliest: Any) -> Any:
    """Return when a call began; it failed at the moment of a transaction, which may be earlier."""
    return max(earliest, moment(failure.failed_at - int(failure.took * 1000)))


def _add_value(result: TaskResult, row: tuple[str] | None) -> None:
    if row is None:
        raise TaskResultDoesNotExist(result.id)
    kept = json.loads(row[0])
    began = moment(kept["began_at"])
    workers = [*result.worker_ids[:-1], kept["worker"]]
    change(
        result,
        _return_value=kept["value"],
        worker_ids=workers,
        last_attempted_at=began,
        started_at=result.started_at or began,
    )


def _path(failure: Failure) -> str:
    """Return the path of an exception's class, which its traceback names before the text."""
    name = re.escape(failure.error.partition(":")[0])
    named = re.findall(rf"^([\w.]*\b{name})(?::|$)", failure.trace, re.MULTILINE)
    found = named[-1] if named else "Exception"
    return found if "." in found else f"builtins.{found}"
