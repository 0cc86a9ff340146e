"""Warn of a message that is committed apart from rows that an ORM session has pending."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import local
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Engine, Pool, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session as OrmSession

from onceward import Postbox
from onceward.file.database import Database
from onceward.hooks import ComposedMessage, Observer, SendFacts, Sending, observe
from onceward.message.log import log

APART: Final = "message is committed apart from the pending rows of a SQLAlchemy session"


class _OfThread(local):
    """The sessions that this thread gave rows to."""

    def __init__(self) -> None:
        self.sessions: WeakSet[OrmSession] = WeakSet()


class _Apart(Sending):
    """A send that no session's transaction holds."""

    def __init__(self, agent: str, pending: Sequence[str]) -> None:
        self._agent, self._pending = agent, pending

    def composed(self, messages: Sequence[ComposedMessage]) -> None:
        """Warn, with both named."""
        ids, rows = [each.id for each in messages], ", ".join(self._pending)
        of_send = log.bind(agent=self._agent, message_id=ids[0], count=len(ids))
        of_send.warning(APART, pending=rows, cure="send by transaction(session) or session.send")


class _Watch(Observer):
    """Looks, at each send outside a transaction, for rows that its thread has pending."""

    def __init__(self, db: Database) -> None:
        self._db, self.pools = db, WeakSet[Pool]()

    def sending(self, send: SendFacts) -> Sending | None:  # noqa: ARG002 - an observer is handed it
        """Observe a send that is beside pending rows for the same file."""
        if self._db.writer.held:  # it is committed with the transaction of this thread
            return None
        pending = [row for session in _here.sessions for row in self._pending(session)]
        return _Apart(self._db.agent, sorted(set(pending))) if pending else None

    def _pending(self, session: OrmSession) -> Iterator[str]:
        """Yield the classes of the rows that a session has not written to this file."""
        changed = (each for each in session.dirty if session.is_modified(each))
        for row in (*session.new, *session.deleted, *changed):
            with suppress(UnboundExecutionError):
                if session.get_bind(type(row)).engine.pool in self.pools:
                    yield type(row).__name__


_here = _OfThread()
_watches: WeakKeyDictionary[Postbox, _Watch] = WeakKeyDictionary()


def watch(box: Postbox, engine: Engine) -> None:
    """Warn of sends of *box* beside rows for *engine*."""
    known = _watches.get(box)
    if known is None:
        known = _watches[box] = _Watch(box._db)
        observe(box, known)
    known.pools.add(engine.pool)


def note(session: OrmSession, _row: Any = None) -> None:
    """Take note that this thread uses a session."""
    _here.sessions.add(session)


event.listen(OrmSession, "transient_to_pending", note)
