"""Mark what is proof: it runs by ``-m proof`` only."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
REGRESSIONS = "test_found.py"
"""Bugs that a proof found: their tests are quick and run by default."""


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if HERE in item.path.parents and item.path.name != REGRESSIONS:
            item.add_marker(pytest.mark.proof)
