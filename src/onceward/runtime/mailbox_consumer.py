"""The reader's side of a mailbox, in four modes: replay, cursor, lease, exactly once. What is not named by a mode never changes it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from onceward.db import file_checks
from onceward.db.database import Database
from onceward.db.environment import disabled_by_environment
from onceward.db.transaction import StoreTransaction
from onceward.errors import InvalidMessage, NoMailbox
from onceward.hooks import Hooks
from onceward.model.body import decode
from onceward.model.clock import Millis
from onceward.model.events import DeadLettered, Event, Processed, Retried
from onceward.model.frame import Frame, digest
from onceward.model.record import MessageRecord
from onceward.model.retry import retry_policy
from onceward.model.settings import Settings
from onceward.runtime.context import reply_options
from onceward.runtime.message import Message
from onceward.runtime.sender import Sender
from onceward.store import mailbox_readers, mailboxes
from onceward.store.mailbox_readers import RANKS, MailboxLease, Start
from onceward.store.mailboxes import Claim, CursorRead, MailboxRef, MailboxRow, MessageFilter


class MailboxDeps(NamedTuple):
    """What every desk of one postbox shares."""

    settings: Settings
    sender: Sender
    hooks: Hooks
    rng: random.Random


class MailboxConsumer:
    """Hands out the messages of one mailbox, from the file of its owner."""

    def __init__(self, db: Database, place: MailboxRef, tools: MailboxDeps) -> None:
        self.db, self.place, self.tools = db, place, tools
        self._policy = retry_policy(tools.settings, retries=tools.settings.handler_retries)
        self._owner = file_checks.owner_name()

    def check_alive(self) -> None:
        """Raise NoMailbox from the millisecond on in which the mailbox expires."""
        if self.place.expires_at is not None and self.place.expires_at <= self.db.now():
            raise NoMailbox

    @property
    def closed(self) -> bool:
        """Whether the kill-switch lets nobody read; raises NoMailbox where there is nothing to be read."""
        self.check_alive()
        return disabled_by_environment() or mailboxes.paused(self.db.read)

    # -- without owning -----------------------------------------------------------------------

    def replay(self, passed: tuple[int, ...] | None, limit: int) -> list[MailboxRow]:
        """Return the next messages after *passed* (None: from the oldest), in delivery order; stores nothing."""
        if self.closed:
            return []
        return mailboxes.next_messages(
            self.db.read, self.place.mailbox, passed or (0,) * RANKS, now=self.db.now(), limit=limit
        )

    def newest(self, wanted: MessageFilter, limit: int) -> list[MessageRecord]:
        """Return the newest messages, newest first; changes nothing."""
        if self.closed:
            return []
        return [
            row.record()
            for row in mailboxes.newest(
                self.db.read, self.place.mailbox, wanted, now=self.db.now(), limit=limit
            )
        ]

    def read_on(self, how: CursorRead, wanted: Any) -> list[MessageRecord]:
        """Move a cursor and return what it passed and is wanted; the position is committed before anything is returned."""
        found: list[MailboxRow] = []
        more = not self.closed and mailboxes.has_work(
            self.db.read, self.place, "cursor", how.name, now=self.db.now()
        )
        while more and len(found) < how.limit:
            left = CursorRead(
                name=how.name,
                start=how.start,
                wanted=how.wanted,
                limit=how.limit - len(found),
                consume_skipped=how.consume_skipped,
            )
            rows, more = self.db.write(
                lambda tx, left=left: mailboxes.read_on(tx, self.place, left)  # type: ignore[misc]
            )
            found += rows
        return [row.record(wanted) for row in found]

    def delete(self, message_id: str) -> bool:
        """Take a message out of the mailbox; say whether it was there."""
        return not self.closed and self.db.write(
            lambda tx: mailboxes.delete(tx, self.place.mailbox, message_id)
        )

    def count(self) -> int:
        """Return how many messages are there."""
        self.check_alive()
        return sum(mailboxes.count(self.db.read, self.place.mailbox, now=self.db.now()).values())

    def until_due(self, left: float | None) -> float | None:
        """Return after how many seconds to look although nobody rang: a lease runs out, or the mailbox expires."""
        [(due_at,)] = self.db.read(
            mailbox_readers.NEXT_DUE, (self.db.now(),)
        )  # what is due already was looked at
        moments = [at for at in (due_at, self.place.expires_at) if at is not None]
        waits = [max(0.001, (at - self.db.now()) / 1000) for at in moments] + (
            [] if left is None else [left]
        )
        return min(waits, default=None)

    # -- leasing --------------------------------------------------------------------------------

    def claim(
        self, group: str, *, start: Start, limit: int, lease_for: Millis
    ) -> list[MailboxLease]:
        """Lease the next messages to this process, as a member of *group*."""
        if self.closed or not mailboxes.has_work(
            self.db.read, self.place, "lease", group, now=self.db.now()
        ):
            return []
        asked = Claim(group=group, start=start, limit=limit, owner=self._owner, lease_for=lease_for)
        with self.db.outside_handler():
            return self.db.write(lambda tx: mailboxes.lease(tx, self.place, asked))

    def opened(self, held: Sequence[MailboxLease], wanted: Any) -> list[Message[Any]]:
        """Return leased messages with their bodies read; what can never be read becomes a dead letter on the way."""
        return [message for each in held if (message := self.open(each, wanted)) is not None]

    def open(self, held: MailboxLease, wanted: Any) -> Message[Any] | None:
        """Return one leased message, None where it became a dead letter."""
        reason, problem = self._problem(held)
        if not reason:
            try:
                frame = Frame.parse(held.frame)
                return Message(held, frame, decode(frame.data, frame.data_base64, wanted), self)
            except InvalidMessage as error:
                reason, problem = "rejected", str(error)
        self._bury(held, reason, problem)
        return None

    def _problem(self, held: MailboxLease) -> tuple[str, str]:
        if digest(held.frame) != held.digest:
            return "corrupt", "the stored frame does not match its digest"
        if held.attempt > 1 and self._policy.exhausted(held.attempt - 1):
            return "max_retries_exceeded", "readers never settled it"
        return "", ""

    def _tell(self, tx: StoreTransaction, event: Event) -> StoreTransaction:
        if self.tools.hooks.wanted(type(event)):
            tx.after_commit(lambda: self.tools.hooks.emit([event]))
        return tx

    def _named(self, tx: StoreTransaction, held: MailboxLease) -> dict[str, Any]:
        return {"agent": self.db.agent, "at": tx.now, "message_id": held.id, "peer": held.sender}

    def _bury(self, held: MailboxLease, reason: str, error: str) -> StoreTransaction:
        def work(tx: StoreTransaction) -> StoreTransaction:
            mailboxes.dead_letter(tx, held, reason=reason, error=error)
            return self._tell(tx, DeadLettered(**self._named(tx, held), reason=reason, error=error))

        return self.db.write(work)

    def _end(self, held: MailboxLease, outcome: str) -> StoreTransaction:
        def work(tx: StoreTransaction) -> StoreTransaction:
            mailbox_readers.end(tx, held)
            return self._tell(tx, Processed(**self._named(tx, held), outcome=outcome))

        return self.db.write(work)

    # -- message.Desk ---------------------------------------------------------------------------

    def ack(self, leased: MailboxLease) -> StoreTransaction:
        """End the lease: the group is done with the message, which stays for other readers."""
        return self._end(leased, "processed")

    def drop(self, leased: MailboxLease) -> StoreTransaction:
        """End the lease without effects."""
        return self._end(leased, "dropped")

    def reject(self, leased: MailboxLease, reason: str) -> StoreTransaction:
        """Move the message to the dead letters, out of everybody's sight."""
        return self._bury(leased, "rejected", reason)

    def retry(self, leased: MailboxLease, reason: str, after: float | None) -> StoreTransaction:
        """Put the message back for this group, or bury it where its budget is spent."""
        if self._policy.exhausted(leased.attempt):
            return self._bury(leased, "max_retries_exceeded", reason)
        due_at = self.db.now() + (
            self._policy.delay(leased.attempt, self.tools.rng)
            if after is None
            else round(1000 * after)
        )

        def work(tx: StoreTransaction) -> StoreTransaction:
            mailbox_readers.put_back(tx, leased, due_at)
            tx.after_commit(lambda: self.db.notifier.notify("in"))
            return self._tell(
                tx,
                Retried(
                    **self._named(tx, leased), attempt=leased.attempt, error=reason, due_at=due_at
                ),
            )

        return self.db.write(work)

    def extend(self, leased: MailboxLease, seconds: float) -> None:
        """Keep the lease longer."""
        self.db.write(lambda tx: mailbox_readers.extend(tx, leased, tx.now + round(1000 * seconds)))

    def reply(self, message: Message[Any], body: object) -> str:
        """Answer the message's sender, from our own outbox."""
        to, options = reply_options(message.frame, {})
        return self.tools.sender.commit(message.session, to, body, options)


class ExactlyOnceConsumer(MailboxConsumer):
    """A desk whose ``ack`` marks the message for its group, once for all: the mark commits with what the handler wrote."""

    def __init__(self, desk: MailboxConsumer, group: str) -> None:
        super().__init__(desk.db, desk.place, desk.tools)
        self._consumer = f"{desk.place.mailbox}/{group}"

    def open(self, held: MailboxLease, wanted: Any) -> Message[Any] | None:
        """Return one leased message, None where the group has handled it before."""
        if mailboxes.marked(self.db.read, held, self._consumer):
            self._end(held, "processed")
            return None
        return super().open(held, wanted)

    def ack(self, leased: MailboxLease) -> StoreTransaction:
        """End the lease and mark the message; raises LeaseLost where somebody marked it before."""

        def work(tx: StoreTransaction) -> StoreTransaction:
            mailbox_readers.end(tx, leased)
            mailboxes.mark(tx, leased, self._consumer)
            return self._tell(tx, Processed(**self._named(tx, leased), outcome="processed"))

        return self.db.write(work)
