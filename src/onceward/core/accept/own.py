"""
Store messages of an agent to itself in outbox and inbox, within one file.

They need no parcel and no stream: both rows are one commit, so no crash separates them, and a copy
or a backup of the file has both or neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from onceward.core.accept.accept import Receiver, store_own
from onceward.core.end import sent
from onceward.core.end.sent import Moved
from onceward.core.rows import outbox
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.run.event_emitter import EventEmitter
from onceward.core.send import add
from onceward.file.connection import ConstraintError
from onceward.file.database import Database
from onceward.file.environment import SWITCH, VARIABLES, disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.events import Received
from onceward.message.parcel import Receipt
from onceward.message.settings import Settings


class OwnMessages:
    """
    Moves messages of one agent to itself, with the receiver that takes all other messages.

    A special message (known, damaged or expired) is left to parcels, which refuse or judge it as
    between two files. So are all messages while the inbox is full, the file is paused or has a
    rate, or the agent has its own url.
    """

    def __init__(
        self, db: Database, receiver: Receiver, *, settings: Settings, hooks: Hooks
    ) -> None:
        self.agent, self._db, self._receiver = db.agent, db, receiver
        self._settings, self._emitter = settings, EventEmitter(hooks, db.agent)
        self._notify_in = partial(db.notifier.notify, "in")
        self._notify_arrival = db.notifier.notify_arrival

    def store(self, tx: StoreTransaction, message: OutgoingMessage) -> bool:
        """
        Store a new message in both boxes; return False, with nothing written, if it must wait.

        After an error half of it may be written: the caller undoes that.
        """
        if tx.batching or self._db.writer.packer is None or not self._is_plain(message, tx.now):
            return False
        lane_id = outbox.open_to_own(tx, self.agent, message.headers, self._db.max_inbox)
        if lane_id is None:
            return False
        try:
            add.add_sent(tx, message)
        except ConstraintError:  # known or refused: storing it the other way raises the reason
            return False
        store_own(tx, message, lane_id)
        tx.wakeups[self._notify_arrival] = None
        return True

    def tell_stored(self, tx: StoreTransaction, message_id: str) -> None:
        """Report that both halves are stored, once the message is reported as enqueued."""
        if self._emitter.listening:
            received = Received(agent=self.agent, at=tx.now, message_id=message_id, peer=self.agent)
            self._emitter.emit(tx, received)
            self._emitter.moved(tx, self.agent, Moved((message_id,)))

    def _is_plain(self, message: OutgoingMessage, now: Millis) -> bool:
        """Return whether a new message may enter the inbox before its frame is read."""
        of = message.headers
        return (
            not (of.kind or of.mailbox or of.in_reply_to or of.headers or of.due_at)
            and not (of.chosen_id or of.key)
            and message.body is None
            and message.sending is None
            and (of.expires_at is None or of.expires_at > now)
            and of.hops <= self._settings.max_hops
            and 4 * len(message.frame) <= self._db.max_body
            and self._settings.ack != "stored"
        )

    def deliver(self, tx: StoreTransaction) -> bool:
        """
        Move the oldest ready messages, in order; return False if parcels must do it.

        After the first special message, all are left to parcels, so that none overtakes it.
        """
        if SWITCH in VARIABLES and disabled_by_environment():
            return False
        limit = self._settings.tuning.parcel_max_messages
        rows = outbox.ready_own(tx, self.agent, limit)
        if not rows or rows[0].waiting + len(rows) > self._db.max_inbox:
            return False
        if not all(each.is_plain(tx.now) for each in rows):
            return False
        ids = [each.row.id for each in rows]
        frames = [r.carried() for r, *_ in rows]
        done = self._receiver.take_own(tx, frames)
        if done is None:
            return False
        ends = ids if self._settings.ack == "stored" else done
        self._tell(tx, sent.take_own(tx, self.agent, rows, ends))
        if len(rows) == limit:
            tx.wake(self._db.writer.wake_dispatchers)
        tx.wakeups[self._notify_arrival] = None
        return True

    def settle(self, tx: StoreTransaction, receipts: Sequence[Receipt]) -> None:
        """Apply receipts to the outbox, in the commit that ends their messages."""
        moved = sent.settle(tx, self.agent, receipts, ask_at=tx.now, stored_ends=False)
        self._told(tx, moved)

    def acknowledge(self, tx: StoreTransaction, message_id: str) -> bool:
        """End a handled message in the outbox, not yet counted; return False: ``settle`` must."""
        acked = outbox.ack_own(tx, self.agent, message_id)
        if acked:
            self._told(tx, Moved(acked=(message_id,)))
        return acked

    def _told(self, tx: StoreTransaction, moved: Moved) -> None:
        self._tell(tx, moved)
        if moved.ended:
            tx.wakeups[self._notify_in] = None

    def _tell(self, tx: StoreTransaction, moved: Moved) -> None:
        if self._emitter.listening:
            self._emitter.moved(tx, self.agent, moved)
