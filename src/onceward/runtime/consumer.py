"""The reader's side of the inbox: claim one message at a time, settle it when told."""

from __future__ import annotations

import random
from typing import Any

from onceward.db import file_checks
from onceward.db.database import Database
from onceward.db.environment import disabled_by_environment
from onceward.db.transaction import StoreTransaction
from onceward.errors import InvalidMessage, LeaseLost
from onceward.hooks import Hooks
from onceward.model.body import decode
from onceward.model.frame import Frame
from onceward.model.retry import RetryPolicy, retry_policy
from onceward.model.settings import Settings
from onceward.model.states import Dead, Done, RetryAt, Settlement
from onceward.runtime import results
from onceward.runtime.agent import type_names
from onceward.runtime.context import reply_options
from onceward.runtime.event_emitter import settlement_event
from onceward.runtime.message import Message
from onceward.runtime.sender import Sender
from onceward.store import inbox, lanes
from onceward.store.inbox import ClaimRequest, LeasedMessage, SettledMessage


class Consumer:
    """Hands out messages to a reader and settles them."""

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        sender: Sender,
        hooks: Hooks,
        rng: random.Random,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._db, self._settings, self._sender, self._hooks, self._rng = (
            db,
            settings,
            sender,
            hooks,
            rng,
        )
        self._policy = policy or retry_policy(settings, retries=settings.handler_retries)
        self._owner = file_checks.owner_name()

    @property
    def db(self) -> Database:
        """The file it reads."""
        return self._db

    @property
    def tools(self) -> dict[str, Any]:
        """What another desk on the same file is made with."""
        return {
            "settings": self._settings,
            "sender": self._sender,
            "hooks": self._hooks,
            "rng": self._rng,
        }

    @property
    def poll(self) -> float:
        """How often a waiting reader looks by itself."""
        return self._settings.poll_interval

    def take(self, wanted: Any, session: str | None) -> Message[Any] | None:
        """
        Lease the next message and return it, None where there is none.

        A message that can never be read as *wanted* becomes a dead letter on
        the way, one that has expired ends.
        """
        while (leased := self._claim(type_names(wanted), session)) is not None:
            message = self._open(leased, wanted)
            if message is not None:
                return message
        return None

    def _claim(self, types: tuple[str, ...] | None, session: str | None) -> LeasedMessage | None:
        [(paused_at, ready, due_at)] = self._db.read(lanes.AGENDA)
        if (
            disabled_by_environment()
            or paused_at is not None
            or not (ready or (due_at is not None and due_at <= self._db.now()))
        ):
            return None
        search = ClaimRequest(messages=1, lanes=-1 if types else 8, session=session, types=types)
        until = round(1000 * self._settings.lease)
        with self._db.outside_handler():
            claimed = self._db.write(
                lambda tx: inbox.claim(tx, search, owner=self._owner, until=tx.now + until)
            )
        return claimed[0][0] if claimed else None

    def _open(self, leased: LeasedMessage, wanted: Any) -> Message[Any] | None:
        try:
            problem = self._problem(leased)
            if problem is None:
                frame = Frame.parse(leased.frame)
                body = decode(
                    frame.data, frame.data_base64, None if isinstance(wanted, str) else wanted
                )
                return Message(leased, frame, body, self)
        except InvalidMessage as error:
            problem = Dead("rejected", str(error))
        self._end(leased, problem)
        return None

    def _problem(self, leased: LeasedMessage) -> Settlement | None:
        if (unfit := leased.undeliverable(self._db.now())) is not None:
            return unfit
        if leased.attempt > 1 and self._policy.exhausted(leased.attempt - 1):
            return Dead("max_retries_exceeded", "readers never settled it")
        return None

    def _end(self, leased: LeasedMessage, settlement: Settlement) -> StoreTransaction:
        """Settle one message, in this thread's open transaction if there is one."""
        return self._db.write(lambda tx: self._settle(tx, leased, settlement))

    def _settle(
        self, tx: StoreTransaction, leased: LeasedMessage, settlement: Settlement
    ) -> StoreTransaction:
        inbox.settle(tx, [SettledMessage(leased, settlement)], {})
        if not isinstance(settlement, RetryAt):
            results.tell(tx, self._sender, leased, results.outcome_of(settlement))
        tx.after_commit(lambda: self._db.notifier.notify("out"))
        event = settlement_event(leased, settlement, agent=self._db.agent, at=tx.now)
        if self._hooks.wanted(type(event)):
            tx.after_commit(lambda: self._hooks.emit([event]))
        return tx

    # -- message.Desk -----------------------------------------------------------------------

    def ack(self, leased: LeasedMessage) -> StoreTransaction:
        """Commit the processed mark."""
        return self._end(leased, Done())

    def drop(self, leased: LeasedMessage) -> StoreTransaction:
        """End the message without effects."""
        return self._end(leased, Done("dropped"))

    def reject(self, leased: LeasedMessage, reason: str) -> StoreTransaction:
        """Bury the message."""
        return self._end(leased, Dead("rejected", reason))

    def retry(self, leased: LeasedMessage, reason: str, after: float | None) -> StoreTransaction:
        """Put the message back, or bury it where its budget is spent."""
        if self._policy.exhausted(leased.attempt):
            return self._end(leased, Dead("max_retries_exceeded", reason))
        wait = (
            self._policy.delay(leased.attempt, self._rng) if after is None else round(1000 * after)
        )
        return self._end(leased, RetryAt(self._db.now() + wait, reason))

    def extend(self, leased: LeasedMessage, seconds: float) -> None:
        """Keep the lease longer."""
        if not self._db.write(
            lambda tx: lanes.extend(tx, leased.lane, until=tx.now + round(1000 * seconds))
        ):
            msg = f"the lease on message {leased.id} ran out; another reader has it"
            raise LeaseLost(msg)

    def reply(self, message: Message[Any], body: object) -> str:
        """Answer the message's sender."""
        to, options = reply_options(message.frame, {})
        draft = self._sender.compose(message.session, to, body, options)
        return self._db.write(lambda tx: self._sender.add(tx, draft))
