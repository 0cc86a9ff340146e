"""Name what a test controls of a postbox: time, ids, chance, and the layer below SQLite."""

from __future__ import annotations

import random
from dataclasses import dataclass

from onceward.message.clock import Clock
from onceward.message.ids import IdSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """
    Parts of a postbox that a test controls; None is as in production.

    ``Postbox(path, testing=Controls(clock=ManualClock()))``; a ``Harness`` gives its own.
    """

    clock: Clock | None = None
    """Time of leases, retries, delays and ids."""
    ids: IdSource | None = None
    """Source of message ids; by default they follow the clock."""
    rng: random.Random | None = None
    """Source of the jitter."""
    vfs: str | None = None
    """Name of the VFS that SQLite opens the file with."""
