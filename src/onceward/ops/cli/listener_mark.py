"""Record the connections of a listener beside the agents' files, for doctor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceward.message.clock import SystemClock

if TYPE_CHECKING:
    from onceward.http import HttpListener

FOLDER: Final = "listening"
FRESH: Final = 60_000
"""Milliseconds after which the process of a mark counts as ended."""
LATELY: Final = 3_600_000
"""Milliseconds during which a refused connection is a finding."""


class ListenerMark:
    """The mark of this process; it is rewritten every few seconds, and removed at the end."""

    def __init__(self, home: Path, listener: HttpListener) -> None:
        self._listener, self._clock = listener, SystemClock()
        self._path = home / FOLDER / str(os.getpid())
        self._refused, self._refused_at = 0, 0

    def write(self) -> None:
        """Write the current numbers; on a full disk only the mark is lost."""
        found, now = self._listener.connections(), self._clock.now()
        if found is None:
            return
        if found.refused > self._refused:
            self._refused, self._refused_at = found.refused, now
        told = asdict(found) | {
            "pid": os.getpid(),
            "url": self._listener.url,
            "at": now,
            "refused_at": self._refused_at,
        }
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.write_text(json.dumps(told), encoding="ascii")

    def remove(self) -> None:
        """Delete the mark."""
        with suppress(OSError):
            self._path.unlink()


def listeners(home: Path) -> Iterator[dict[str, Any]]:
    """Yield the marks of the processes that now listen for the agents of a home."""
    now = SystemClock().now()
    with suppress(FileNotFoundError):
        for path in sorted((home / FOLDER).iterdir()):
            with suppress(OSError, ValueError):  # it was removed, or is being written
                told = json.loads(path.read_text(encoding="ascii"))
                if now - told["at"] <= FRESH:
                    yield told
