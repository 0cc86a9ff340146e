"""``onceward channel`` and ``onceward publish``: sending to many, reading a channel, and saying how far one has come."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from onceward import Message
from onceward.cli.durations import MaybeSpan
from onceward.cli.exit_codes import DONE, NothingThere, TimedOut
from onceward.cli.history import PAST, Sought, print_page
from onceward.cli.output import document, show
from onceward.cli.send import Body, parsed
from onceward.cli.target import Conversation, Quiet, Where, in_session, open_box

WHERE = Where()
TALK = Conversation()
ACKS: Final = ("participant", "status", "detail", "message_id", "first_at", "at")
Status = Literal["received", "in_progress", "completed", "failed"]
Topics = Annotated[list[str] | None, Parameter(negative=())]


def send(
    name: str,
    body: Body = "null",
    /,
    *,
    kind: str = "text",
    type: str | None = None,
    topic: str | None = None,
    key: str | None = None,
    priority: str = "normal",
    ttl: MaybeSpan = None,
    delay: MaybeSpan = None,
    correlation_id: str | None = None,
    ephemeral: Annotated[bool, Quiet] = False,
    where: Conversation = TALK,
) -> int:
    """
    Send to all who are to have it, in one commit, and print the id that all copies carry.

    Args:
        name: The channel.
        body: JSON, or plain text. A dash reads it from stdin.
        kind: text, command, query, response, notification, broadcast or error.
        type: The message's type.
        topic: What it is about; a pubsub channel needs one.
        key: Idempotency key: the same key with the same body is one message.
        priority: critical, urgent (high), normal, low or background.
        ttl: How long it is wanted.
        delay: Deliver it after this span at the earliest.
        correlation_id: The conversation that it belongs to; a response needs that of its query.
        ephemeral: Let restarts of recipients drop it where nobody has taken it by then.
        where: Whose agent, which session.

    """
    with open_box(where.path()) as box:
        channel = box.channels.get(name, session=in_session(where))
        said = parsed(sys.stdin.read() if body == "-" else body)
        posted = channel.send(
            said, kind=kind, type=type, topic=topic, key=key, priority=priority, ttl=ttl, delay=delay, correlation_id=correlation_id,
            ephemeral=ephemeral,
        )  # fmt: skip
        box.run_until_idle()
    if where.json:
        document(
            {
                "id": posted.id,
                "copies": [{"recipient": to, "id": each} for to, each in posted.copies],
            }
        )
    else:
        show([{"id": posted.id}], ("id",), "lines")
    return DONE


def recv(
    name: str,
    /,
    *,
    type: str | None = None,
    topic: Topics = None,
    wait: MaybeSpan = None,
    status: Status | None = None,
    detail: str | None = None,
    where: Where = WHERE,
) -> int:
    """
    Take our agent's next message of a channel, print it, and mark it as processed; exit code 4 where none came.

    With a status its sender is told how far we have come. With received and in_progress it then stays ours for the channel's ack
    timeout, and the printed handle lets onceward channel ack end it; without that it is handed out again.

    Args:
        name: The channel.
        type: Only messages of this type.
        topic: Only what matches this pattern; may be given several times.
        wait: How long to wait for one.
        status: What its sender is told: received, in_progress, completed or failed.
        detail: What to say with it.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        channel = box.channels.get(name)
        message = channel.receive(type, timeout=wait or 0.0, topics=topic)
        if message is None:
            msg = f"nothing waits in channel {name}"
            raise TimedOut(msg)
        told = _told(message)
        if status in ("received", "in_progress") and not message.settled:
            told["handle"] = channel.detach(message)
            message = channel.attach(told["handle"])
        document(told)
        sys.stdout.flush()
        if status is not None:
            channel.acknowledge(message, status, detail)
        elif not message.settled:
            message.ack()
        box.run_until_idle()
    return DONE


def ack(
    name: str,
    handle: str,
    status: Status = "completed",
    /,
    *,
    detail: str | None = None,
    where: Where = WHERE,
) -> int:
    """
    Say how far we have come with a message that recv left in our hands, and print the acknowledgment's id.

    received and in_progress give it another ack timeout, completed ends it, failed has it tried again or buried. Where the time
    ran out, nothing is changed: exit code 5.

    Args:
        name: The channel.
        handle: What recv printed with the message.
        status: received, in_progress, completed or failed.
        detail: What to say with it.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        channel = box.channels.get(name)
        told = channel.acknowledge(channel.attach(handle), status, detail)
        box.run_until_idle()
    show([{"id": told}], ("id",), "json" if where.json else "lines")
    return DONE


def acks(name: str, message_id: str, /, *, where: Where = WHERE) -> int:
    """
    List how far its recipients have come with a message of ours.

    Columns: participant, status, detail, message_id, first, at.

    Args:
        name: The channel.
        message_id: The id that all its copies carry, or that of one.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        found = box.channels.get(name).acknowledgments(message_id)
    if not found:
        msg = f"nobody has said anything of message {message_id!r} in channel {name!r} yet, or it is no message of ours there"
        raise NothingThere(msg)
    rows = [{column: getattr(each, column) for column in ACKS} for each in found]
    show(rows, ACKS, where.style)
    return DONE


def history(name: str, /, *, sought: Sought = PAST, where: Conversation = TALK) -> int:
    """
    List past messages of a channel, newest first; consumes nothing.

    Columns: id, box, sender, recipient, type, topic, state, at, body. As JSON: a page, with total_count, has_more and next.

    Args:
        name: The channel.
        sought: Which.
        where: Whose file, which session.

    """
    with open_box(where.path()) as box:
        page = box.channels.get(name).history(**sought.filters(), session=where.session)
    return print_page(page, where)


def publish(
    topic: str,
    body: Body = "null",
    /,
    *,
    type: str | None = None,
    key: str | None = None,
    priority: str = "normal",
    ttl: MaybeSpan = None,
    delay: MaybeSpan = None,
    correlation_id: str | None = None,
    where: Conversation = TALK,
) -> int:
    """
    Send to every agent that subscribed to a topic, outside of any channel, and print the ids.

    Args:
        topic: What it is about.
        body: JSON, or plain text. A dash reads it from stdin.
        type: The message's type.
        key: Idempotency key: the same key with the same body is one message.
        priority: critical, urgent (high), normal, low or background.
        ttl: How long it is wanted.
        delay: Deliver it after this span at the earliest.
        correlation_id: The conversation that it belongs to.
        where: Whose agent, which session.

    """
    with open_box(where.path()) as box:
        said = parsed(sys.stdin.read() if body == "-" else body)
        ids = box.session(in_session(where)).publish(
            topic,
            said,
            type=type,
            key=key,
            priority=priority,
            ttl=ttl,
            delay=delay,
            correlation_id=correlation_id,
        )
        box.run_until_idle()
    show([{"id": each} for each in ids], ("id",), "json" if where.json else "lines")
    return DONE


def _told(message: Message[Any]) -> dict[str, Any]:
    names = (
        "id",
        "sender",
        "channel",
        "kind",
        "type",
        "topic",
        "priority",
        "correlation_id",
        "attempt",
        "body",
    )
    return {name: getattr(message, name) for name in names}
