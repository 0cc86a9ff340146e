"""
Track requests that wait for a reply.

A wait is stored with its request, so that it survives a restart of the asker. A handler
ends while replies are awaited, and is called again with them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, Unpack

from typing_extensions import TypeForm

from onceward.core.rows import tickets
from onceward.core.send.add import Asker, Outbox, add_request
from onceward.core.send.call_parts import Suspended
from onceward.core.send.compose import OutgoingMessage
from onceward.core.send.tasks import HandledMessage
from onceward.errors import (
    AnswerTimeout,
    Conflict,
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    RequestCancelled,
    RequestFailed,
)
from onceward.file.connection import ConstraintError
from onceward.file.database import Database
from onceward.file.sql_parts import senders
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import checked
from onceward.message.body import BYTES, canonical, decode, encode
from onceward.message.clock import Millis
from onceward.message.error_text import Hint
from onceward.message.frame import Frame
from onceward.message.options import MessageOptions, SendOptions, asking_options, request_options
from onceward.message.record import Ticket, ticket_id
from onceward.message.times import Span, seconds
from onceward.message.vocabulary import AWAITS, RequestState, reason_of

T = TypeVar("T")
LOOK_AGAIN: Final = 86_400_000
"""Milliseconds after which a handler that waits without a deadline is called again."""
STATE: Final = "SELECT state, deadline_at FROM _onceward_pending_replies WHERE id = ?"
GET_PROGRESS: Final = "SELECT progress FROM _onceward_pending_replies WHERE id = ?"
OF_HANDLER: Final = """
SELECT asker_index, id, recipient, asker_digest
  FROM _onceward_pending_replies
 WHERE asker_seq = ?
"""
NEXT_NUMBER: Final = """
SELECT coalesce(max(asker_index), -1) + 1 FROM _onceward_pending_replies WHERE asker_seq = ?
"""
LOOK: Final = """
SELECT t.state, t.reason, t.recipient, b.frame
  FROM _onceward_pending_replies AS t
  LEFT JOIN _onceward_inbox AS b ON b.id = t.reply_id AND b.sender = t.recipient
 WHERE t.id = ?
"""
LOOK_WITH_DEADLINE: Final = LOOK.replace("b.frame\n", "b.frame, t.deadline_at, t.ended_at\n", 1)

# Two senders may have chosen the same id: a message of this agent comes first, then the last one.
RESULT: Final = """
SELECT r.media, r.result, i.agent
  FROM _onceward_results AS r, _onceward_file_info AS i
 WHERE r.message_id = :id AND r.until_at >= :now
 ORDER BY r.sender <> i.agent, r.seq DESC LIMIT 1
"""
# A message that asked for no reply: in its recipient's file, or in that of its sender.
UNASKED: Final = f"""{senders("_onceward_inbox")}
SELECT 1, b.state, b.reason, i.agent, CASE WHEN b.run_seq IS NOT NULL THEN b.session END
  FROM senders AS s CROSS JOIN _onceward_file_info AS i
  JOIN _onceward_inbox AS b ON b.sender = s.name AND b.id = :id
 UNION ALL
SELECT 2, 'dead', reason, CASE origin WHEN 'outbox' THEN peer ELSE agent END, NULL
  FROM _onceward_dead_letters, _onceward_file_info WHERE id = :id
 UNION ALL
SELECT 3, state, reason, recipient, NULL FROM _onceward_outbox WHERE id = :id
 ORDER BY 1
"""
NO_RESULT: Final = (
    "processed, and its result was not kept (declare its handler with keep_result=True) or has "
    "been deleted (see result_retention)"
)
OF_A_RUN: Final = f"processed by a run, which has its result: {Hint.RUNS}(session={{!r}})"


class HandlerRequest(NamedTuple):
    """A request that an earlier call of a handler made."""

    id: str
    recipient: str
    digest: bytes


class ReplyState(NamedTuple):
    """The state of a request: open, answered, late or failed; ``frame`` is the reply."""

    state: RequestState
    reason: str | None
    recipient: str
    frame: str | None
    kept: tuple[str, str] | None = None
    """Media type and JSON of the result of a message that asked for no reply."""


# -- requests -------------------------------------------------------------------------------------


def reply_state(db: Database, request: str) -> ReplyState:
    """
    Return the state of a request, or of a message whose handler keeps its result.

    Raises:
        InvalidArgument: it is unknown, or the file of its recipient has the result.

    """
    rows = db.read(LOOK, (request,))
    return ReplyState(*rows[0]) if rows else _result_state(db, request)


def _result_state(db: Database, message_id: str) -> ReplyState:
    """Return the state of a message that asked for no reply, as that of a request."""
    kept = db.read(RESULT, {"id": message_id, "now": db.now()})
    if kept:
        [(media, result, agent)] = kept
        return ReplyState("answered", None, agent, None, (media, result))
    found = db.read(UNASKED, {"id": message_id})
    if not found:
        raise _unknown(message_id)
    _, state, reason, recipient, ran_in = found[0]
    if state != "dead" and recipient != db.agent:
        msg = (
            f"message {message_id} was sent to {recipient} without asking for a reply: "
            "send it with request(), or ask for its result in the file of its recipient"
        )
        raise InvalidArgument(msg)
    if state in {"pending", "sent"}:
        return ReplyState("open", None, recipient, None)
    ended = NO_RESULT if ran_in is None else OF_A_RUN.format(ran_in)
    ended = ended if state in {"processed", "acked"} else reason or state
    return ReplyState("failed", ended, recipient, None)


def progress(db: Database, request: str) -> Any:
    """Return the last progress of a request; raise InvalidArgument for an unknown one."""
    rows = db.read(GET_PROGRESS, (request,))
    if not rows:
        raise _unknown(request)
    [(text,)] = rows
    return None if text is None else json.loads(text)


def _unknown(request: str) -> InvalidArgument:
    return InvalidArgument(f"no request {request} here: never sent from this file, or pruned")


def read_reply(ticket_id: str, found: ReplyState, reply: TypeForm[T]) -> T:
    """Return a reply read as *reply*; raise RequestFailed if none will come."""
    if found.kept is not None:
        media, text = found.kept
        plain, as_bytes = (json.loads(text), None), (None, json.loads(text))
        data, base64_text = as_bytes if media == BYTES else plain
        kept: T = decode(data, base64_text, reply)
        return kept
    if found.frame is None:
        reason = found.reason or "its reply was pruned"
        msg = f"request {ticket_id} to {found.recipient} ended without a reply: {reason}"
        kind = RequestCancelled if reason_of(reason) == "cancelled" else RequestFailed
        raise kind(msg, message_id=ticket_id, reason=reason)
    frame = Frame.parse(found.frame)
    if frame.body_error is not None:
        raise InvalidMessage(f"reply {frame.id} to request {ticket_id}: {frame.body_error}")
    value: T = decode(frame.data, frame.data_base64, reply)
    return value


def note_progress(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Store a handler's progress for its request; return True."""
    data = frame.data if frame.data_base64 is None else frame.data_base64
    tickets.note_progress(tx, str(frame.causationid), sender, encode(data).text)
    return True


# -- requests of a handler ------------------------------------------------------------------------


class MadeRequest(NamedTuple):
    """An uncommitted request of this call of the handler."""

    message: OutgoingMessage
    timeout: float | None
    """Seconds."""
    asker: Asker


def _likeness(to: str, body: object) -> bytes:
    """Return a digest that equal bodies to one agent share."""
    media, text, kind = encode(body)
    return sha256(repr((to, media, kind, canonical(text))).encode()).digest()


class HandlerRequests:
    """
    The requests of the handler of one message, identified by their order.

    A call whose request an earlier call has made gets its reply, and sends none.
    """

    def __init__(self, outbox: Outbox, handled: HandledMessage) -> None:
        self._outbox, self._handled = outbox, handled
        self._known: dict[int, HandlerRequest] | None = None
        self._count = 0
        self._made: list[MadeRequest] = []
        self._awaited: Suspended | None = None
        """Why this call has ended, even if its handler caught that."""
        self._adopted: dict[int, str] = {}
        """Requests from before a replay that this call has reused, by their number."""

    def find_or_make(
        self, to: str, body: object, timeout: Span | None, options: MessageOptions
    ) -> Ticket | MadeRequest:
        """
        Return the ticket of an earlier call's request at this place, or of a new one to send.

        Raises:
            Conflict: the earlier call made another request here.
            InvalidArgument: an option that would merge two requests.

        """
        if {"key", "message_id"} & options.keys():
            msg = "a handler's requests are identified by their order: omit key and id"
            raise InvalidArgument(msg)
        index, self._count = self._count, self._count + 1
        asker = Asker(self._handled.seq, index, _likeness(to, body))
        known = self._earlier().get(index) or self._from_before_replay(index, asker.digest)
        if known is None:
            message = self._outbox.compose(self._handled.session, to, body, options)
            wait = None if timeout is None else seconds("timeout", timeout, error=InvalidMessage)
            self._made.append(made := MadeRequest(message, wait, asker))
            return made
        if known.digest != asker.digest:
            msg = (
                f"request {index + 1} of this handler differs from that of its first call "
                f"({known.id} to {known.recipient}): make the same requests at each call, and use "
                "changing values (time, random numbers, the file) only after the last reply"
            )
            raise Conflict(msg, message_id=known.id)
        return Ticket(known.id, known.recipient)

    def has(self, message_id: str | None) -> bool:
        """Return whether an earlier call of the handler made a request, whose outcome is stored."""
        return any(each.id == message_id for each in self._earlier().values())

    def _from_before_replay(self, index: int, digest: bytes) -> HandlerRequest | None:
        """Return the equal request that a call made here before the message died, if any."""
        found = self._earlier().get(-1 - index)  # the number that a replay gave it
        if found is None or found.digest != digest:
            return None
        self._adopted[index] = found.id
        return found

    def result(self, request: str, reply: TypeForm[T]) -> T:
        """Return a reply; raise Suspended while it is awaited."""
        return self.gather([request], reply)[0]

    def gather(self, requests: Sequence[str], reply: TypeForm[T]) -> list[T]:
        """Return the replies to requests; raise Suspended while one is awaited."""
        ended: list[ReplyState | AnswerTimeout] = []
        awaited: list[str] = []
        for each in requests:
            found = self._ended(each)
            if found is None:
                awaited.append(each)
            else:
                ended.append(found)
        if awaited:
            self.wait(*awaited)
        return [_reply(each, found, reply) for each, found in zip(requests, ended, strict=True)]

    def _ended(self, request: str) -> ReplyState | AnswerTimeout | None:
        """Return the outcome of a request for its handler; None while its reply is awaited."""
        if any(made.message.id == request for made in self._made):
            return None
        rows = self._outbox.db.read(LOOK_WITH_DEADLINE, (request,))
        if not rows:
            raise _unknown(request)
        *state, deadline_at, ended_at = rows[0]
        found = ReplyState(*state)
        until = self._outbox.db.now() if ended_at is None else ended_at
        if deadline_at is not None and until > deadline_at:
            msg = f"no reply to {request} in time"
            return AnswerTimeout(msg, message_id=request, reason=found.state)
        if found.state == "open":
            self._check_own(request)
            return None
        # A request with a reason had failed for earlier calls, before its reply came.
        return found if found.reason is None else found._replace(frame=None)

    def _check_own(self, request: str) -> None:
        """Raise InvalidArgument for a request whose reply would not call this handler."""
        if all(request != each.id for each in self._earlier().values()):
            raise InvalidArgument(
                f"request {request} was not made by this handler, which can wait only for its own "
                "requests: make it with ctx.request, or ask for its result where it was made"
            )

    def wait(self, *requests: str) -> NoReturn:
        """End the call, until all of these requests have ended."""
        more = f" and {len(requests) - 1} others" if len(requests) > 1 else ""
        until = partial(self._until, requests=requests)
        self._awaited = Suspended(f"{AWAITS}{requests[0]}{more}", until)
        raise self._awaited

    def end_call(self) -> None:
        """End a call that returned although it still awaits a reply."""
        if self._awaited is not None:
            raise self._awaited

    def add(self, tx: StoreTransaction, made: MadeRequest) -> Ticket:
        """
        Store a request in the handler's transaction.

        Raises:
            LeaseLost: another worker handles the message, and has made this request.

        """
        try:
            return add_request(tx, self._outbox, made.message, made.timeout, made.asker)
        except ConstraintError as error:
            msg = "another worker has the message, and has already made the request"
            raise LeaseLost(msg) from error

    def add_now(
        self, tx: StoreTransaction, message: OutgoingMessage, timeout: Span | None
    ) -> Ticket:
        """Store a request in a separate commit, which identifies it."""
        seq = self._handled.seq
        [(number,)] = tx.rows(NEXT_NUMBER, (seq,))
        self._known = None
        return add_request(tx, self._outbox, message, timeout, Asker(seq, number, b""))

    def keep(self, tx: StoreTransaction) -> None:
        """Store the requests of this call, which ends to wait."""
        for made in self._made:
            self.add(tx, made)
        for number, message_id in self._adopted.items():
            tickets.adopt(tx, message_id, number)

    def refuse_inside(self, what: str) -> None:
        """Allow *what*: a request has no inside."""

    def close(self) -> None:
        """Do nothing: the next call finds the requests."""

    def _until(self, tx: StoreTransaction, requests: Sequence[str]) -> Millis:
        """
        Return the latest time at which to call a handler that waits for replies again.

        The last reply makes that earlier: the commit that stores it wakes the lane.
        """
        dates = [_open_until(tx, each) for each in requests]
        awaited = [each for each in dates if each is not None]
        if not awaited:  # the replies came after this call had looked
            return tx.now
        if len(requests) > 1:
            tickets.gather(tx, requests)
        return min(awaited)

    def _earlier(self) -> dict[int, HandlerRequest]:
        if self._known is None:
            rows = self._outbox.db.read(OF_HANDLER, (self._handled.seq,))
            self._known = {row[0]: HandlerRequest(*row[1:]) for row in rows}
        return self._known


class WithReplies:
    """The requests of a handler and their replies; ``Context`` and ``Run`` have them."""

    _requests: HandlerRequests

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
        Send a request, and return the ticket for ``result``.

        It leaves with the processed mark; in a run at once, as a step. If an earlier call made it
        for the same messages, such as before a kill or a retry, its ticket is returned and nothing
        is sent. With *reply* the request carries the schema of the expected reply.

        Raises:
            Conflict: the earlier call made another request at this place.
            LeaseLost: the run was ended from outside.

        """
        return self._request(to, body, timeout, request_options(options, reply))

    def ask(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[T],
        timeout: Span = "1h",
        **options: Unpack[SendOptions],
    ) -> T:
        """
        Send a request and return its reply, read as *reply*: the handler is called again with it.

        Until the reply arrives this call **ends**: the handler's writes are rolled back, its
        requests are committed, no lock is held, and its lane waits. Then the handler is called
        again from its start, and each request that it makes in the same order gets its stored
        reply. This survives restarts, and does not count as an attempt. In a run, the same messages
        get another run; the session begins no other one before that, unless a message steers or
        interrupts it.

        Raises:
            AnswerTimeout: no reply came within *timeout*.
            RequestFailed: the peer gave the request up, or handled it without a reply.
            InvalidMessage: the reply does not fit.
            Conflict: an earlier call made another request at this place.

        """
        asked = self._question(to, body, timeout, asking_options(options, reply))
        return self.result(asked, reply=reply)

    def _request(
        self, to: str, body: object, timeout: Span | None, options: MessageOptions
    ) -> Ticket:
        """Send a request that no earlier call has made; return its ticket."""
        raise NotImplementedError

    def _question(
        self, to: str, body: object, timeout: Span | None, options: MessageOptions
    ) -> Ticket:
        """Return the ticket of a request that leaves when the call waits for it, or earlier."""
        return self._request(to, body, timeout, options)

    @checked
    def result(self, ticket: Ticket | str, *, reply: TypeForm[T]) -> T:
        """Return the reply to a ticket of ``request``, or to its id, as ``ask`` does."""
        return self._requests.result(ticket_id(ticket), reply)

    @checked
    def gather(self, tickets: Sequence[Ticket | str], *, reply: TypeForm[T]) -> list[T]:
        """
        Return the replies to tickets of ``request``, in order, once all have ended.

        Until then the call ends as in ``ask``, and the handler is called again once: with the last
        reply. If requests failed, the error of the first one, in the order of the tickets, is
        raised after all have ended; ``result`` returns the other replies.

        Raises:
            AnswerTimeout: a reply did not come in time.
            RequestFailed: a peer gave one up, or handled it without replying.
            InvalidMessage: a reply does not fit.

        """
        return self._requests.gather([ticket_id(each) for each in tickets], reply)


def _open_until(tx: StoreTransaction, request: str) -> Millis | None:
    """Return when to check an open request again; None for others."""
    [(state, deadline_at)] = tx.rows(STATE, (request,))
    if state != "open":
        return None
    return int(tx.now + LOOK_AGAIN if deadline_at is None else deadline_at + 1)


def _reply(request: str, found: ReplyState | AnswerTimeout, reply: TypeForm[T]) -> T:
    if isinstance(found, AnswerTimeout):
        raise found
    return read_reply(request, found, reply)
