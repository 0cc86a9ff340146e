"""What works in the background of an inbox: threads, a doorbell, and the leases of the dead, which hold nobody up."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

from onceward.boxes import lanes, leases
from onceward.ground.db import Database


def listen(db: Database, flag: Flag, *, poll: float) -> Callable[[], None]:
    """Let whatever comes in set *flag*, first of all by freeing what the dead held; return the call that ends it."""
    free_dead(db)
    return db.bell.listen("in", flag.set, version=db.version, poll=poll)


def threads(db: Database, **targets: Callable[[], None]) -> list[Thread]:
    """Return threads by name, not started yet: who owns them knows them before they run."""
    return [Thread(target=target, name=f"onceward-{name}-{db.agent}", daemon=True) for name, target in targets.items()]


def free_dead(db: Database) -> None:
    """End the lane leases of processes that have surely died."""
    leases.free_dead(db, owners=lanes.OWNERS, free=lanes.FREE)
