"""Read how requests ended, and the results that are kept for messages that asked for no reply."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, TypeVar

from typing_extensions import TypeForm

from onceward.core.rows import outbox, tickets
from onceward.errors import (
    AnswerTimeout,
    InvalidArgument,
    InvalidMessage,
    RequestCancelled,
    RequestFailed,
)
from onceward.file.database import Database
from onceward.file.sql_parts import senders
from onceward.file.transaction import StoreTransaction
from onceward.message.body import BYTES, decode, encode
from onceward.message.error_text import Hint
from onceward.message.frame import Frame
from onceward.message.record import Ticket, ticket_id
from onceward.message.times import Span, seconds
from onceward.message.vocabulary import RequestState, reason_of

T = TypeVar("T")
GET_PROGRESS: Final = "SELECT progress FROM _onceward_pending_replies WHERE id = ?"
LOOK: Final = """
SELECT t.state, t.reason, t.recipient, b.frame
  FROM _onceward_pending_replies AS t
  LEFT JOIN _onceward_inbox AS b ON b.id = t.reply_id AND b.sender = t.recipient
 WHERE t.id = ?
"""
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


class ReplyState(NamedTuple):
    """The state of a request: open, answered, late or failed; ``frame`` is the reply."""

    state: RequestState
    reason: str | None
    recipient: str
    frame: str | None
    kept: tuple[str, str] | None = None
    """Media type and JSON of the result of a message that asked for no reply."""


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
        raise unknown(message_id)
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
        raise unknown(request)
    [(text,)] = rows
    return None if text is None else json.loads(text)


def unknown(request: str) -> InvalidArgument:
    """Return the error for a request that this file does not have."""
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


def fail_of(tx: StoreTransaction, askers: list[int]) -> list[str]:
    """Fail the requests of the handlers of messages that are cancelled; return their ids."""
    return tickets.fail_of(tx, askers)


class AwaitedReplies:
    """The replies that one call waits for, in the order of their requests."""

    def __init__(self, db: Database, tickets: Iterable[Ticket | str]) -> None:
        self._db, self._ids = db, [ticket_id(each) for each in tickets]
        self._ended: dict[str, ReplyState] = {}

    def look(self) -> Literal[True] | None:
        """Record how requests ended; return None at the first that still waits."""
        for each in self._ids:
            if each not in self._ended:
                found = reply_state(self._db, each)
                if found.state == "open":
                    return None
                self._ended[each] = found
        return True

    def read(self, reply: TypeForm[T]) -> list[T]:
        """Return the replies, once all requests have ended; raise RequestFailed without one."""
        return [read_reply(each, self._ended[each], reply) for each in self._ids]

    def overdue(self, timeout: Span) -> AnswerTimeout:
        """Return the error for late replies, with the state of the first."""
        late = next(each for each in self._ids if each not in self._ended)
        state = outbox.state(self._db, late)
        return AnswerTimeout(
            f"no reply to {late}, which is {state}, within {seconds('timeout', timeout):g} s: "
            f"{Hint.ASK_RESULT}, a late reply is kept",
            message_id=late,
            reason=state,
        )
