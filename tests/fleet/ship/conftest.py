"""A small world of agents whose files are shipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pip install 'onceward[ship]' brings it")

from tests.fleet.ship.agents import handler
from tests.fleet.world import World

from onceward import Postbox


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a world in a folder of its own."""
    with World(tmp_path / "agents") as made:
        yield made


@pytest.fixture
def pair(world: World) -> Callable[[], tuple[Postbox, Postbox]]:
    """Return a function that opens alice, and bob with his handler."""
    return lambda: (world.open("alice"), world.open(handler("bob")))


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return the place of a log."""
    return str(tmp_path / "log")
