"""Run what is due in a test of a site, as a worker does."""

from __future__ import annotations

from typing import Final

from django.db import connections

from onceward import Postbox
from onceward.errors import InvalidArgument
from onceward.integrations.django import postboxes
from onceward.integrations.django.worker import agent_of

__all__ = ["run_until_idle"]

INSIDE: Final = (
    "a transaction is open, so nothing is due that it sent: use TransactionTestCase (pytest:"
    " transactional_db), or run tasks at once by Django's ImmediateBackend"
)


def run_until_idle(using: str = "default") -> int:
    """
    Run the handlers and tasks of a database until nothing is due; return how much was moved.

    Raises:
        InvalidArgument: this thread is in a transaction of the database, as in a ``TestCase``.

    """
    wrapper = connections[using]
    if wrapper.in_atomic_block:
        raise InvalidArgument(INSIDE)
    path = postboxes.path_of(wrapper)
    postboxes.of_database(wrapper)  # it creates the file, as every use does
    with Postbox(path, agent=agent_of(using), start=False) as worker:
        return worker.run_until_idle()
