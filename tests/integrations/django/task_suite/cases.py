"""
Which of Django's tests are about a backend of Django's own, and why.

Run as ``python -m tests.integrations.django.task_suite.cases FOLDER``, where *FOLDER* is
``tests`` of Django's source.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import django
from django.conf import settings

NOT_OURS: Final = {
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result": (
        "changes a result in the list of DummyBackend and expects refresh() to read that list"
    ),
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": "as test_refresh_result",
    "test_dummy_backend.DummyBackendTestCase.test_clear": (
        "clear() is a method of DummyBackend alone: a file forgets a task by result_retention"
    ),
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": (
        "ImmediateBackend keeps no results"
    ),
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": (
        "ImmediateBackend keeps no results"
    ),
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": (
        "ImmediateBackend has no run_after"
    ),
    "test_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "the task runs in the thread that enqueues it; in a worker it ends the worker"
    ),
    "test_immediate_backend.ImmediateBackendTransactionTestCase"
    ".test_doesnt_wait_until_transaction_commit_by_default": (
        "the task runs before the commit of the transaction that enqueues it"
    ),
}
"""By the name of the test."""
FILES: Final = ("test_tasks", "test_dummy_backend", "test_immediate_backend", "test_custom_backend")


def configure() -> None:
    """Make the settings of a site with an agent's file, and put our backend in Django's places."""
    settings.configure(
        SECRET_KEY="tests",  # noqa: S106 - only these tests use it
        USE_TZ=True,
        INSTALLED_APPS=["onceward.integrations.django"],
        DATABASES={
            "default": {
                "ENGINE": "onceward.integrations.django.backend",
                "NAME": "suite.db",
                "OPTIONS": {"agent": "suite"},
            }
        },
    )
    django.setup()
    # Some tests call the synchronous methods in a coroutine, where Django refuses to read a file.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    from django.tasks.backends import dummy, immediate  # noqa: PLC0415 - after the setup
    from tests.integrations.django.task_suite import backends  # noqa: PLC0415 - as above

    dummy.DummyBackend = backends.Waiting
    immediate.ImmediateBackend = backends.Done


def run(folder: str) -> int:
    """Run the files; return the number of tests that failed."""
    from django.test import SimpleTestCase  # noqa: PLC0415 - after the setup
    from django.test.runner import DiscoverRunner  # noqa: PLC0415 - as above

    class Runner(DiscoverRunner):
        def build_suite(self, *args: Any, **given: Any) -> Any:
            suite = super().build_suite(*args, **given)
            ours = [each for each in suite if each.id().removeprefix("tasks.") not in NOT_OURS]
            return self.test_suite(ours)

    sys.path.insert(0, folder)
    SimpleTestCase.databases = {"default"}
    return int(Runner(verbosity=1).run_tests([f"tasks.{each}" for each in FILES]))


if __name__ == "__main__":
    configure()
    sys.exit(run(sys.argv[1]))
