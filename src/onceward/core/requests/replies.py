"""Read the reply to a request as the type that the caller wants."""

from __future__ import annotations

from typing import TypeVar

from onceward.core.requests.stored import ReplyState
from onceward.errors import InvalidMessage, RequestFailed
from onceward.message.body import decode
from onceward.message.frame import Frame
from onceward.message.ticket import Ticket

T = TypeVar("T")


def read_reply(ticket_id: str, found: ReplyState, reply: type[T]) -> T:
    """Return a reply read as *reply*; raises RequestFailed where none will come."""
    if found.frame is None:
        reason = found.reason or "its reply was pruned"
        msg = f"request {ticket_id} to {found.recipient} ended without a reply: {reason}"
        ticket = Ticket(ticket_id, found.recipient)
        raise RequestFailed(msg, message_id=ticket_id, ticket=ticket, reason=reason)
    frame = Frame.parse(found.frame)
    if frame.body_error is not None:
        msg = f"reply {frame.id} to request {ticket_id}: {frame.body_error}"
        raise InvalidMessage(msg)
    value: T = decode(frame.data, frame.data_base64, reply)
    return value
