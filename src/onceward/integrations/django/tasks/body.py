"""The body of a task's message, and the result of the task that it stands for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from django.utils.module_loading import import_string

from onceward.integrations.django.tasks.library import (
    Task,
    TaskResult,
    TaskResultStatus,
    normalize_json,
)
from onceward.message.vocabulary import Priority

Body = Mapping[str, Any]
PRIORITIES: Final[tuple[tuple[int, Priority], ...]] = (
    (60, "critical"),
    (20, "urgent"),
    (-19, "normal"),
    (-59, "low"),
    (-100, "background"),
)
"""The lowest priority of a task that has each priority of a message."""


def message_type(alias: str) -> str:
    """Return the type of the messages of a backend."""
    return f"django.task.{alias}"


def priority_of(task: Task) -> Priority:
    """Return the priority of a task's message."""
    return next(name for lowest, name in PRIORITIES if task.priority >= lowest)


def body_of(task: Task, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the body; raise TypeError or ValueError for arguments that JSON does not have."""
    run_after = task.run_after
    return {
        "task": task.module_path,
        "args": normalize_json(args),
        "kwargs": normalize_json(kwargs),
        "priority": task.priority,
        "queue": task.queue_name,
        "run_after": None if run_after is None else run_after.isoformat(),
    }


def task_of(body: Body, alias: str) -> Task:
    """
    Return the task of a body.

    Raises:
        ImportError: its function is not there any more.

    """
    found = import_string(body["task"])
    after = body["run_after"]
    return found.using(
        priority=body["priority"],
        queue_name=body["queue"],
        run_after=None if after is None else dt.datetime.fromisoformat(after),
        backend=alias,
    )


def result_of(task: Task, message_id: str, body: Body, **known: Any) -> TaskResult:
    """Return the result of a task whose fields are *known* so far."""
    fields = {
        "status": TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return TaskResult(
        task=task,
        id=message_id,
        args=list(body["args"]),
        kwargs=dict(body["kwargs"]),
        backend=task.backend,
        **{**fields, **known},
    )


def change(result: TaskResult, **fields: Any) -> None:
    """Change fields of a result in place, as Django's own backends do: it is frozen for users."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)
