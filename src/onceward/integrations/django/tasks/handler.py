"""Run a task in the handler of its message."""

from __future__ import annotations

import os
import platform
from traceback import format_exception
from typing import Any

from onceward import Context
from onceward.integrations.django.tasks.body import (
    Body,
    change,
    result_of,
    task_of,
)
from onceward.integrations.django.tasks.library import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from onceward.integrations.django.times import moment
from onceward.message.clock import SystemClock


class TaskHandler:
    """Runs the tasks of one backend."""

    def __init__(self, alias: str, sender: type[Any], attempts: int) -> None:
        self._alias, self._sender, self._attempts = alias, sender, attempts

    def handle(self, body: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """Call the function of a task; return its value, which is kept with the message's end."""
        began_at, worker = SystemClock().now(), worker_name()
        task, began = task_of(body, self._alias), moment(began_at)
        known = {
            "started_at": began,
            "last_attempted_at": began,
            "status": TaskResultStatus.RUNNING,
        }
        result = result_of(task, ctx.message.id, body, **known)
        result.worker_ids.extend([worker] * ctx.message.attempt)
        task_started.send(self._sender, task_result=result)
        try:
            value = normalize_json(_call(task, result, body))
        except (Exception, SystemExit) as error:
            self._tell_failed(result, error)
            raise
        now = moment(SystemClock().now())
        change(result, status=TaskResultStatus.SUCCESSFUL, finished_at=now, _return_value=value)
        task_finished.send(self._sender, task_result=result)
        return {"value": value, "began_at": began_at, "worker": worker}

    def _tell_failed(self, result: TaskResult, error: BaseException) -> None:
        """Tell receivers of the signal of a failure, unless the task is called again."""
        if result.attempts < self._attempts:
            return
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        trace = "".join(format_exception(error))
        result.errors.append(TaskError(exception_class_path=path, traceback=trace))
        now = moment(SystemClock().now())
        change(result, status=TaskResultStatus.FAILED, finished_at=now)
        task_finished.send(self._sender, task_result=result)


def _call(task: Task, result: TaskResult, body: Body) -> Any:
    first = [TaskContext(task_result=result)] if task.takes_context else []
    return task.call(*first, *body["args"], **body["kwargs"])


def worker_name() -> str:
    """Return the name of this process as a worker of tasks."""
    return f"{platform.node()}:{os.getpid()}"
