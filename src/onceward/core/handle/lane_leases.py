"""Lease inbox messages through their lanes, one at a time and in the order of each lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onceward.core.engine.deps import RuntimeDeps
from onceward.core.handle import inbox, lanes
from onceward.core.handle.agent import type_names
from onceward.core.handle.consumer import Consumer, never_settled
from onceward.core.handle.inbox import ClaimRequest, LeasedMessage, SettledMessage
from onceward.core.requests import results
from onceward.errors import LeaseLost
from onceward.file import file_checks
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.retry import RetryPolicy
from onceward.message.states import RetryAt, Settlement


class LaneLeases:
    """Settle inbox messages by the leases of their lanes."""

    at_most_once = False

    def __init__(self, deps: RuntimeDeps, policy: RetryPolicy) -> None:
        self._db, self._deps, self.policy = deps.db, deps, policy
        self._owner = file_checks.owner_name()

    def problem(self, leased: LeasedMessage) -> Settlement | None:
        """Return how an expired, damaged or exhausted message ends, None for all others."""
        return leased.undeliverable(self._db.now()) or never_settled(leased, self.policy)

    def settle(self, tx: StoreTransaction, leased: LeasedMessage, settlement: Settlement) -> None:
        """End the lease, and tell the caller of a dispatched task; raises LeaseLost."""
        inbox.settle(tx, [SettledMessage(leased, settlement)], {})
        if not isinstance(settlement, RetryAt):
            results.tell(tx, self._deps.sender, leased, results.outcome_of(settlement))

    def mark(self, tx: StoreTransaction, leased: LeasedMessage) -> None:
        """Do nothing: settling an inbox message has recorded it."""

    def extend(self, tx: StoreTransaction, leased: LeasedMessage, until: Millis) -> None:
        """Keep the lease of the message's lane; raises LeaseLost."""
        if not lanes.extend(tx, leased.lane, until=until):
            raise lease_lost(leased)


class InboxLeases(LaneLeases):
    """Lease the messages of an inbox; what is searched is a session, None for any."""

    def __init__(self, deps: RuntimeDeps) -> None:
        super().__init__(deps, deps.policy)

    def claim(self, wanted: Any, search: str | None) -> Sequence[LeasedMessage]:
        """Lease the next message of the types that *wanted* names."""
        [(paused_at, ready, due_at)] = self._db.read(lanes.AGENDA)
        due = ready or (due_at is not None and due_at <= self._db.now())
        types = type_names(wanted)
        if disabled_by_environment() or paused_at is not None or not due:
            return ()
        request = ClaimRequest(messages=1, lanes=-1 if types else 8, session=search, types=types)
        lease_for = round(1000 * self._deps.settings.lease)
        with self._db.outside_handler():
            claimed = self._db.write(
                lambda tx: inbox.claim(tx, request, owner=self._owner, until=tx.now + lease_for)
            )
        return claimed[0] if claimed else ()


InboxConsumer = Consumer[LeasedMessage, str | None]


def lease_lost(leased: LeasedMessage) -> LeaseLost:
    """Return the error of a lease that ran out or was taken over."""
    return LeaseLost(f"the lease on message {leased.id} ran out; another reader has it")
