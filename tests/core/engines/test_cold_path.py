"""A message for an idle process needs few different functions and statements to its handler."""

from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from tests.core.engines.cold import WakeUp, listed, wake_ups

MESSAGES = 100
"""
Messages among which there is one whose threads do not meet.

How often an engine looks once more, or waits for another writer, is a matter of the machine.
"""
FUNCTIONS = 190
STATEMENTS = 9


def test_a_wake_up_needs_few_functions_and_statements(tmp_path: Path) -> None:
    """From the call of send to that of a handler of another process both are within a budget."""
    found: list[WakeUp] = []
    with closing(wake_ups(tmp_path)) as messages:  # type: ignore[type-var]
        for each in islice(messages, MESSAGES):
            found.append(each)
            if each.functions <= FUNCTIONS and each.statements <= STATEMENTS:
                return
    least = min(found, key=lambda each: each.functions + each.statements)
    pytest.fail(f"{least.functions} functions, {least.statements} statements\n{listed(least)}")
