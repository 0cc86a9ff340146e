"""``onceward channel``: channels of the home, and ``onceward publish``."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final, Literal

from onceward import Message
from onceward.cli.codes import DONE, TimedOut
from onceward.cli.paint import document, show
from onceward.cli.place import Conversation, Quiet, Where, in_session, open_box
from onceward.cli.send import Body, parsed
from onceward.cli.spans import MaybeSpan

WHERE = Where()
TALK = Conversation()
COLUMNS: Final = ("name", "type", "state", "created_by", "created_at", "description")
MEMBERS: Final = ("agent", "role", "number")
Type = Literal["direct", "group", "broadcast", "pubsub"]
Role = Literal["member", "observer"]
Move = Literal["pause", "reject", "resume", "drain", "close", "delete"]


def create(
    name: str,
    type: Type = "group",  # noqa: A002 - the word of the library
    /,
    *,
    description: str = "",
    sticky: Annotated[bool, Quiet] = False,
    echo: Annotated[bool, Quiet] = False,
    ensure: Annotated[bool, Quiet] = False,
    where: Where = WHERE,
) -> int:
    """
    Make a channel that our agent owns, and print its name.

    Args:
        name: What it is called in the home.
        type: Who has a message: direct, group, broadcast or pubsub.
        description: What it is for.
        sticky: Give late ones what the channel retains.
        echo: Let senders have a copy of their own.
        ensure: Take the channel that is there as it is, instead of failing with exit code 5.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        make = box.channels.ensure if ensure else box.channels.create
        make(name, type, description=description, sticky=sticky, echo=echo)
        box.pump()
    show([{"name": name}], ("name",), "json" if where.json else "lines")
    return DONE


def ls(name: str | None = None, /, *, where: Where = WHERE) -> int:
    """
    List the channels of the home, or who takes part in one.

    Args:
        name: A channel, whose participants are listed.
        where: Any file of the home.

    """
    with open_box(where.path()) as box:
        if name is None:
            show([{column: getattr(each, column) for column in COLUMNS} for each in box.channels.list()], COLUMNS, where.style)
        else:
            members = box.channels.get(name).members()
            show([{column: getattr(each, column) for column in MEMBERS} for each in members], MEMBERS, where.style)
    return DONE


def join(name: str, pattern: str | None = None, /, *, role: Role = "member", where: Where = WHERE) -> int:
    """
    Take part in a channel, or subscribe to a pattern of its topics.

    Args:
        name: The channel.
        pattern: Topics that are wanted; one star is one segment, a trailing number sign any number.
        role: member, or observer, who only reads.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        channel = box.channels.get(name)
        new = channel.join(role) if pattern is None else channel.subscribe(pattern)
        box.pump()
    show([{"channel": name, "new": new}], ("channel", "new"), where.style)
    return DONE


def leave(name: str, /, *, where: Where = WHERE) -> int:
    """
    Take part in a channel no longer.

    Args:
        name: The channel.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        left = box.channels.get(name).leave()
        box.pump()
    show([{"channel": name, "left": left}], ("channel", "left"), where.style)
    return DONE


def move(name: str, to: Move, /, *, where: Where = WHERE) -> int:
    """
    Pause, resume, drain, close or delete a channel that our agent owns.

    Args:
        name: The channel.
        to: pause lets what is sent wait, reject refuses it; resume; drain; close; delete, once it is closed.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        channel = box.channels.get(name)
        verbs = {"resume": channel.resume, "drain": channel.drain, "close": channel.close, "delete": channel.delete}
        verbs[to]() if to in verbs else channel.pause("hold" if to == "pause" else "reject")
        box.pump()
        state = "deleted" if to == "delete" else channel.info().state
    show([{"channel": name, "state": state}], ("channel", "state"), where.style)
    return DONE


def send(
    name: str,
    body: Body = "null",
    /,
    *,
    kind: str = "text",
    topic: str | None = None,
    key: str | None = None,
    priority: str = "normal",
    ttl: MaybeSpan = None,
    correlation_id: str | None = None,
    where: Conversation = TALK,
) -> int:
    """
    Send to all who are to have it, in one commit, and print the id that all copies carry.

    Args:
        name: The channel.
        body: JSON, or plain text. A dash reads it from stdin.
        kind: text, command, query, response, notification, broadcast or error.
        topic: What it is about; a pubsub channel needs one.
        key: Idempotency key: the same key with the same body is one message.
        priority: critical, urgent (high), normal, low or background.
        ttl: How long it is wanted.
        correlation_id: The conversation that it belongs to; a response needs that of its query.
        where: Whose agent, which session.

    """
    with open_box(where.path()) as box:
        channel = box.channels.get(name, session=in_session(where))
        said = parsed(sys.stdin.read() if body == "-" else body)
        posted = channel.send(said, kind=kind, topic=topic, key=key, priority=priority, ttl=ttl, correlation_id=correlation_id)
        box.pump()
    if where.json:
        document({"id": posted.id, "copies": [{"recipient": to, "id": each} for to, each in posted.copies]})
    else:
        show([{"id": posted.id}], ("id",), "lines")
    return DONE


def recv(name: str, /, *, topic: str | None = None, wait: MaybeSpan = None, where: Where = WHERE) -> int:
    """
    Take our agent's next message of a channel, print it, and mark it as processed; exit code 4 where none came.

    Args:
        name: The channel.
        topic: Only what matches this pattern.
        wait: How long to wait for one.
        where: Whose agent.

    """
    with open_box(where.path()) as box:
        message = box.channels.get(name).receive(timeout=wait or 0.0, topics=topic)
        if message is None:
            msg = f"nothing waits in channel {name}"
            raise TimedOut(msg)
        document(_told(message))
        sys.stdout.flush()
        if not message.settled:
            message.ack()
        box.pump()
    return DONE


def publish(topic: str, body: Body = "null", /, *, where: Conversation = TALK) -> int:
    """
    Send to every agent that subscribed to a topic, outside of any channel, and print the ids.

    Args:
        topic: What it is about.
        body: JSON, or plain text. A dash reads it from stdin.
        where: Whose agent, which session.

    """
    with open_box(where.path()) as box:
        ids = box.session(in_session(where)).publish(topic, parsed(sys.stdin.read() if body == "-" else body))
        box.pump()
    show([{"id": each} for each in ids], ("id",), "json" if where.json else "lines")
    return DONE


def _told(message: Message[Any]) -> dict[str, Any]:
    names = ("id", "sender", "channel", "kind", "type", "topic", "priority", "correlation_id", "attempt", "body")
    return {name: getattr(message, name) for name in names}
