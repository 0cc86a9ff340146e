"""Read how requests ended, and the results that are kept for messages that asked for no reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, ParamSpec, TypeVar

from typing_extensions import TypeForm

from onceward.core.rows import outbox, tickets
from onceward.errors import (
    AnswerTimeout,
    InvalidArgument,
    InvalidMessage,
    OncewardError,
    RequestCancelled,
    RequestFailed,
)
from onceward.features.requests.results import Ends, FileOfAgent, elsewhere, ends_of
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.body import BYTES, decode, encode
from onceward.message.error_text import Hint
from onceward.message.frame import Frame
from onceward.message.record import Ticket, ticket_id
from onceward.message.times import Span, seconds
from onceward.message.vocabulary import RequestState, reason_of

T = TypeVar("T")
P = ParamSpec("P")
LOOK: Final = """
SELECT t.state, t.reason, t.recipient, b.frame
  FROM _onceward_pending_replies AS t
  LEFT JOIN _onceward_inbox AS b ON b.id = t.reply_id AND b.sender = t.recipient
 WHERE t.id = ?
"""
NO_RESULT: Final = (
    "processed without a result: its handler returned none (keep_result=True keeps None, too), or "
    "it has been deleted (see result_retention)"
)
UNENDED: Final = frozenset({"pending", "sent"})
OF_A_RUN: Final = f"processed by a run, which has its result: {Hint.RUNS}(session={{!r}})"


class ReplyState(NamedTuple):
    """The state of a request: open, answered, late or failed; ``frame`` is the reply."""

    state: RequestState
    reason: str | None
    recipient: str
    frame: str | None
    kept: tuple[str, str] | None = None
    """Media type and JSON of the result of a message that asked for no reply."""


def reply_state(db: Database, files: FileOfAgent, request: str) -> ReplyState:
    """
    Return the state of a request, or of a message that asked for no reply.

    Raises:
        InvalidArgument: it is unknown, or the file of its recipient, which has the result, is not
            in the home.

    """
    rows = db.read(LOOK, (request,))
    return ReplyState(*rows[0]) if rows else _result_state(db, ends_of(db, files, request))


def _result_state(db: Database, ends: Ends) -> ReplyState:
    """Return the state of a message that asked for no reply here, as that of a request."""
    sent, received = ends.states(db)
    if ends.file is None and (not sent or sent[0][0] in {*UNENDED, "acked"}):
        raise elsewhere(ends)
    for media, result, frame in ends.kept():
        kept = None if media is None or result is None else (media, result)
        return ReplyState("answered", None, ends.recipient, frame, kept)
    return _without_result(ends, [*received, *sent])


def _without_result(ends: Ends, states: Sequence[tuple[str, str | None, str | None]]) -> ReplyState:
    """Return the state of a message that has no result, by its first state that tells an end."""
    for state, reason, ran_in in states:
        if state in {"processed", "acked"}:
            ended = NO_RESULT if ran_in is None else OF_A_RUN.format(ran_in)
            return ReplyState("failed", ended, ends.recipient, None)
        if state not in UNENDED:
            return ReplyState("failed", reason or state, ends.recipient, None)
    if states:
        return ReplyState("open", None, ends.recipient, None)
    return ReplyState("failed", NO_RESULT, ends.recipient, None)


def unknown(request: str) -> InvalidArgument:
    """Return the error for a request that this file does not have."""
    return InvalidArgument(f"no request {request} here: never sent from this file, or pruned")


def read_reply(ticket_id: str, found: ReplyState, reply: TypeForm[T]) -> T:
    """Return a reply read as *reply*; raise RequestFailed if none will come."""
    if found.kept is not None:
        media, text = found.kept
        plain, as_bytes = (json.loads(text), None), (None, json.loads(text))
        data, base64_text = as_bytes if media == BYTES else plain
        kept: T = decode(data, base64_text, reply, media)
        return kept
    if found.frame is None:
        reason = found.reason or "its reply was pruned"
        msg = f"request {ticket_id} to {found.recipient} ended without a reply: {reason}"
        kind = RequestCancelled if reason_of(reason) == "cancelled" else RequestFailed
        raise kind(msg, message_id=ticket_id, reason=reason)
    frame = Frame.parse(found.frame)
    if frame.body_error is not None:
        raise InvalidMessage(f"reply {frame.id} to request {ticket_id}: {frame.body_error}")
    frame = frame.with_stored_body()
    value: T = decode(frame.data, frame.data_base64, reply, frame.datacontenttype)
    return value


def note_progress(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Store a handler's progress for its request; return True."""
    data = frame.data if frame.data_base64 is None else frame.data_base64
    tickets.note_progress(tx, str(frame.causationid), sender, encode(data).text)
    return True


def keep_early(tx: StoreTransaction, sender: str, frame: Frame) -> bool:  # noqa: ARG001 - a Take
    """Keep a reply whose request was lost with a restore, until its handler makes it again."""
    return frame.inreplyto is not None and tickets.answer_early(tx, frame)


def fail_of(tx: StoreTransaction, askers: list[int]) -> list[str]:
    """Fail the requests of the handlers of messages that are cancelled; return their ids."""
    return tickets.fail_of(tx, askers)


def or_error(read: Callable[P, T], *args: P.args, **named: P.kwargs) -> T | OncewardError:
    """Return what a function returns, or the error of ours that it raises."""
    try:
        return read(*args, **named)
    except OncewardError as error:
        return error


class AwaitedReplies:
    """The replies that one call waits for, in the order of their requests."""

    def __init__(self, db: Database, files: FileOfAgent, tickets: Iterable[Ticket | str]) -> None:
        self._db, self._files = db, files
        self._ids = [ticket_id(each) for each in tickets]
        self._ended: dict[str, ReplyState] = {}

    def look(self) -> Literal[True] | None:
        """Record how requests ended; return None at the first that still waits."""
        return True if all(map(self._look_at, self._ids)) else None

    def _look_at(self, each: str) -> bool:
        """Record how a request ended; return whether it has."""
        if each not in self._ended:
            found = reply_state(self._db, self._files, each)
            if found.state == "open":
                return False
            self._ended[each] = found
        return True

    def read(self, reply: TypeForm[T]) -> list[T]:
        """Return the replies, once all requests have ended; raise RequestFailed without one."""
        return [read_reply(each, self._ended[each], reply) for each in self._ids]

    def read_each(self, reply: TypeForm[T], timeout: Span) -> list[T | OncewardError]:
        """Return each reply, or the error in its place; ``AnswerTimeout`` for a late one."""
        for each in self._ids:
            self._look_at(each)
        return [
            or_error(read_reply, each, self._ended[each], reply)
            if each in self._ended
            else self._late(each, timeout)
            for each in self._ids
        ]

    def overdue(self, timeout: Span) -> AnswerTimeout:
        """Return the error for late replies, with the state of the first."""
        return self._late(next(each for each in self._ids if each not in self._ended), timeout)

    def _late(self, late: str, timeout: Span) -> AnswerTimeout:
        state = outbox.state(self._db, late)
        return AnswerTimeout(
            f"no reply to {late}, which is {state}, within {seconds('timeout', timeout):g} s: "
            f"{Hint.ASK_RESULT}, a late reply is kept",
            message_id=late,
            reason=state,
        )
