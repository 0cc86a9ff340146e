"""The backend of onceward in the two places that Django's own test files name."""

from __future__ import annotations

from time import sleep
from typing import Any

from django.db import connections

from onceward import Agent, Postbox
from onceward.integrations.django import postboxes
from onceward.integrations.django.tasks import OncewardBackend
from onceward.integrations.django.tasks.library import TaskResult


class Waiting(OncewardBackend):
    """Keeps tasks that no worker runs, as DummyBackend does, and lists them."""

    def __init__(self, alias: str, params: Any) -> None:
        super().__init__(alias, params)
        self._ids: list[str] = []

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> TaskResult:
        """Store a task, and keep its id."""
        result = super().enqueue(task, args, kwargs)
        self._ids.append(result.id)
        return result

    @property
    def results(self) -> list[TaskResult]:
        """The tasks since the last ``clear``, as the file has them."""
        return [self.get_result(each) for each in self._ids]

    def clear(self) -> None:
        """Leave the tasks so far out of ``results``."""
        self._ids.clear()


class Done(OncewardBackend):
    """Returns from ``enqueue`` when a worker has run the task, as ImmediateBackend does."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> TaskResult:
        """Store a task, start a worker, and return the result when the task has ended."""
        result = super().enqueue(task, args, kwargs)
        agent = Agent("suite")
        self.add_to(agent)
        with Postbox(postboxes.path_of(connections[self.database]), agent=agent):
            while not result.is_finished:
                sleep(0.001)
                result.refresh()
        return result
