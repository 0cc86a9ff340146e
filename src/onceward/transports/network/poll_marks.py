"""Record beside the agents' files when a peer polled for its parcels, for other processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from onceward.message.clock import Millis

FOLDER: Final = "asked"
OF_HOMES: Final = ".homes"
"""In place of an agent: homes that polled."""


class Mark(NamedTuple):
    """The last poll of a peer."""

    at: Millis
    """When it came, by our clock."""
    ahead: Millis
    """How far the peer's clock was ahead of ours."""


def write_mark(home: Path, agent: str, peer: str, mark: Mark) -> None:
    """Record a poll; a full disk loses only this record."""
    path = home / FOLDER / agent / peer
    with suppress(OSError):
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(f"{mark.at} {mark.ahead}", encoding="ascii")


def read_mark(home: Path, agent: str, peer: str) -> Mark | None:
    """Return the last poll of a peer; None if none was recorded."""
    try:
        at, ahead = (home / FOLDER / agent / peer).read_text(encoding="ascii").split()
        return Mark(int(at), int(ahead))
    except (OSError, ValueError):  # none, or it is being written
        return None
