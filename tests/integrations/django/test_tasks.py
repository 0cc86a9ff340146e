"""The backend of django.tasks keeps the contract of its documentation, in commits of the rows."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Customer
from tests.waiting import until

from onceward import Postbox
from onceward.errors import InvalidArgument
from onceward.integrations.django import postbox, worker
from onceward.integrations.django.tasks.library import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from onceward.integrations.django.testing import run_until_idle
from onceward.testing import Controls, ManualClock

try:
    from django.tasks.exceptions import TaskResultMismatch
except ImportError:
    from django_tasks.exceptions import TaskResultMismatch

BACKEND = settings.TASKS["default"]
FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY
SUCCESSFUL = TaskResultStatus.SUCCESSFUL


class Stop(Exception):
    """Ends a block."""


@pytest.fixture(autouse=True)
def _site(box: Postbox) -> Iterator[None]:
    """Tasks go to the file of the test."""
    tasks.order.clear()
    yield
    worker._agents.clear()


def work(box: Postbox, **options: Any) -> None:
    """Run all tasks that are due."""
    worker._agents.clear()
    agent = worker.agent_of("default")
    with Postbox(box.file.path, agent=agent, start=False, workers=1, **options) as running:
        running.run_until_idle()


def names() -> list[str]:
    """Return the names of the customers."""
    return list(Customer.objects.order_by("name").values_list("name", flat=True))


def test_a_task_is_run_with_its_arguments(box: Postbox) -> None:
    """Its result says what it returned, when and by which worker."""
    result = tasks.greet.enqueue("ada", times=2)
    before = result.status, result.is_finished, result.return_value if result.is_finished else None
    work(box)
    result.refresh()

    assert (READY, False, None) == before
    assert (SUCCESSFUL, {"hello": ["ada", "ada"]}) == (result.status, result.return_value)
    assert (["ada"], {"times": 2}, "default") == (result.args, result.kwargs, result.backend)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert (1, 1, []) == (result.attempts, len(result.worker_ids), result.errors)
    assert ["ada"] == names()


def test_the_value_of_a_waiting_task_is_refused(box: Postbox) -> None:
    """Only a task that has succeeded has a value."""
    result = tasks.note.enqueue("a")

    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_a_task_is_enqueued_in_the_transaction(box: Postbox) -> None:
    """It is found there at once, by others after the commit, and not at all after a rollback."""
    with transaction.atomic():
        kept = tasks.note.enqueue("kept")
        inside = tasks.note.get_result(kept.id).status
    with pytest.raises(Stop), transaction.atomic():
        undone = tasks.note.enqueue("undone")
        raise Stop
    work(box)

    assert (READY, ["kept"]) == (inside, tasks.order)
    with pytest.raises(TaskResultDoesNotExist):
        tasks.note.get_result(undone.id)


def test_tasks_run_by_priority_and_then_in_order(box: Postbox) -> None:
    """The five priorities of messages share the range of a task's; each result has its own."""
    for word, priority in (("b", 0), ("e", -100), ("a1", 90), ("a2", 100), ("c", -50)):
        result = tasks.note.using(priority=priority).enqueue(word)
    work(box)

    assert ["a1", "a2", "b", "c", "e"] == tasks.order
    assert -50 == tasks.note.get_result(result.id).task.priority


def test_a_deferred_task_waits(box: Postbox) -> None:
    """``run_after`` takes a moment; until then the task is ready, and not run."""
    at = timezone.now() + dt.timedelta(hours=1)
    later = tasks.note.using(run_after=at).enqueue("later")
    tasks.note.enqueue("now")
    work(box)
    waiting = later.status, list(tasks.order), tasks.note.get_result(later.id).task.run_after
    box.close()
    work(box, testing=Controls(clock=ManualClock(int(at.timestamp() * 1000) + 1)))
    later.refresh()

    assert (READY, ["now"], at) == waiting
    assert (SUCCESSFUL, ["now", "later"]) == (later.status, tasks.order)


def test_queues_are_those_of_the_settings(box: Postbox) -> None:
    """A task of another queue is refused when it is defined or changed."""
    result = tasks.post.enqueue("mailed")
    work(box)
    result.refresh()

    assert (["mailed"], "mail") == (tasks.order, result.task.queue_name)
    with pytest.raises(InvalidTask):
        tasks.post.using(queue_name="fax")


def test_a_task_that_exits_has_failed_with_its_exception(box: Postbox) -> None:
    """Receivers of the signal hear it, and the result has the class and the end of the trace."""
    told: list[Any] = []
    task_finished.connect(lambda task_result, **_: told.append(task_result.status), weak=False)
    result = tasks.leave.enqueue()
    worker._agents.clear()
    with Postbox(box.file.path, agent=worker.agent_of("default")):
        until(lambda: result.refresh() or result.is_finished)
    [error] = result.errors

    assert (FAILED, [FAILED], SystemExit) == (result.status, told, error.exception_class)
    assert error.traceback.endswith("\nSystemExit: closed\n")


def test_a_failed_task_leaves_nothing_but_its_error(box: Postbox) -> None:
    """Its rows and its messages are undone; the class and the traceback are kept."""
    result = tasks.fail.enqueue("ada")
    work(box)
    result.refresh()
    [error] = result.errors

    assert (FAILED, 1, []) == (result.status, result.attempts, [*names(), *tasks.order])
    assert ValueError is error.exception_class
    assert "raise ValueError(name)" in error.traceback
    assert result.started_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_task_may_be_tried_again(box: Postbox) -> None:
    """With ``attempts`` a failed task is ready again, and its context counts."""
    options = {"OPTIONS": {"attempts": 3, "retry": "0s ±0%"}}
    with override_settings(TASKS={"default": {**BACKEND, **options}}):
        result = tasks.fail.enqueue("ada")
        for _ in range(4):
            work(box)
        result.refresh()

        assert (FAILED, 3, 3) == (result.status, result.attempts, len(result.errors))


def test_a_task_is_told_of_itself(box: Postbox) -> None:
    """``takes_context`` gives the attempt and the result."""
    result = tasks.tell.using(priority=7).enqueue("word")
    work(box)
    result.refresh()

    assert ["word", 1, result.id, 7] == result.return_value


def test_coroutines_are_tasks(box: Postbox) -> None:
    """The ORM of an async task is in the transaction of its end, as well."""
    result = tasks.look.enqueue("ada")
    work(box)
    result.refresh()

    assert (1, ["ada"]) == (result.return_value, names())


def test_async_callers_have_the_same(box: Postbox) -> None:
    """``aenqueue``, ``aget_result`` and ``arefresh`` do as their sync twins."""

    async def main() -> tuple[Any, Any]:
        result = await tasks.greet.aenqueue("ada")
        found = await tasks.greet.aget_result(result.id)
        await asyncio.to_thread(work, box)
        await result.arefresh()
        return found.status, result.return_value

    assert (READY, {"hello": ["ada"]}) == asyncio.run(main())


def test_a_task_enqueues_another_in_its_commit(box: Postbox) -> None:
    """The next task exists if and only if the first one has ended."""
    first = tasks.chain.enqueue("ada")
    work(box)
    first.refresh()
    work(box)

    assert (["ada"], SUCCESSFUL) == (
        tasks.order,
        tasks.note.get_result(first.return_value).status,
    )


def test_values_must_be_json(box: Postbox) -> None:
    """Arguments are refused by the caller; a value that does not fit fails the task."""
    with pytest.raises(TypeError):
        tasks.note.enqueue(object())
    result = tasks.unfit.enqueue()
    work(box)
    result.refresh()

    assert (FAILED, TypeError) == (result.status, result.errors[0].exception_class)


def test_results_belong_to_their_tasks(box: Postbox) -> None:
    """The result of another task is a mismatch; unknown ids and messages are none."""
    result = tasks.note.enqueue("a")
    other = box.send("app", 1, type="welcome")

    with pytest.raises(TaskResultMismatch):
        tasks.greet.get_result(result.id)
    for unknown in (other, "7", "not an id"):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.note.get_result(unknown)


def test_receivers_are_told(box: Postbox) -> None:
    """The signals of django.tasks are sent: when it is enqueued, started and finished."""
    told: list[Any] = []

    def receive(signal: Any, task_result: Any, **_: Any) -> None:
        told.append((signal, task_result.task.name, task_result.status))

    signals = (task_enqueued, task_started, task_finished)
    for each in signals:
        each.connect(receive)
    try:
        tasks.note.enqueue("a")
        tasks.fail.enqueue("b")
        work(box)
    finally:
        for each in signals:
            each.disconnect(receive)

    running = TaskResultStatus.RUNNING
    assert [
        (task_enqueued, "note", READY),
        (task_enqueued, "fail", READY),
        (task_started, "note", running),
        (task_finished, "note", SUCCESSFUL),
        (task_started, "fail", running),
        (task_enqueued, "note", READY),
        (task_finished, "fail", FAILED),
    ] == told


def test_the_backend_says_what_it_does(box: Postbox) -> None:
    """Its flags are true, and ``check`` finds options that do not fit."""
    backend = task_backends["default"]
    flags = ("defer", "async_task", "get_result", "priority")

    assert [True] * 4 == [getattr(backend, f"supports_{name}") for name in flags]
    assert [] == run_checks()
    for options, text in (({"attempt": 3}, "attempt"), ({"database": "x"}, "ENGINE")):
        with override_settings(TASKS={"default": {**BACKEND, "OPTIONS": options}}):
            [found] = task_backends["default"].check()
            assert text in found.msg


def test_a_value_is_kept_for_its_time(box: Postbox) -> None:
    """After ``result_retention`` there is no result any more."""
    result = tasks.note.enqueue("a")
    work(box, result_retention=0)

    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    assert connection.in_atomic_block is False


def test_a_test_runs_what_is_due(box: Postbox) -> None:
    """``run_until_idle`` runs tasks as a worker does; inside a transaction it is refused."""
    worker._agents.clear()
    result = tasks.note.enqueue("a")
    with transaction.atomic(), pytest.raises(InvalidArgument, match="TransactionTestCase"):
        run_until_idle()
    run_until_idle()
    result.refresh()

    assert (SUCCESSFUL, ["a"]) == (result.status, tasks.order)


def test_the_orm_of_a_worker_uses_its_postbox(box: Postbox) -> None:
    """A worker's process opens the file once; after its end the next use opens it again."""
    path = box.file.path
    connection.close()
    box.close()
    worker._agents.clear()
    with Postbox(path, agent=worker.agent_of("default"), start=False) as running:
        result = tasks.greet.enqueue("ada")
        running.run_until_idle()
        result.refresh()
        same = postbox() is running, running._db.users

    assert ((True, 1), SUCCESSFUL) == (same, result.status)
    assert (["ada"], False) == (names(), postbox() is running)


# -- what else the tests of Django's own backends assert ----------------------------------------


def test_a_result_that_is_read_equals_the_one_that_was_returned(box: Postbox) -> None:
    """By its task, by the backend, and after a refresh that changes nothing."""
    result = tasks.greet.enqueue("ada", times=2)
    before = dataclasses.asdict(result)

    assert result == tasks.greet.get_result(result.id)
    assert result == task_backends["default"].get_result(result.id)
    result.refresh()
    assert before == dataclasses.asdict(result)


@pytest.mark.parametrize(
    ("task", "args", "kind", "told"),
    [
        (tasks.fail, ("ada",), ValueError, "ValueError: ada\n"),
        (tasks.entangle, (), ValueError, 'raise ValueError(ValueError("it failed"))'),
    ],
)
def test_whatever_a_task_raises_fails_it(
    box: Postbox, task: Any, args: tuple[str, ...], kind: type[BaseException], told: str
) -> None:
    """An exception that holds another one, too; the worker goes on."""
    result = task.enqueue(*args)
    after = tasks.note.enqueue("after")
    work(box)
    result.refresh()
    after.refresh()
    [error] = result.errors

    assert (FAILED, SUCCESSFUL, True) == (result.status, after.status, result.is_finished)
    assert kind is error.exception_class
    assert told in error.traceback
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at is not None


def test_async_callers_get_the_same_errors(box: Postbox) -> None:
    """For arguments that are not JSON, unknown results, and those of other tasks."""

    async def main() -> None:
        with pytest.raises(TypeError):
            await tasks.note.aenqueue(dt.datetime.now(tz=dt.UTC))
        with pytest.raises(TaskResultDoesNotExist):
            await tasks.note.aget_result("123")
        result = await tasks.note.aenqueue("a")
        with pytest.raises(TaskResultMismatch):
            await tasks.greet.aget_result(result.id)

    asyncio.run(main())


def test_a_queue_is_checked_again_when_a_task_is_enqueued(box: Postbox) -> None:
    """The settings may have changed since the task was defined."""
    with (
        override_settings(TASKS={"default": {**BACKEND, "QUEUES": ["other"]}}),
        pytest.raises(InvalidTask),
    ):
        tasks.post.enqueue("a")
