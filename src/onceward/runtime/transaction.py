"""A transaction in the user's hands: SQL of their own and mail, one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, cast

from onceward.db.connection import translate_error
from onceward.db.group_commit import ENDED
from onceward.db.transaction import StoreTransaction
from onceward.errors import StoreError, StoreFault
from onceward.model.send_options import ParsedOptions, PublishOptions, SendOptions, parse_options
from onceward.runtime.fanout import Fanout, Publisher, SendResult, is_for_all
from onceward.runtime.results import task

Bindings = Sequence[Any] | Mapping[str, Any] | None


class Transaction:
    """
    Your statements and your messages, committed together or not at all.

    It belongs to the block, or the handler, that it was opened for; COMMIT and
    ROLLBACK are the block's business.
    """

    def __init__(self, tx: StoreTransaction, sender: Publisher, session: str) -> None:
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
            self._check_open(tx, error)
            raise self._translate(error) from error
        self._check_open(tx)
        return found

    def executemany(self, sql: str, bindings: Iterable[Any]) -> None:
        """Run *sql* once for each of *bindings*."""
        tx = self._alive()
        try:
            tx.many(sql, bindings)
        except Exception as error:
            raise self._translate(error) from error
        self._check_open(tx)

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
        named = parse_options(options)
        return (
            self._send_fanout(self._sender.to_everyone(self._session, to, body, named)).id
            if is_for_all(to)
            else self._add(cast("str", to), body, named)
        )

    def _add(self, to: str, body: object, options: ParsedOptions) -> str:
        """Promise a message whose options are a value already."""
        tx = self._alive()
        draft = self._sender.compose(self._session, to, body, options)
        try:
            return self._sender.add(tx, draft)
        except Exception as error:
            raise self._sender.translate_error(error) from error

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
            return self._sender.add(tx, draft)
        except Exception as error:
            raise self._sender.translate_error(error) from error

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """Send *body* to every agent that subscribed to *topic*, each once; return the ids, none where nobody did."""
        self._alive()
        return [
            message_id
            for _, message_id in self._send_fanout(
                self._sender.to_subscribers(self._session, topic, body, options)
            ).copies
        ]

    def _send_fanout(self, fan: Fanout) -> SendResult:
        return self._sender.add_fanout(self._alive(), fan)

    def _alive(self) -> StoreTransaction:
        if not self._open:
            msg = "this transaction is over: begin another"
            raise StoreError(msg)
        self._check_open(self._tx)
        return self._tx

    @staticmethod
    def _check_open(tx: StoreTransaction, cause: Exception | None = None) -> None:
        if not tx.alive and not isinstance(cause, MemoryError):
            raise StoreFault(ENDED) from cause

    def _translate(self, error: Exception) -> BaseException:
        """Return what an error means that a user's own statement met: what SQLite says of its SQL and its rows is said as it is."""
        return translate_error(error, self._sender.db.path)

    def _finish(self) -> None:
        """Take the transaction out of the user's hands."""
        self._open = False
