"""Write audit entries of committed sends, never of what a body holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onceward.core.send.outbox import OutgoingMessage
from onceward.message.clock import Millis, iso
from onceward.message.frame import Frame, body_size

Write = Callable[[Iterable[Mapping[str, Any]]], None]


def auditor(write: Write) -> Callable[[Sequence[OutgoingMessage], Millis], None]:
    """Return the function that writes an entry for each committed message."""

    def sent(drafts: Sequence[OutgoingMessage], at: Millis) -> None:
        write(_entry(draft, at) for draft in drafts)

    return sent


def _entry(draft: OutgoingMessage, at: Millis) -> dict[str, Any]:
    frame = Frame.parse(draft.text)
    return {
        "op": "send",
        "ts": iso(at),
        "msg_id": draft.id,
        "from": frame.sender,
        "to": draft.recipient,
        "session": draft.session,
        "topic": frame.topic,
        "mailbox": frame.mailbox,
        "body_bytes": body_size(frame),
        "externalized": draft.body is not None,
        "ttl_s": None if frame.expires_at is None else (frame.expires_at - at) / 1000,
    }
