"""Compose messages of the library itself, whose ids are those of their keys."""

from __future__ import annotations

from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send.compose import named_id
from onceward.message.body import encode
from onceward.message.clock import Millis
from onceward.message.frame import digest
from onceward.message.options import FrameHeaders, frame_prefix, render_head


def compose(headers: FrameHeaders, body: object, now: Millis) -> OutgoingMessage:
    """Return a message with a key: the same id each time that it is sent."""
    payload = encode(body)
    headers = headers._replace(media=payload.media)
    message_id = named_id(headers, headers.recipient, None)
    frame = f"{render_head(frame_prefix(headers), message_id, now)}{payload.text}}}"
    return OutgoingMessage(
        headers=headers,
        id=message_id,
        recipient=headers.recipient,
        frame=frame,
        digest=digest(frame),
        created_at=now,
    )
