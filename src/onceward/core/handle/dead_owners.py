"""Release leases of dead processes early; tokens still fence late writers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from onceward.errors import OncewardError
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction

EVERY: Final = 0.5
"""Seconds between two checks, each of which asks the system about every owner."""


class DeadOwnerReaper:
    """
    Releases the leases of processes that have surely died.

    *owners* lists the owners of leases, *free* ends those of one owner.
    """

    def __init__(
        self, db: Database, *, owners: str, free: Callable[[StoreTransaction, str], object]
    ) -> None:
        self._db, self._owners, self._free = db, owners, free
        self._looked = float("-inf")

    def release_leases(self) -> None:
        """Release leases of dead owners, once per interval; a busy file waits for the next."""
        if time.monotonic() - self._looked < EVERY:
            return
        self._looked = time.monotonic()
        with suppress(OncewardError):
            if any(file_checks.is_dead(owner) for (owner,) in self._db.read(self._owners)):
                self._db.write(self._release)

    def _release(self, tx: StoreTransaction) -> None:
        for (owner,) in tx.rows(self._owners):
            if file_checks.is_dead(owner):
                self._free(tx, owner)
