"""Wait for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0


def until(look: Callable[[], Any]) -> Any:
    """Return what *look* finds as soon as it finds something; fail after a minute."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)
    return found
