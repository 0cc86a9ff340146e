"""``onceward send``."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from onceward import Postbox
from onceward.cli.durations import MaybeSpan
from onceward.cli.exit_codes import DONE, Usage
from onceward.cli.output import document, note, show
from onceward.cli.target import Conversation, Quiet, in_session, open_box

WHERE = Conversation()
Body = Annotated[str, Parameter(allow_leading_hyphen=True)]


def send(
    to: str,
    body: Body = "null",
    /,
    *,
    type: str | None = None,
    topic: str | None = None,
    key: str | None = None,
    delay: MaybeSpan = None,
    ttl: MaybeSpan = None,
    priority: str = "normal",
    ordering_key: str | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    ephemeral: Annotated[bool, Quiet] = False,
    deliver: Annotated[bool, Quiet] = False,
    where: Conversation = WHERE,
) -> int:
    """
    Commit a message into the outbox and print its id.

    Exit code 0 means that the message is in the file, durably; a relay or any open postbox of the agent delivers it. Nothing is
    written where the recipient is unknown, the file is paused or full, or the key was used with another body (exit codes 3, 7, 5).

    Args:
        to: The recipient: a registered peer, or an agent whose file lies beside ours.
        body: JSON, or plain text; what starts like a JSON object, list or string must be JSON. A dash reads it from stdin.
        type: The message's type; default json, or text for plain text.
        topic: What the message is about, for handlers that want a topic.
        key: Idempotency key: the same key with the same body is one message and one id, however often it is sent.
        delay: Deliver it after this span at the earliest.
        ttl: Make it a dead letter if nobody has handled it after this span.
        priority: critical, urgent (high), normal, low or background.
        ordering_key: The lane in which order is kept; default the session.
        correlation_id: The conversation that it belongs to.
        reply_to: The agent that a reply goes to; default us.
        ephemeral: Let a restart of the recipient drop it if nobody has taken it by then.
        deliver: Try at once to deliver what is due; what cannot be delivered now stays in the outbox, and the exit code is 0.
        where: Whose file, which session.

    """
    with open_box(where.path()) as box:
        session = box.session(in_session(where))
        message_id = session.send(
            to, parsed(sys.stdin.read() if body == "-" else body), type=type, topic=topic, key=key, delay=delay, ttl=ttl,
            priority=priority, ordering_key=ordering_key, correlation_id=correlation_id, reply_to=reply_to, ephemeral=ephemeral,
        )  # fmt: skip
        state = delivered(box, message_id) if deliver else box.resolve(message_id)
    if where.json:
        document({"id": message_id, "recipient": to, "session": session.name, "state": state})
    else:
        show([{"id": message_id}], ("id",), "lines")
    return DONE


def parsed(text: str) -> Any:
    """Return a body from the command line: what is JSON as its value, anything else as text, unless it looks like broken JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        if text.lstrip().startswith(("{", "[", '"')):
            msg = f"the body looks like JSON, but is none: {error}"
            raise Usage(msg) from error
        return text


def delivered(box: Postbox, message_id: str) -> str:
    """Push what is due and return how the message stands; say so if it did not leave."""
    box.run_until_idle()
    state = box.resolve(message_id)
    if state in {"pending", "sending"}:
        note(f"{message_id} is kept in the outbox, not delivered yet: see onceward peers ls")
    return state
