"""Send the messages of one group in the transaction of a block or a handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Unpack

from onceward.core.run.async_face import AsyncFace, awaitable
from onceward.core.send.add import Outbox
from onceward.core.send.block import Transaction
from onceward.errors import InvalidArgument
from onceward.features.groups import stored
from onceward.features.groups.done import GroupDone
from onceward.features.groups.stored import NewGroup
from onceward.message.body import BYTES, encode, message_type
from onceward.message.names import quoted
from onceward.message.options import MessageOptions, PublishOptions, SendOptions

TYPE = message_type(GroupDone)


class Group:
    """
    The messages of one group, committed together or not at all.

    Each is a request, so what its handler returns comes back: ``box.result(id, reply=…)``.
    """

    def __init__(
        self, tx: Transaction, new: NewGroup, follow: Callable[[PublishOptions], None] | None = None
    ) -> None:
        self._tx, self._new, self._follow = tx, new, follow

    @property
    def id(self) -> str:
        """Return the id of the group, for ``box.groups.get``."""
        return self._new.id

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Send a message of the group; return its id, whose result ``box.result`` returns.

        Raises:
            InvalidArgument: a key or a message id, by which it could belong to another group.
            SendError: see its subclasses; nothing was written.

        """
        if {"key", "message_id", "reply_to"} & options.keys():
            raise InvalidArgument("a message of a group has no key, message_id or reply_to")
        if self._follow is not None:
            self._follow(options)
        sent = self._tx.request(to, body, **options)
        stored.join(self._tx._alive(), self.id, sent.id)
        return sent.id

    def _store(self) -> None:
        """Store the group, whose messages have joined."""
        stored.add(self._tx._alive(), self._new)
        self._tx._alive().wake(self._tx._outbox.db.writer.wake_dispatchers)


class AsyncGroup(AsyncFace[Group]):
    """The messages of one group; see ``Group``."""

    send = awaitable(Group.send)

    @property
    def id(self) -> str:
        """Return the id of the group, for ``box.groups.get``."""
        return self._plain.id


def new_group(
    outbox: Outbox,
    session: str,
    then: str,
    data: object,
    kind: str | None,
    *,
    within: Transaction | None = None,
) -> NewGroup:
    """
    Return a group that the caller fills; its completion is checked now.

    A handler's group, *within* its transaction, has the same id if the handler is called again
    after a restore.

    Raises:
        InvalidArgument: *data* is not JSON.
        SendError: no message can be sent to *then*.

    """
    payload = encode(data)
    if payload.media == BYTES:
        raise InvalidArgument(f"data={quoted(data)} must be JSON, not bytes")
    group_id = None if within is None else stored.repeated_id(within._alive(), within._ids, then)
    group = NewGroup(group_id or outbox.composer.mint(), session, then, kind or TYPE, payload.text)
    outbox.compose(session, then, GroupDone(id=group.id, sent=0, failed=0, data=data), of(group))
    return group


def of(group: NewGroup | stored.DueGroup) -> MessageOptions:
    """Return the options of the message of a group: it has its own lane, and the group's key."""
    name = f"group.{group.id}"
    return MessageOptions(type=group.type, ordering_key=name, key=name)


@contextmanager
def opened(
    tx: Transaction, new: NewGroup, follow: Callable[[PublishOptions], None] | None = None
) -> Iterator[Group]:
    """Store a group with the messages that a block sends; an exception undoes them."""
    with tx._alive().nested():
        group = Group(tx, new, follow)
        yield group
        group._store()
