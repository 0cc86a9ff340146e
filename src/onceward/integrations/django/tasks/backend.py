"""A backend of ``django.tasks`` whose tasks are messages of the agent to itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

from django.core import checks
from django.db import connections
from django.utils import timezone

from onceward import Agent
from onceward.errors import OncewardError
from onceward.integrations.django import postboxes
from onceward.integrations.django.sending import send
from onceward.integrations.django.tasks import results
from onceward.integrations.django.tasks.body import (
    body_of,
    message_type,
    priority_of,
    result_of,
)
from onceward.integrations.django.tasks.handler import TaskHandler
from onceward.integrations.django.tasks.library import (
    BaseTaskBackend,
    Task,
    TaskResult,
    task_enqueued,
)

OURS: Final = "database"
"""The option that is not one of the handler."""
NOT_OURS: Final = "TASKS[{!r}] needs a database whose ENGINE is {!r}; DATABASES[{!r}] is none"


class OncewardBackend(BaseTaskBackend):
    """
    Tasks as messages: enqueued with the rows of the transaction, and done once.

    OPTIONS: ``database``, the alias of the database (default), and options of a handler, such as
    ``attempts`` and ``retry``. Without them an exception fails the task at once; a call whose
    process died is made again. A task's rows, the messages and tasks that it sends, and its end
    are one commit.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get(OURS, "default")
        self._type = message_type(alias)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Send the message of a task, in the transaction of its database; return its result."""
        self.validate_task(task)
        body = body_of(task, args, kwargs)
        options: dict[str, Any] = {} if task.run_after is None else {"at": self._at(task)}
        message_id = send(
            postboxes.agent_name(connections[self.database]),
            body,
            using=self.database,
            type=self._type,
            priority=priority_of(task),
            ordering_key=uuid4().hex,
            **options,
        )
        with connections[self.database].cursor() as cursor:
            at = results.enqueued_at(cursor, message_id, self._type)
        result = result_of(task, message_id, body, enqueued_at=at)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """
        Return the result of a task, as the transaction of its database sees it.

        Raises:
            TaskResultDoesNotExist: it is unknown, or not kept any more (``result_retention``).

        """
        with connections[self.database].cursor() as cursor:
            return results.read(cursor, result_id, self._type, self.alias)

    def add_to(self, agent: Agent) -> None:
        """Have an agent run the tasks of this backend."""
        given = {name: value for name, value in self.options.items() if name != OURS}
        if not given.keys() & {"attempts", "retry", "retry_on", "no_retry"}:
            given["no_retry"] = (Exception,)
        run = TaskHandler(self.alias, type(self), given.get("attempts", 1))
        agent.on(self._type, keep_result=True, **given)(run.handle)

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Return what is wrong with the settings."""
        if connections.databases.get(self.database, {}).get("ENGINE") != postboxes.ENGINE:
            told = NOT_OURS.format(self.alias, postboxes.ENGINE, self.database)
            return [checks.Error(told, id="onceward.E001")]
        try:
            self.add_to(Agent("check"))
        except (OncewardError, TypeError) as error:
            told = f"TASKS[{self.alias!r}]['OPTIONS']: {error}"
            return [checks.Error(told, id="onceward.E002")]
        return []

    @staticmethod
    def _at(task: Task) -> Any:
        at = task.run_after
        return at if timezone.is_aware(at) else timezone.make_aware(at)
