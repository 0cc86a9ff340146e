"""Read one mailbox, in its owner's file, without leasing: replay, query, cursor, delete."""

from __future__ import annotations

from typing import Any

from onceward.errors import NoMailbox
from onceward.features.mailboxes import mailbox_readers, mailboxes
from onceward.features.mailboxes.mailbox_readers import RANKS, Start
from onceward.features.mailboxes.mailboxes import CursorRead, MailboxRef, MailboxRow, MessageFilter
from onceward.file import identity
from onceward.file.database import Database
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.record import MessageRecord


class MailboxReader:
    """The readers' side of one mailbox; each call raises NoMailbox once it has expired."""

    def __init__(self, db: Database, mailbox: MailboxRef) -> None:
        self.db, self.mailbox = db, mailbox

    def check_alive(self) -> None:
        """Raise NoMailbox from the millisecond on in which the mailbox expires."""
        if self.mailbox.expires_at is not None and self.mailbox.expires_at <= self.db.now():
            raise NoMailbox

    @property
    def closed(self) -> bool:
        """Whether the file is paused, so that nothing may be read."""
        self.check_alive()
        return disabled_by_environment() or identity.is_paused(self.db.read)

    def has_work(self, mode: str, name: str) -> bool:
        """Return whether a cursor or a group has something to read or to recover."""
        return mailboxes.has_work(self.db.read, self.mailbox, mode, name, now=self.db.now())

    def replay(self, passed: tuple[int, ...] | None, limit: int) -> list[MailboxRow]:
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
            left = CursorRead(
                name=how.name,
                start=how.start,
                wanted=how.wanted,
                limit=how.limit - len(found),
                consume_skipped=how.consume_skipped,
            )
            rows, more = self.db.write(
                lambda tx, left=left: mailboxes.read_on(tx, self.mailbox, left)  # type: ignore[misc]
            )
            found += rows
        return [row.record(wanted) for row in found]

    def reset(self, mode: str, name: str, start: Start) -> None:
        """Commit a new position of a cursor or a group, and wake those that wait for messages."""
        self.check_alive()

        def work(tx: StoreTransaction) -> None:
            place = self.mailbox
            mailbox_readers.reset(
                tx, place.mailbox, mode, name, start=start, expires_at=place.expires_at
            )
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
        """Return the seconds until a lease or the mailbox ends, at most *left*; None: never."""
        # A lease that has run out already was looked at: only later ones count.
        due_at = mailbox_readers.next_due(self.db.read, self.db.now())
        moments = [at for at in (due_at, self.mailbox.expires_at) if at is not None]
        waits = [max(0.001, (at - self.db.now()) / 1000) for at in moments]
        return min(waits if left is None else [*waits, left], default=None)
