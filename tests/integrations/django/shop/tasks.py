"""The tasks of a shop."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from django.db import transaction
from tests.integrations.django.shop.models import Customer

from onceward.integrations.django.tasks import task

order: list[Any] = []
"""What ran, in its order."""


@task
def greet(name: str, *, times: int = 1) -> dict[str, Any]:
    """Store a customer and return a value."""
    Customer.objects.create(name=name)
    return {"hello": [name] * times}


@task
def note(word: str) -> None:
    """Note that it ran."""
    order.append(word)


@task(takes_context=True)
def tell(context: Any, word: str) -> list[Any]:
    """Return what it is told of itself."""
    return [word, context.attempt, context.task_result.id, context.task_result.task.priority]


@task
async def look(name: str) -> int:
    """Write and count with the async methods of the ORM."""
    await Customer.objects.acreate(name=name)
    return int(await Customer.objects.acount())


@task
def fail(name: str) -> None:
    """Write, send another task, and fail."""
    Customer.objects.create(name=name)
    note.enqueue("of a failed task")
    raise ValueError(name)


@task
def chain(name: str) -> str:
    """Write, and enqueue the next task in the same commit."""
    Customer.objects.create(name=name)
    return str(note.enqueue(name).id)


@task
def leave() -> None:
    """Exit, as a script does."""
    raise SystemExit("closed")


@task
def unfit() -> object:
    """Return a value that JSON does not have."""
    return object()


@task(queue_name="mail")
def post(word: str) -> None:
    """Run in a queue of its own."""
    order.append(word)


@task
def count(name: str) -> int:
    """Store a customer, once for each name; the first process to try dies in the middle."""
    with transaction.atomic():
        Customer.objects.create(name=name)
    calls = Path("calls.log")
    with calls.open("a") as file:
        file.write(f"{name}\n")
    if name == "3" and calls.read_text().count("3\n") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(Customer.objects.count())


@task
def entangle() -> None:
    """Fail with an exception that holds another one."""
    raise ValueError(ValueError("it failed"))
