"""Keep temporarily silenced problems in one small file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from pydantic import TypeAdapter

from onceward.message.clock import Millis

NAME: Final = "inspect-silences.json"
"""Name of the file, in the home."""
MOST: Final = 200
"""Maximum silences; those that end last are kept."""
REASON: Final = 200
"""Maximum characters of a reason."""
LARGEST: Final = 1 << 20
"""Maximum bytes of a file that is read."""


@dataclass(frozen=True, slots=True)
class Silence:
    """One problem that is silenced until a moment."""

    fingerprint: str
    until_at: Millis
    reason: str
    by: str
    at: Millis


SILENCES: Final = TypeAdapter(list[Silence])


class Silences:
    """The silences of a home; requests of several threads share them."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, Lock()

    def now(self, now: Millis) -> Mapping[str, Silence]:
        """Return the active silences, by the fingerprint of their problem."""
        return {each.fingerprint: each for each in self._read() if each.until_at > now}

    def add(self, silence: Silence) -> None:
        """Silence a problem, replacing an existing silence."""
        with self._lock:
            kept = {**self.now(silence.at), silence.fingerprint: silence}
            self._write(sorted(kept.values(), key=lambda each: -each.until_at)[:MOST])

    def end(self, fingerprint: str, now: Millis) -> bool:
        """End the silence of a problem; return whether there was one."""
        with self._lock:
            kept = dict(self.now(now))
            ended = kept.pop(fingerprint, None)
            if ended is not None:
                self._write([*kept.values()])
            return ended is not None

    def _read(self) -> list[Silence]:
        """Return the content of the file; empty if it is missing, damaged or another user's."""
        try:
            if self.path.stat().st_size > LARGEST:
                return []
            return SILENCES.validate_json(self.path.read_bytes())[:MOST]
        except (OSError, ValueError):
            return []

    def _write(self, found: list[Silence]) -> None:
        """Replace the file atomically: a reader finds the old or the new one."""
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(SILENCES.dump_json(found, indent=1))
        os.replace(fresh, self.path)  # noqa: PTH105 - the atomic call
