"""A transaction in the user's hands: SQL of their own and mail, one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, cast

from onceward.db.connection import mapped
from onceward.db.group_commit import ENDED
from onceward.db.transaction import Tx
from onceward.errors import StoreError, StoreFault
from onceward.model.send_options import Options, PublishOptions, SendOptions, options_of
from onceward.runtime.fanout import Fan, Posted, Publisher, is_for_all
from onceward.runtime.results import task

Bindings = Sequence[Any] | Mapping[str, Any] | None


class Transaction:
    """
    Your statements and your messages, committed together or not at all.

    It belongs to the block, or the handler, that it was opened for; COMMIT and
    ROLLBACK are the block's business.
    """

    def __init__(self, tx: Tx, sender: Publisher, session: str) -> None:
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
            raise self._meant(error) from error
        self._still(tx)
        return found

    def executemany(self, sql: str, bindings: Iterable[Any]) -> None:
        """Run *sql* once for each of *bindings*."""
        tx = self._alive()
        try:
            tx.many(sql, bindings)
        except Exception as error:
            raise self._meant(error) from error
        self._still(tx)

    def send(self, to: str | None, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Promise a message with this transaction; return its id, which exists before the commit.

        Spans are seconds. The same *key* with the same body returns the id of
        the first; with another body it raises Conflict. To None, ``"all"`` or
        ``"broadcast"`` it reaches every registered agent of the home but this
        one, and the id is the one that all copies carry as correlation id.

        Raises:
            SendError: see its subclasses; this message was not written, the transaction goes on.

        """
        named = options_of(options)
        return (
            self._spread(self._sender.fan_all(self._session, to, body, named)).id
            if is_for_all(to)
            else self.put(cast("str", to), body, named)
        )

    def put(self, to: str, body: object, options: Options) -> str:
        """Promise a message whose options are a value already."""
        tx = self._alive()
        draft = self._sender.draft(self._session, to, body, options)
        try:
            return self._sender.put(tx, draft)
        except Exception as error:
            raise self._sender.mapped(error) from error

    def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """
        Give another agent a task with this transaction, in a session of its own; return the dispatch id.

        However it ends there, in a run, a handler or by hand, a
        ``worker_result`` with that id comes into this session, once. If it
        becomes a dead letter here, the result says ``undelivered``; one that
        got there all the same may still be followed by its own.
        """
        tx = self._alive()
        draft = task(self._sender, self._session, to, body, session=session, options=options)
        try:
            return self._sender.put(tx, draft)
        except Exception as error:
            raise self._sender.mapped(error) from error

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """Send *body* to every agent that subscribed to *topic*, each once; return the ids, none where nobody did."""
        self._alive()
        return [
            message_id
            for _, message_id in self._spread(
                self._sender.fan_topic(self._session, topic, body, options)
            ).copies
        ]

    def _spread(self, fan: Fan) -> Posted:
        return self._sender.put_fan(self._alive(), fan)

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

    def _meant(self, error: Exception) -> BaseException:
        """Return what an error means that a user's own statement met: what SQLite says of its SQL and its rows is said as it is."""
        return mapped(error, self._sender.db.path)

    def finish(self) -> None:
        """Take the transaction out of the user's hands."""
        self._open = False
