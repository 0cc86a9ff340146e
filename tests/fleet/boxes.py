"""Files of one agent each, made on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceward import Postbox


@pytest.fixture
def box(tmp_path: Path) -> Callable[..., Path]:
    """Return what makes an agent's file with so many waiting messages."""

    def make(name: str = "alice", messages: int = 0) -> Path:
        path = tmp_path / f"{name}.db"
        with Postbox(path, agent=name, start=False, hold_unknown=True) as made:
            made.session().send_many(
                [("bob", {"number": number}) for number in range(messages)], type="note"
            )
        return path

    return make
