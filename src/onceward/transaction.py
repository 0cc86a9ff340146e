"""A transaction in the user's hands: SQL of their own and mail, one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from onceward.errors import StoreError, StoreFault
from onceward.options import Options, PublishOptions, SendOptions, options_of
from onceward.results import task
from onceward.sender import Sender
from onceward.tx import Tx
from onceward.writer import ENDED

Bindings = Sequence[Any] | Mapping[str, Any] | None


class Transaction:
    """
    Your statements and your messages, committed together or not at all.

    It belongs to the block, or the handler, that it was opened for; COMMIT and
    ROLLBACK are the block's business.
    """

    def __init__(self, tx: Tx, sender: Sender, session: str) -> None:
        self._tx, self._sender, self._session = tx, sender, session
        self._open = True

    def execute(self, sql: str, bindings: Bindings = None) -> list[tuple[Any, ...]]:
        """
        Run *sql* and return all its rows.

        Raises:
            apsw.Error: what SQLite says of your statement.
            StoreError: the file itself failed, or the block is over.

        """
        tx = self._alive()
        try:
            found = tx.rows(sql, bindings)
        except Exception as error:
            self._still(tx, error)
            raise self._sender.mapped(error) from error
        self._still(tx)
        return found

    def executemany(self, sql: str, bindings: Iterable[Any]) -> None:
        """Run *sql* once for each of *bindings*."""
        tx = self._alive()
        try:
            tx.many(sql, bindings)
        except Exception as error:
            raise self._sender.mapped(error) from error
        self._still(tx)

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Promise a message with this transaction; return its id, which exists before the commit.

        Spans are seconds. The same *key* with the same body returns the id of
        the first; with another body it raises Conflict.

        Raises:
            SendError: see its subclasses; this message was not written, the transaction goes on.

        """
        return self.put(to, body, options_of(options))

    def put(self, to: str, body: object, options: Options) -> str:
        """Promise a message whose options are a value already."""
        tx = self._alive()
        draft = self._sender.draft(self._session, to, body, options)
        try:
            return self._sender.put(tx, draft)
        except Exception as error:
            raise self._sender.mapped(error) from error

    def dispatch(self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]) -> str:
        """
        Give another agent a task with this transaction, in a session of its own; return the dispatch id.

        However it ends there, a ``worker_result`` with that id comes into this
        session, once; the other agent must serve the task's session by runs.
        """
        tx = self._alive()
        draft = task(self._sender, self._session, to, body, session=session, options=options)
        try:
            return self._sender.put(tx, draft)
        except Exception as error:
            raise self._sender.mapped(error) from error

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """Send *body* to every peer that subscribed to *topic*; return the ids, none where nobody did."""
        named = Options(topic=topic, **options)
        return [self.put(peer, body, named) for peer in self._sender.subscribers(topic)]

    def _alive(self) -> Tx:
        if not self._open:
            msg = "this transaction is over: begin another"
            raise StoreError(msg)
        self._still(self._tx)
        return self._tx

    @staticmethod
    def _still(tx: Tx, cause: Exception | None = None) -> None:
        if not tx.alive and not isinstance(cause, MemoryError):
            raise StoreFault(ENDED) from cause

    def finish(self) -> None:
        """Take the transaction out of the user's hands."""
        self._open = False
