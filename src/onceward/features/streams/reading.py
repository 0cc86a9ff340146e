"""Follow the output of a message's handler, from any position to the end of the message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from onceward.core.rows import outbox
from onceward.errors import InvalidArgument
from onceward.features.streams.stored import BYTES, RESTART
from onceward.file.database import Database
from onceward.file.sql_parts import senders
from onceward.file.transaction import Rows
from onceward.message.body import decode
from onceward.message.record import Ticket, ticket_id

FileOfAgent = Callable[[str], Database | None]
"""Returns the open file of an agent of the home, or None."""
FirstOfRun = Callable[[Rows, int], list[tuple[str, str]]]
"""Returns sender and id of a run's first message, with which the run's output is stored."""
RECIPIENT: Final = """
SELECT recipient FROM _onceward_outbox WHERE id = :id
 UNION ALL
SELECT recipient FROM _onceward_pending_replies WHERE id = :id
 LIMIT 1
"""
SENDER: Final = f"""{senders("_onceward_inbox")}
SELECT s.name FROM senders AS s JOIN _onceward_inbox AS b ON b.sender = s.name AND b.id = :id
 UNION ALL
SELECT peer FROM _onceward_dead_letters WHERE origin = 'inbox' AND id = :id
 LIMIT 1
"""
MESSAGE: Final = """
SELECT state, reason, sender, id, run_seq FROM _onceward_inbox WHERE sender = :sender AND id = :id
 UNION ALL
SELECT 'dead', reason, peer, id, NULL
  FROM _onceward_dead_letters
 WHERE origin = 'inbox' AND peer = :sender AND id = :id
 LIMIT 1
"""
ITEMS: Final = """
SELECT name, first, kinds, chunks
  FROM _onceward_output_batches
 WHERE message_id = :id AND sender = :sender AND last > :after
   AND (:name IS NULL OR name = :name)
 ORDER BY first LIMIT 64
"""
ON_ITS_WAY: Final = frozenset({"pending", "sending", "sent"})


class StreamItem:
    """An item that a reader of output gets: a ``Chunk``, ``Restarted`` or ``Ended``."""

    __slots__ = ()
    position: int
    kind: Literal["chunk", "restarted", "ended"]


@dataclass(frozen=True, slots=True)
class Chunk(StreamItem):
    """One chunk of output."""

    position: int
    """Its position in the output of its message, from 1, for ``after``."""
    name: str
    """The stream that it was appended to."""
    body: Any
    kind: Literal["chunk"] = "chunk"


@dataclass(frozen=True, slots=True)
class Restarted(StreamItem):
    """The handler was called again, and writes this stream from its beginning."""

    position: int
    name: str
    """The stream whose chunks before this position are invalid."""
    kind: Literal["restarted"] = "restarted"


@dataclass(frozen=True, slots=True)
class Ended(StreamItem):
    """The message has ended, without further output."""

    position: int
    """Position of the last item that came before it."""
    state: str
    """How it ended: processed, dropped, expired, dead, or its outcome at its sender."""
    reason: str | None
    kind: Literal["ended"] = "ended"


class _Message(NamedTuple):
    """A message at its recipient, and the message under which its output is stored."""

    state: str
    reason: str | None
    sender: str
    id: str


class StreamReader:
    """
    Reads the output of one message.

    Raises:
        InvalidArgument: no such message is known here, or its recipient's file is elsewhere.

    """

    def __init__(
        self,
        own: Database,
        files: FileOfAgent,
        ticket: Ticket | str,
        *,
        name: str | None,
        after: int,
        first: FirstOfRun | None,
    ) -> None:
        self._own, self._name, self._after, self._first = own, name, after, first
        self._id = ticket_id(ticket)
        recipient, self._sender = _ends(own, self._id)
        found = files(recipient)
        if found is None:
            raise InvalidArgument(
                f"the output of message {self._id} is in the file of {recipient}, which is not in "
                f"the folder of {own.path}: follow it in that folder"
            )
        self.file: Database = found
        """The file of the message's recipient, where its output is stored."""

    def look(self) -> list[StreamItem] | None:
        """Return the new items since the last call, or None."""
        message = self._message()
        if message is None:
            return None
        items = self._items(message)
        if items:
            self._after = items[-1].position
            return items
        if message.state == "pending":
            return None
        return [Ended(self._after, message.state, message.reason)]

    def _message(self) -> _Message | None:
        """Return the current state of the message; None while it is on its way."""
        for *found, run in self.file.read(MESSAGE, {"sender": self._sender, "id": self._id}):
            message = _Message(*found)
            if run is not None and self._first is not None:
                for sender, message_id in self._first(self.file.read, run):
                    return message._replace(sender=sender, id=message_id)
            return message
        state = outbox.state(self._own, self._id)
        return None if state in ON_ITS_WAY else _Message(state, None, self._sender, self._id)

    def _items(self, message: _Message) -> list[StreamItem]:
        named = {"sender": message.sender, "id": message.id}
        rows = self.file.read(ITEMS, named | {"after": self._after, "name": self._name})
        found = [
            _item(name, first + index, kind, chunk)
            for name, first, kinds, chunks in rows
            for index, (kind, chunk) in enumerate(zip(kinds, json.loads(chunks), strict=True))
        ]
        return [each for each in found if each.position > self._after]


def _ends(own: Database, message_id: str) -> tuple[str, str]:
    """Return the recipient and the sender of a message that was sent or received here."""
    for (recipient,) in own.read(RECIPIENT, {"id": message_id}):
        return str(recipient), own.agent
    for (sender,) in own.read(SENDER, {"id": message_id}):
        return own.agent, str(sender)
    msg = f"no message {message_id} here: never sent from this file or received in it, or pruned"
    raise InvalidArgument(msg)


def _item(name: str, position: int, kind: str, chunk: Any) -> StreamItem:
    if kind == RESTART:
        return Restarted(position, name)
    if kind == BYTES:
        return Chunk(position, name, decode(None, chunk, None))
    return Chunk(position, name, chunk)
