"""Store limits and rates that users set, and read what policies dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.core.rows import limits
from onceward.errors import InvalidArgument
from onceward.file import identity
from onceward.file.database import Database
from onceward.file.sql_parts import columns
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.vocabulary import DropPolicy, DropScope, LimitScope, Overflow


@dataclass(frozen=True, slots=True)
class Limit:
    """
    Maximum unsettled messages and bytes of one scope.

    The name ``*`` limits each session, lane or channel separately.
    """

    scope: LimitScope
    name: str
    messages: int | None
    bytes: int | None
    overflow: Overflow


@dataclass(frozen=True, slots=True)
class DropRecord:
    """A message that a policy dropped."""

    id: str
    recipient: str
    session: str
    scope: DropScope
    name: str
    policy: DropPolicy
    line: str | None
    summary_id: str | None
    dropped_at: Millis


DROPS: Final = f"SELECT {columns(DropRecord)} FROM onceward_drops ORDER BY seq DESC LIMIT ?"


def drops(db: Database, limit: int) -> list[DropRecord]:
    """Return the messages that policies dropped, newest first."""
    return [DropRecord(*row) for row in db.read(DROPS, (limit,))]


def remove_rate(tx: StoreTransaction, of: str) -> bool:
    """Remove the rate of sending, or of accepting from each sender; return whether it was set."""
    return limits.remove_rate(tx, of)


def set_rate(tx: StoreTransaction, of: str, per_second: float, burst: float) -> None:
    """Set the rate of sending (``send``), or of accepting from each sender (``accept``)."""
    if not burst >= 1:
        raise InvalidArgument(f"a rate needs a burst of at least one message, not {burst!r}")
    limits.set_rate(tx, of, per_second, burst)


def set_file(tx: StoreTransaction, max_bytes: int) -> None:
    """Set the maximum bytes in use of the file."""
    identity.set_max_bytes(tx, max_bytes)


def remove_file(tx: StoreTransaction) -> bool:
    """Remove the size limit of the file; return whether it had one."""
    return identity.set_max_bytes(tx, None)
