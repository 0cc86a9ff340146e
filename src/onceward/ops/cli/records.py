"""Print messages, one JSON object per line, and report those that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onceward import Message, MessageRecord
from onceward.ops.cli.output import dated, line_of, note

Readable = MessageRecord | Message[Any]
Problems = list[str | None]
"""Why the body of each message cannot be read; None if it can."""


def print_records(records: Iterable[Readable]) -> Problems:
    """Print messages, one JSON object per line; report and return their problems."""
    problems: Problems = []
    for record in records:
        line_of(described(record))
        problems.append(record.body_error)
        note_problem(record.id, record.body_error)
    return problems


def plain_body(record: Readable) -> Any:
    """Return a body as a JSON value: bytes become base64 text."""
    encoded = record.frame.data_base64
    return record.body if encoded is None else encoded


def note_problem(message_id: str, problem: str | None) -> None:
    """Write a line to stderr for a message whose body cannot be read."""
    if problem is not None:
        note(f"{message_id}: {problem}")


def described(record: Readable) -> dict[str, Any]:
    """Return a message with the field names of history, and ``body_error`` if its body is lost."""
    frame = record.frame
    sent_at = None if frame.time is None else round(1000 * frame.time.timestamp())
    found = dated(
        {
            "id": frame.id,
            "sender": frame.sender,
            "recipient": frame.recipient,
            "session": frame.session,
            "type": frame.type,
            "topic": frame.topic,
            "priority": frame.priority_name,
            "at": record.received_at,
            "created_at": sent_at,
            "expires_at": frame.expires_at,
            "correlation_id": record.correlation_id,
            "in_reply_to": frame.inreplyto or frame.causationid,
            "body": plain_body(record),
        }
    )
    return found if record.body_error is None else found | {"body_error": record.body_error}
