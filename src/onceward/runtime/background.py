"""What works in the background of an inbox: threads, a doorbell, and the leases of the dead, which hold nobody up."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

from onceward.db.database import Database
from onceward.store import lanes
from onceward.store.dead_owners import DeadOwnerReaper


def listen(db: Database, flag: Flag, heirs: DeadOwnerReaper, *, poll: float) -> Callable[[], None]:
    """Let whatever comes in set *flag*, first of all by freeing what the dead held; return the call that ends it."""
    heirs.release_leases()
    return db.notifier.listen("in", flag.set, version=db.version, poll=poll)


def threads(db: Database, **targets: Callable[[], None]) -> list[Thread]:
    """Return threads by name, not started yet: who owns them knows them before they run."""
    return [
        Thread(target=target, name=f"onceward-{name}-{db.agent}", daemon=True)
        for name, target in targets.items()
    ]


def dead_owner_reaper(db: Database) -> DeadOwnerReaper:
    """Return what ends the lane leases of processes that have surely died."""
    return DeadOwnerReaper(db, owners=lanes.OWNERS, free=lanes.FREE)
