"""Leases of owners that have died: nobody needs to wait for their end."""

from __future__ import annotations

from contextlib import suppress

from onceward.errors import OncewardError
from onceward.ground import guard
from onceward.ground.db import Database
from onceward.ground.tx import Tx


def free_dead(db: Database, *, owners: str, free: str) -> None:
    """
    End the leases of processes that have surely died; fencing holds all the same.

    *owners* lists who holds leases, *free* ends those of one owner at a moment.
    A file that is busy just now is left to the next look.
    """

    def work(tx: Tx) -> None:
        for (owner,) in tx.rows(owners):
            if guard.is_dead(owner):
                tx.run(free, (tx.now, owner))

    with suppress(OncewardError):
        if any(guard.is_dead(owner) for (owner,) in db.read(owners)):
            db.write(work)
