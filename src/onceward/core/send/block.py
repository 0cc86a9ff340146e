"""Run SQL and send messages in the transaction of a block or a handler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from typing_extensions import TypeForm

from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send.add import Outbox, add_request
from onceward.core.send.compose import EVERY_AGENT
from onceward.core.send.tasks import task
from onceward.errors import StoreError
from onceward.file.connection import raise_meant, translate_error
from onceward.file.group_commit import ended
from onceward.file.transaction import (
    StoreTransaction,
    bad_bindings,
    check_bindings,
    check_statement,
    refuse_pragma,
)
from onceward.message.ids import RepeatableIds
from onceward.message.names import listed
from onceward.message.options import (
    MessageOptions,
    PublishOptions,
    SendOptions,
    parse_options,
    request_options,
)
from onceward.message.record import Ticket
from onceward.message.times import Span

if TYPE_CHECKING:
    from onceward.core.send.fanout import Fanout, SendResult

Bindings = Sequence[Any] | Mapping[str, Any] | None


class BlockOpener(Protocol):
    """Opens blocks: the part of a session that features use."""

    @property
    def name(self) -> str:
        """Return the name of the session."""

    def begin(self) -> AbstractContextManager[Transaction]:
        """Open a transaction; leaving it commits, an exception rolls back."""


class Transaction:
    """
    Your statements and messages, committed together or not at all.

    It belongs to the block or handler for which it was opened; the block runs COMMIT and ROLLBACK.
    """

    def __init__(
        self,
        tx: StoreTransaction,
        outbox: Outbox,
        session: str,
        *,
        hops: int = 0,
        ids: RepeatableIds | None = None,
    ) -> None:
        self._tx, self._outbox, self._session = tx, outbox, session
        self._hops, self._ids = hops, ids
        self._open = True

    def execute(self, sql: str, bindings: Bindings = None) -> list[tuple[Any, ...]]:
        """
        Run *sql* and return all its rows.

        Raises:
            apsw.Error: SQLite refused your statement.
            InvalidArgument: a pragma that is out of place in a transaction.
            StoreError: the file itself failed, or the block has ended.

        """
        tx = self._tx if self._open and self._tx.alive else self._alive()
        if not isinstance(sql, str) or not sql or isinstance(bindings, str | bytes):
            check_statement(sql)
            check_bindings(bindings)
        if "pragma" in sql.lower():
            refuse_pragma(sql)
        try:
            found = tx.rows(sql, bindings)
        except Exception as error:
            self._check_open(tx, error)
            check_statement(sql)
            check_bindings(bindings, error)
            raise_meant(self._translate(error), error)
            raise
        if not tx.alive:
            self._check_open(tx)
        return found

    def executemany(self, sql: str, bindings: Iterable[Any]) -> None:
        """Run *sql* once for each of *bindings*."""
        tx = self._alive()
        check_statement(sql)
        if "pragma" in sql.lower():
            refuse_pragma(sql)
        try:
            tx.many(sql, listed("bindings", bindings))
        except (TypeError, KeyError, OverflowError) as error:
            raise bad_bindings(bindings, error) from error
        except Exception as error:
            raise_meant(self._translate(error), error)
            raise
        self._check_open(tx)

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Send a message with this transaction; return its id, which exists before the commit.

        Spans are seconds. The same message under the same *key* returns the id of the first; with
        another body, session, priority … it raises Conflict. Sent to ``"all"`` it is a
        ``broadcast``.

        Raises:
            SendError: see its subclasses; this message was not written, the transaction continues.

        """
        named = parse_options(options)
        if to in EVERY_AGENT:
            return self._send_to_everyone(body, named)
        return self._add(to, body, named)

    def broadcast(self, body: object, **options: Unpack[SendOptions]) -> str:
        """
        Send *body* with this transaction to every other registered agent of the home.

        Returns the correlation id of all copies; the options are those of ``send``.

        Raises:
            UnknownRecipient: no other agent is registered.

        """
        return self._send_to_everyone(body, parse_options(options))

    def _send_to_everyone(self, body: object, options: MessageOptions) -> str:
        from onceward.core.send import fanout  # noqa: PLC0415 - rarely needed

        named, composer = self._tied(options), self._outbox.composer
        copies = fanout.to_everyone(composer, self._session, body, named)
        return self._send_fanout(copies).id

    def _add(self, to: str, body: object, options: MessageOptions) -> str:
        """Send a message whose options are checked already."""
        tx = self._alive()
        return self._store(tx, self._outbox.compose(self._session, to, body, self._tied(options)))

    def _store(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        try:
            return self._outbox.add(tx, message)
        except Exception as error:
            raise_meant(self._outbox.db.translate_error(error), error)
            raise

    def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """
        Send another agent a task, in a separate session; return the dispatch id.

        However it ends there, in a run, a handler or by hand, one ``worker_result`` with that id
        arrives in this session. If it becomes a dead letter here, the result says ``undelivered``;
        if it arrived after all, its own result may follow.
        """
        tx = self._alive()
        named = self._tied(parse_options(options))
        message = task(self._outbox, self._session, to, body, session=session, options=named)
        return self._store(tx, message)

    def request(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[object] | None = None,
        timeout: Span | None = None,
        **options: Unpack[SendOptions],
    ) -> Ticket:
        """
        Send a request with this transaction; return the ticket of its reply.

        Ask for the reply once this is committed: ``session.result(ticket, reply=…)``. A reply that
        arrives after *timeout* seconds is kept as late. With *reply* the request carries the schema
        of the expected reply.
        """
        tx = self._alive()
        options.setdefault("reply_to", self._outbox.db.agent)
        named = self._tied(request_options(options, reply))
        message = self._outbox.compose(self._session, to, body, named)
        try:
            return add_request(tx, self._outbox, message, timeout)
        except Exception as error:
            raise_meant(self._outbox.db.translate_error(error), error)
            raise

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """Send *body* to every subscriber of *topic*, each once; return the message ids."""
        from onceward.core.send import fanout  # noqa: PLC0415 - rarely needed

        self._alive()
        named, composer = self._tied(parse_options(options)), self._outbox.composer
        copies = fanout.to_subscribers(composer, self._session, topic, body, named)
        return [message_id for _, message_id in self._send_fanout(copies).copies]

    def _begin_part(self, place: str) -> None:
        """Give what is sent from here on the ids of a part that may not run again."""
        if self._ids is not None:
            self._ids = self._ids.within(place)

    def _tied(self, options: MessageOptions) -> MessageOptions:
        """Let messages of a handler continue the chain of what it handles, under its ids."""
        if self._hops:
            options.setdefault("hops", self._hops)
        if self._ids is not None:
            options["ids"] = self._ids
        return options

    def _send_fanout(self, copies: Fanout) -> SendResult:
        return self._outbox.add_fanout(self._alive(), copies)

    def _alive(self) -> StoreTransaction:
        if not self._open:
            raise StoreError("this transaction has ended: begin another")
        self._check_open(self._tx)
        return self._tx

    @staticmethod
    def _check_open(tx: StoreTransaction, cause: Exception | None = None) -> None:
        if not tx.alive and not isinstance(cause, MemoryError):
            raise ended(tx) from cause

    def _translate(self, error: Exception) -> BaseException:
        """Return the error for a user's statement; errors of its SQL stay unchanged."""
        return translate_error(error, self._outbox.db.path)

    def _finish(self) -> None:
        """Close this transaction object; every later call raises StoreError."""
        self._open = False
