"""Keep the conversations of the SDK's agents in an agent's file."""

from __future__ import annotations

import json
from asyncio import to_thread
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings

from onceward import AsyncContext, AsyncPostbox, AsyncRun, Context, Postbox, Run
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.integrations.openai_agents import stored
from onceward.integrations.openai_agents.stored import TABLES, StoredItem

T = TypeVar("T")
Handler = AsyncContext | AsyncRun | Context | Run


class OncewardSession(SessionABC):
    """
    A conversation of the SDK's agents, in the file of a postbox or of a handler.

    ``OncewardSession(ctx)`` is that of the message's session: its items are committed with the
    processed mark, and a call that fails leaves none. ``OncewardSession(box, "name")`` commits
    each call.
    """

    def __init__(
        self,
        of: Postbox | AsyncPostbox | Handler,
        session_id: str | None = None,
        *,
        session_settings: SessionSettings | None = None,
    ) -> None:
        own = "default" if isinstance(of, Postbox | AsyncPostbox) else of.session
        self.session_id: str = session_id or own
        self.session_settings = session_settings or SessionSettings()
        self._of = of

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in their order; the newest *limit* of them."""
        wanted = self.session_settings.limit if limit is None else limit
        found = await self._off(partial(self._get, -1 if wanted is None else wanted))
        return [json.loads(each) for each in found]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end."""
        if items:
            await self._off(partial(self._add, [json.dumps(each) for each in items]))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the newest item; None if there is none."""
        found = await self._off(self._pop)
        return None if found is None else json.loads(found)

    async def clear_session(self) -> None:
        """Delete all items."""
        await self._off(self._clear)

    # -- on a thread that may touch the file ------------------------------------------------

    def _get(self, limit: int) -> list[str]:
        if (kept := self._kept) is not None:
            return kept.newest(limit)
        db = self._db
        rows = stored.newest(db.ask, self.session_id, limit) if TABLES.exist(db) else []
        return [each.text for each in rows]

    def _add(self, items: list[str]) -> None:
        if (kept := self._kept) is not None:
            kept.items += [StoredItem(None, each) for each in items]
        else:
            self._db.write(partial(stored.add, session=self.session_id, items=items))

    def _pop(self) -> str | None:
        if (kept := self._kept) is not None:
            return kept.pop()
        db = self._db
        return db.write(partial(stored.pop, session=self.session_id)) if TABLES.exist(db) else None

    def _clear(self) -> None:
        if (kept := self._kept) is not None:
            kept.clear()
        elif TABLES.exist(self._db):
            self._db.write(partial(stored.clear, session=self.session_id))

    @property
    def _db(self) -> Database:
        box: Any = self._of
        found: Database = box._db if isinstance(box, Postbox) else box._plain._db
        return found

    @property
    def _kept(self) -> KeptItems | None:
        """Return what the call of a handler keeps of this conversation; None for a postbox."""
        if isinstance(self._of, Postbox | AsyncPostbox):
            return None
        plain: Any = self._of._plain if isinstance(self._of, AsyncContext | AsyncRun) else self._of
        known = _kept_by.setdefault(plain, {})
        if self.session_id not in known:
            known[self.session_id] = KeptItems.of_call(plain, self.session_id)
        return known[self.session_id]

    async def _off(self, work: Callable[[], T]) -> T:
        of = self._of
        if isinstance(of, AsyncContext | AsyncRun | AsyncPostbox):
            return await of._off_loop.call(work)
        if isinstance(of, Postbox):
            return await to_thread(work)
        return work()  # a loop on the thread of a handler


class KeptItems:
    """The items of a conversation as one call of a handler sees, and changes, them."""

    def __init__(self, session: str, items: list[StoredItem]) -> None:
        self.items = items
        """All of them, in their order."""
        self._session = session
        self._gone: list[StoredItem] = []

    @classmethod
    def of_call(cls, plain: Any, session: str) -> KeptItems:
        """Return those of the file; they are stored with the processed mark of the call."""
        db = plain._outbox.db
        kept = cls(session, stored.newest(db.read, session, -1) if TABLES.exist(db) else [])
        plain._steps  # noqa: B018 - the end of a call asks contexts that have steps
        plain._at_end(kept.store)
        return kept

    def newest(self, limit: int) -> list[str]:
        """Return the newest items in their order; all with a negative limit."""
        first = 0 if limit < 0 else max(0, len(self.items) - limit)
        return [each.text for each in self.items[first:]]

    def pop(self) -> str | None:
        """Take the newest item."""
        if not self.items:
            return None
        self._gone.append(self.items.pop())
        return self._gone[-1].text

    def clear(self) -> None:
        """Take all items."""
        self._gone += self.items
        self.items = []

    def store(self, tx: StoreTransaction) -> None:
        """Store what has changed; it may be run again."""
        gone = [each for each in self._gone if each.seq is not None]
        fresh = [each.text for each in self.items if each.seq is None]
        if gone:
            stored.delete(tx, gone)
        if fresh:
            stored.add(tx, self._session, fresh)


_kept_by: WeakKeyDictionary[Any, dict[str, KeptItems]] = WeakKeyDictionary()
