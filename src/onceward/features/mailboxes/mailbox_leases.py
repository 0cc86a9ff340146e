"""Lease the messages of one mailbox to the members of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from onceward.core.engine.engine_loop import RuntimeDeps
from onceward.core.handle.message import Consumer, never_settled
from onceward.features.mailboxes import mailbox_readers, mailboxes
from onceward.features.mailboxes.mailbox_reader import MailboxReader
from onceward.features.mailboxes.mailbox_readers import MailboxLease
from onceward.features.mailboxes.mailboxes import Claim
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.frame import digest
from onceward.message.vocabulary import Dead, Done, RetryAt, Settlement


class MailboxLeases:
    """Lease and settle one mailbox's messages; what is searched is a group's claim."""

    at_most_once = False

    def __init__(self, deps: RuntimeDeps, reader: MailboxReader) -> None:
        self._db, self._reader, self.policy = deps.db, reader, deps.policy

    def claim(self, wanted: Any, search: Claim) -> Sequence[MailboxLease]:  # noqa: ARG002 - it has no types
        """Lease the next messages of the group."""
        if self._reader.closed or not self._reader.has_work("lease", search.group):
            return ()
        with self._db.outside_handler():
            return self._db.write(lambda tx: mailboxes.lease(tx, self._reader.mailbox, search))

    def problem(self, leased: MailboxLease) -> Settlement | None:
        """Return how a damaged or exhausted message ends, None for all others."""
        if digest(leased.frame) != leased.digest:
            return Dead("corrupt", "the stored frame does not match its digest", tried=False)
        return never_settled(leased, self.policy)

    def settle(self, tx: StoreTransaction, leased: MailboxLease, settlement: Settlement) -> None:
        """End the group's lease; only a dead letter leaves the mailbox. Raises LeaseLost."""
        match settlement:
            case Done():
                mailbox_readers.end(tx, leased)
            case Dead(reason=reason, error=error, tried=tried):
                tries = leased._replace(attempt=leased.attempt - (not tried))
                mailboxes.dead_letter(tx, tries, reason=reason, error=error)
            case RetryAt(due_at=due_at):
                mailbox_readers.put_back(tx, leased, due_at)
                tx.after_commit(lambda: self._db.notifier.notify("in"))
            case _:
                assert_never(settlement)

    def mark(self, tx: StoreTransaction, leased: MailboxLease) -> None:
        """Do nothing: the end of a lease is all that a group keeps of a message."""

    def extend(self, tx: StoreTransaction, leased: MailboxLease, until: Millis) -> None:
        """Keep a lease until a moment; raises LeaseLost."""
        mailbox_readers.extend(tx, leased, until)


class ExactlyOnceLeases(MailboxLeases):
    """Leases of a group whose mark of a message commits with its handler's writes, once."""

    def __init__(self, deps: RuntimeDeps, reader: MailboxReader, group: str) -> None:
        super().__init__(deps, reader)
        self._consumer = f"{reader.mailbox.mailbox}/{group}"

    def problem(self, leased: MailboxLease) -> Settlement | None:
        """Return the end of a message that the group has handled before, or may never see."""
        if mailboxes.marked(self._db.read, leased, self._consumer):
            return Done()
        return super().problem(leased)

    def mark(self, tx: StoreTransaction, leased: MailboxLease) -> None:
        """Record that the group has handled a message; raises LeaseLost if it had before."""
        mailboxes.mark(tx, leased, self._consumer)


MailboxConsumer = Consumer[MailboxLease, Claim]
