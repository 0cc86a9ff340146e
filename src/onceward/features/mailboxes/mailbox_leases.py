"""Read one mailbox for a reader, and lease messages for handling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

from onceward.core.handle.consumer import Consumer, Taken, never_settled
from onceward.core.run import recovery
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.errors import UnknownMailbox
from onceward.features.mailboxes import mailbox_readers, mailboxes
from onceward.features.mailboxes.mailbox_readers import RANKS, MailboxLease, MailboxRef, Start
from onceward.features.mailboxes.mailboxes import Claim, CursorRead, MailboxRow, MessageFilter
from onceward.file import identity
from onceward.file.database import Database
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.frame import digest
from onceward.message.record import MessageRecord
from onceward.message.vocabulary import Dead, Done, RetryAt, Settlement


class MailboxReader:
    """The readers' side of one mailbox; each call raises UnknownMailbox once it has expired."""

    def __init__(self, db: Database, mailbox: MailboxRef) -> None:
        self.db, self.mailbox = db, mailbox

    def check_alive(self) -> None:
        """Raise UnknownMailbox once the mailbox has expired."""
        if self.mailbox.expires_at is not None and self.mailbox.expires_at <= self.db.now():
            raise UnknownMailbox

    @property
    def closed(self) -> bool:
        """Whether the file is paused, so that reading is not allowed."""
        self.check_alive()
        return disabled_by_environment() or identity.is_paused(self.db.read)

    def has_work(self, mode: str, name: str) -> bool:
        """Return whether a cursor or a group has messages to read or to recover."""
        return mailboxes.has_work(self.db.read, self.mailbox, mode, name, now=self.db.now())

    def scan(self, passed: tuple[int, ...] | None, limit: int) -> list[MailboxRow]:
        """Return the next messages after *passed* (None: from the oldest), in delivery order."""
        if self.closed:
            return []
        after = passed or (0,) * RANKS
        return mailboxes.next_messages(
            self.db.read, self.mailbox.mailbox, after, now=self.db.now(), limit=limit
        )

    def newest(self, wanted: MessageFilter, limit: int) -> list[MessageRecord]:
        """Return the newest messages, newest first."""
        if self.closed:
            return []
        found = mailboxes.newest(
            self.db.read, self.mailbox.mailbox, wanted, now=self.db.now(), limit=limit
        )
        return [row.record() for row in found]

    def read_on(self, how: CursorRead, wanted: Any) -> list[MessageRecord]:
        """Commit the cursor's next position; return the wanted messages that it passed."""
        found: list[MailboxRow] = []
        more = not self.closed and self.has_work("cursor", how.name)
        while more and len(found) < how.limit:
            left = replace(how, limit=how.limit - len(found))
            rows, more = self.db.write(
                lambda tx, left=left: mailboxes.read_on(tx, self.mailbox, left)  # type: ignore[misc]
            )
            found += rows
        return [row.record(wanted) for row in found]

    def reset(self, mode: str, name: str, start: Start) -> None:
        """Commit a new position of a cursor or a group, and wake waiting readers."""
        self.check_alive()

        def work(tx: StoreTransaction) -> None:
            mailbox_readers.reset(tx, self.mailbox, mode, name, start)
            tx.after_commit(lambda: self.db.notifier.notify("in"))

        self.db.write(work)

    def delete(self, message_id: str) -> bool:
        """Delete a message from the mailbox; return whether it was there."""
        return not self.closed and self.db.write(
            lambda tx: mailboxes.delete(tx, self.mailbox.mailbox, message_id)
        )

    def count(self) -> int:
        """Return how many messages the mailbox holds."""
        self.check_alive()
        return sum(mailboxes.count(self.db.read, self.mailbox.mailbox, now=self.db.now()).values())

    def until_due(self, left: float | None) -> float | None:
        """
        Return the seconds until a lease or the mailbox may end, at most *left*; None: never.

        The process of a lease may die before its end without a notification.
        """
        # Expired leases were already checked: only later ones count.
        due_at = mailbox_readers.next_due(self.db.read, self.db.now())
        moments = [at for at in (due_at, self.mailbox.expires_at) if at is not None]
        waits = [max(0.001, (at - self.db.now()) / 1000) for at in moments]
        waits += [] if due_at is None else [recovery.LOOK]
        return min(waits if left is None else [*waits, left], default=None)


class MailboxLeases:
    """Lease and settle one mailbox's messages, searched by a group's claim."""

    at_most_once = False

    def __init__(self, deps: RuntimeDeps, reader: MailboxReader) -> None:
        self._db, self._reader, self.policy = deps.db, reader, deps.policy

    def claim(
        self,
        wanted: Any,  # noqa: ARG002 - it has no types
        search: Claim,
        taken: Taken[MailboxLease],
    ) -> Sequence[MailboxLease]:
        """Lease the next messages of the group."""
        if self._reader.closed:
            return ()
        place = self._reader.mailbox
        dead = mailbox_readers.dead_owners(self._db.read, place, search.group)
        if not (dead or self._reader.has_work("lease", search.group)):
            return ()
        with self._db.outside_handler():
            return self._db.write(
                lambda tx: taken.keep(tx, mailboxes.lease(tx, place, search, dead))
            )

    def problem(self, leased: MailboxLease) -> Settlement | None:
        """Return the settlement of a damaged or exhausted message; None for others."""
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
            case RetryAt(due_at=due_at, counted=counted):
                mailbox_readers.put_back(tx, leased, due_at, counted=counted)
                tx.after_commit(lambda: self._db.notifier.notify("in"))
            case _:
                assert_never(settlement)

    def mark(self, tx: StoreTransaction, leased: MailboxLease) -> None:
        """Do nothing: a group records only the end of a lease."""

    def extend(self, tx: StoreTransaction, leased: MailboxLease, until: Millis) -> None:
        """Keep a lease until a moment; raises LeaseLost."""
        mailbox_readers.extend(tx, leased, until)


class ExactlyOnceLeases(MailboxLeases):
    """Leases of a group whose mark of a message commits with its handler's writes."""

    def __init__(self, deps: RuntimeDeps, reader: MailboxReader, group: str) -> None:
        super().__init__(deps, reader)
        self._consumer = f"{reader.mailbox.mailbox}/{group}"

    def problem(self, leased: MailboxLease) -> Settlement | None:
        """Return the settlement of a message that the group already handled or may never see."""
        if mailboxes.marked(self._db.read, leased, self._consumer):
            return Done()
        return super().problem(leased)

    def mark(self, tx: StoreTransaction, leased: MailboxLease) -> None:
        """Record that the group has handled a message; raise LeaseLost if it already had."""
        mailboxes.mark(tx, leased, self._consumer)


MailboxConsumer = Consumer[MailboxLease, Claim]
