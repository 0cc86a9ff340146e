"""A lively home, and a browser without a screen that asks its inspector for pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.inspector.homes import lively

from onceward.ops.inspector import app
from onceward.ops.inspector.site import Site
from onceward.testing import ManualClock

BASE = "http://localhost"


@dataclass(frozen=True)
class Home:
    """A home, the ids of some of its messages, and its clock."""

    path: Path
    ids: dict[str, str]
    clock: ManualClock


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Make the lively home once."""
    path, clock = tmp_path_factory.mktemp("inspected") / "home", ManualClock()
    return Home(path, lively(path, clock), clock)


@pytest.fixture
def home(made: Home, tmp_path: Path) -> Home:
    """Return a copy of the lively home."""
    copy = tmp_path / "home"
    shutil.copytree(made.path, copy)
    return Home(copy, made.ids, ManualClock(made.clock.now()))


@pytest.fixture
def site(web: TestClient) -> Site:
    """Return what the pages share."""
    found: Site = web.app.state.site  # type: ignore[attr-defined]
    return found


@pytest.fixture
def web(home: Home) -> Iterator[TestClient]:
    """Return a client of the inspector of the home, all of whose files have been read."""
    with inspected(home) as client:
        yield client


@pytest.fixture(scope="session")
def shown(made: Home) -> Iterator[TestClient]:
    """Return a client of the inspector of the lively home itself, for tests that change nothing."""
    with inspected(made) as client:
        yield client


@contextmanager
def inspected(home: Home) -> Iterator[TestClient]:
    """Serve the pages of a home for a block, and yield a client of them."""
    served = app([home.path], clock=home.clock)
    served.state.site.refresher.refresh()
    client = TestClient(served, base_url=BASE, raise_server_exceptions=True)
    yield client
    client.close()
    served.state.site.refresher.stop()
