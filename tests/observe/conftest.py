"""A home with two agents, and files whose times are set by hand."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceward import Postbox


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Postbox]:
    """Return the postbox of shop, open without engines."""
    with Postbox(tmp_path / "shop.db", agent="shop", start=False) as box:
        yield box


@pytest.fixture
def billing(tmp_path: Path) -> Iterator[Postbox]:
    """Return the postbox of billing, open without engines."""
    with Postbox(tmp_path / "billing.db", agent="billing", start=False) as box:
        yield box


@pytest.fixture
def settle() -> Callable[[Path], None]:
    """Return a call that lets the last change of a file and of its WAL be a minute ago."""

    def call(path: Path) -> None:
        past = time.time_ns() - 60 * 10**9
        for name in (str(path), f"{path}-wal"):
            if Path(name).exists():
                os.utime(name, ns=(past, past))

    return call
