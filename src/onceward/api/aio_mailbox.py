"""The awaitable twins of mailboxes: the same names, each call off the loop, each wait on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar, Unpack

from onceward.api.awaitable import AsyncMessage
from onceward.api.mailbox import Handler, Mailbox, Where
from onceward.api.mailboxes import Mailboxes
from onceward.db.database import Database
from onceward.model.record import MessageRecord
from onceward.model.send_options import SendOptions
from onceward.model.settings import DAY
from onceward.runtime.async_bridge import AsyncBridge
from onceward.runtime.engine import Due
from onceward.store.directory.mailboxes import MailboxInfo
from onceward.store.mailbox_readers import EARLIEST

T = TypeVar("T")


class Wait(Protocol):
    """How the loop waits for a file."""

    async def __call__(
        self, look: Callable[[], T | None], seconds: float | None, *, db: Database, due: Due
    ) -> T | None:
        """Look, and look again whenever somebody committed, until there is something or *seconds* have passed."""
        ...


class AsyncMailbox:
    """One mailbox of the home, until it expires; see ``Mailbox``."""

    def __init__(self, mailbox: Mailbox, crossing: AsyncBridge, wait: Wait) -> None:
        self._mailbox, self._crossing, self._wait = mailbox, crossing, wait

    def __getattr__(self, name: str) -> Any:
        """Return what the mailbox itself knows: id, created, public, owner, ttl, expires_at, description."""
        return getattr(self._mailbox, name)

    def __repr__(self) -> str:
        """Name the mailbox; a private one not by its id."""
        return repr(self._mailbox)

    async def _until(self, look: Callable[[], list[Any]], timeout: float | None) -> list[Any]:
        reader = self._mailbox._reader
        found = await self._wait(
            lambda: look() or None, timeout, db=reader.db, due=reader.until_due
        )
        return found or []

    async def send(self, body: object, **options: Unpack[SendOptions]) -> str:
        """Commit one message for this mailbox into our outbox; see ``Mailbox.send``."""
        return await self._crossing.write(lambda: self._mailbox.send(body, **options))

    async def delete(self, message_id: str) -> bool:
        """Take a message away from all readers; see ``Mailbox.delete``."""
        return await self._crossing.call(lambda: self._mailbox.delete(message_id))

    async def replay(
        self,
        type: Any = None,
        *,
        timeout: float | None = 0.0,
    ) -> AsyncIterator[MessageRecord]:
        """Yield everything that has not expired, then what comes; see ``Mailbox.replay``."""
        walk = self._mailbox.walk(type)
        while letters := await self._until(walk, timeout):
            for letter in letters:
                yield letter

    async def query(
        self, type: Any = None, *, limit: int = 100, **filters: Any
    ) -> list[MessageRecord]:
        """Return messages, newest first; see ``Mailbox.query``."""
        return await self._crossing.call(lambda: self._mailbox.query(type, limit=limit, **filters))

    async def tail(self, limit: int = 10) -> list[MessageRecord]:
        """Return the newest messages; see ``Mailbox.tail``."""
        return await self._crossing.call(lambda: self._mailbox.tail(limit))

    async def count(self) -> int:
        """Return how many messages are there."""
        return await self._crossing.call(self._mailbox.count)

    async def cursor(
        self,
        reader: str,
        type: Any = None,
        *,
        limit: int = 100,
        timeout: float | None = 0.0,
        start: Where = EARLIEST,
        consume_skipped: bool = True,
        **filters: Any,
    ) -> list[MessageRecord]:
        """Move the named position and return what it passed; see ``Mailbox.cursor``."""
        named: dict[str, Any] = {
            "limit": limit,
            "start": start,
            "consume_skipped": consume_skipped,
        } | filters
        return await self._until(lambda: self._mailbox.cursor(reader, type, **named), timeout)

    async def lease(
        self,
        group: str,
        type: Any = None,
        *,
        limit: int = 1,
        timeout: float | None = 0.0,
        lease: float | None = None,
        start: Where = EARLIEST,
    ) -> list[AsyncMessage[Any]]:
        """Lease the next messages of the group to us; see ``Mailbox.lease``."""
        found = await self._until(
            lambda: self._mailbox.lease(group, type, limit=limit, lease=lease, start=start), timeout
        )
        return [AsyncMessage(message, self._crossing) for message in found]

    async def receive(
        self,
        group: str,
        type: Any = None,
        *,
        timeout: float | None = 0.0,
        start: Where = EARLIEST,
    ) -> AsyncMessage[Any] | None:
        """Lease the next message of the group; see ``Mailbox.receive``."""
        found = await self.lease(group, type, timeout=timeout, start=start)
        return found[0] if found else None

    async def exactly_once(
        self,
        group: str,
        handler: Handler,
        type: Any = None,
        *,
        limit: int = 1,
        timeout: float | None = 0.0,
        start: Where = EARLIEST,
    ) -> int:
        """Handle the next messages, off the loop, each with its mark in one commit; see ``Mailbox.exactly_once``."""

        def look() -> list[int]:
            handled = self._mailbox.exactly_once(group, handler, type, limit=limit, start=start)
            return [handled] if handled else []

        return sum(await self._until(look, timeout))


class AsyncMailboxes:
    """The mailboxes of the home; see ``Mailboxes``."""

    def __init__(self, mailboxes: Mailboxes, crossing: AsyncBridge, wait: Wait) -> None:
        self._mailboxes, self._crossing, self._wait = mailboxes, crossing, wait

    async def _awaitable(self, made: Callable[[], Mailbox]) -> AsyncMailbox:
        return AsyncMailbox(await self._crossing.call(made), self._crossing, self._wait)

    async def ensure(
        self,
        name: str | None = None,
        *,
        ttl: float | None = DAY,
        public: bool = False,
        description: str = "",
    ) -> AsyncMailbox:
        """Return a mailbox, made in our file if there was none; see ``Mailboxes.ensure``."""
        return await self._awaitable(
            lambda: self._mailboxes.ensure(name, ttl=ttl, public=public, description=description)
        )

    async def create(
        self,
        name: str | None = None,
        *,
        ttl: float | None = DAY,
        public: bool = False,
        description: str = "",
    ) -> AsyncMailbox:
        """Make a mailbox in our file; see ``Mailboxes.create``."""
        return await self._awaitable(
            lambda: self._mailboxes.create(name, ttl=ttl, public=public, description=description)
        )

    async def open(self, name: str) -> AsyncMailbox:
        """Return a mailbox by its public name or its private id; see ``Mailboxes.open``."""
        return await self._awaitable(lambda: self._mailboxes.open(name))

    async def list(self) -> list[MailboxInfo]:
        """Return the public mailboxes by name."""
        return await self._crossing.call(self._mailboxes.list)
