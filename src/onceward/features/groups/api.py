"""Send groups of messages, list them, and complete those whose messages have ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from pydantic_core import from_json

from onceward.core.contract import Opening
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send.add import Outbox
from onceward.core.send.block import BlockOpener, Transaction
from onceward.errors import OncewardError, StoreError, TooLarge
from onceward.features.groups import stored
from onceward.features.groups.done import GroupDone
from onceward.features.groups.group import Group, new_group, of, opened
from onceward.features.groups.stored import DueGroup, NewGroup
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import checks_arguments
from onceward.message.log import log
from onceward.message.record import GroupInfo

AGAIN: Final = 60_000
"""Milliseconds after which a completion that could not be sent is tried again."""


@checks_arguments()
class Groups:
    """
    Groups of messages of this file: when all have ended, one message says so.

    The group is stored with its messages, so its completion survives every process. A message has
    ended when it was handled, or when it never will be: failed ones count, too.
    """

    def __init__(self, db: Database, outbox: Outbox, session: BlockOpener) -> None:
        self._db, self._outbox, self._session = db, outbox, session

    @contextmanager
    def begin(
        self, *, then: str, data: object = None, type: str | None = None, session: str | None = None
    ) -> Iterator[Group]:
        """
        Open a block whose ``send`` adds messages to a new group; leaving the block commits all.

        It joins a transaction that this thread has open. When the last message has ended, the agent
        *then* gets one ``GroupDone`` with *data*, the counts and the ids; *type* gives it another
        type than ``onceward.group_done``. A group without messages is complete at once.

        Raises:
            InvalidArgument: *data* is not JSON.
            SendError: no message can be sent to *then*.

        """
        new = self._new(then, data, type, session)
        with self._session.begin() as tx, opened(self._within(tx, new), new) as group:
            yield group

    def _new(self, then: str, data: object, kind: str | None, session: str | None) -> NewGroup:
        return new_group(self._outbox, session or self._session.name, then, data, kind)

    def _within(self, tx: Transaction, new: NewGroup) -> Transaction:
        """Return a transaction in the session of a group."""
        return Transaction(tx._alive(), self._outbox, new.session)

    def get(self, group: str) -> GroupInfo | None:
        """Return a group by its id; None if it was never committed, or is pruned."""
        return next(iter(stored.listed(self._db.read, 1, group)), None)

    def messages(self, group: str) -> list[str]:
        """Return the ids of the messages of a group, in their order: the first 1,000."""
        return stored.messages(self._db.read, group)

    def list(self, limit: int = 100) -> list[GroupInfo]:
        """Return the newest groups, first the last one."""
        return stored.listed(self._db.read, limit)

    def _complete(self, group: DueGroup) -> None:
        """Send the message of a group that has ended; let it wait if that is impossible."""
        try:
            message = self._message(group)
            self._db.write(partial(self._end, group=group, message=message))
        except StoreError:  # an error of the file is not this group's fault
            raise
        except OncewardError as error:
            log.failure("warning", "group waits", error, agent=self._db.agent, group=group.id)
            until_at = self._db.now() + AGAIN
            put_off = partial(stored.put_off, group=group.id, error=str(error), until_at=until_at)
            self._db.write(put_off)

    def _message(self, group: DueGroup) -> OutgoingMessage:
        read, compose = self._db.read, self._outbox.compose
        done = GroupDone(
            id=group.id, sent=group.sent, failed=group.failed, data=from_json(group.data)
        )
        told = done.model_copy(
            update={
                "messages": stored.messages(read, group.id),
                "failures": stored.failures(read, group.id),
            }
        )
        try:
            return compose(group.session, group.recipient, told, of(group))
        except TooLarge:
            return compose(group.session, group.recipient, done, of(group))

    def _end(self, tx: StoreTransaction, *, group: DueGroup, message: OutgoingMessage) -> None:
        if stored.end(tx, group.id, message.id):  # or another process has sent its message
            self._outbox.add(tx, message)


def groups_of(opening: Opening) -> Groups:
    """Return the groups of an opening."""
    deps = opening.deps
    return Groups(deps.db, deps.outbox, opening.session)


def complete_due(opening: Opening) -> None:
    """Complete groups; do nothing inside an open transaction, which may be undone."""
    db = opening.deps.db
    if not db.writer.held:
        for group in stored.due(db.read, db.now()):
            opening.once(groups_of)._complete(group)
