"""Both facades have the same names, and each name takes the same arguments."""

import inspect

import pytest

from onceward.api.aio_mailbox import AsyncMailbox, AsyncMailboxes
from onceward.api.aio_polls import AsyncPolls
from onceward.api.mailbox import Mailbox
from onceward.api.mailboxes import Mailboxes
from onceward.api.polling import Polls

OWN = {"walk", "sweep"}
"""What one room of the house offers another."""


def calls(of: type) -> dict[str, list[tuple[str, object, object]]]:
    """Return the arguments of every public call by its name."""
    found = inspect.getmembers(of, inspect.isfunction)
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(call).parameters.values()]
        for name, call in found
        if not name.startswith("_") and name not in OWN
    }


@pytest.mark.parametrize(
    ("plain", "awaitable"),
    [(Mailbox, AsyncMailbox), (Mailboxes, AsyncMailboxes), (Polls, AsyncPolls)],
)
def test_the_same_calls(plain: type, awaitable: type) -> None:
    """Who knows one facade knows the other."""
    assert calls(plain) == calls(awaitable)
