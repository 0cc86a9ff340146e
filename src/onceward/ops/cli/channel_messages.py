"""``onceward channel`` and ``onceward publish``: send to many, read and acknowledge."""

from __future__ import annotations

import sys
from typing import Annotated, Final, cast

from onceward import Postbox
from onceward.message.vocabulary import AckStatus, Kind
from onceward.ops.cli.channel import Name
from onceward.ops.cli.command import Found, command, picked
from onceward.ops.cli.exit_codes import DONE, FAILED, NothingThere, TimedOut
from onceward.ops.cli.history import PAST, Sought, print_page
from onceward.ops.cli.options import Body, OfTopics, OfType, Wait, said
from onceward.ops.cli.output import document
from onceward.ops.cli.records import note_problem
from onceward.ops.cli.send import Delayed, Topical, parsed
from onceward.ops.cli.target import CONVERSATION, Conversation, in_session

TOPICAL = Topical()
DELAYED = Delayed()
ACKS: Final = ("participant", "status", "detail", "message_id", "first_at", "at")
HEADERS: Final = ("id", "sender", "channel", "kind", "type", "topic", "priority")
PRINTED: Final = (*HEADERS, "correlation_id", "attempt", "late", "body")
KINDS: Final = "text, command, query, response, notification, broadcast or error."
KindName = Annotated[str, said(KINDS)]
Handle = Annotated[str, said("The handle that receive printed with the message.")]
Status = Annotated[AckStatus, said("The status that is reported to the sender.")]
Detail = Annotated[str | None, said("A text that is reported to the sender with the status.")]
MessageId = Annotated[str, said("The id that all copies carry, or that of one copy.")]
Topic = Annotated[str, said("The message's topic.")]


@command("id")
def send(
    box: Postbox,
    name: Name,
    body: Body = None,
    /,
    *,
    kind: KindName = "text",
    options: Topical = TOPICAL,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    Send to a channel's recipients in one commit, and print the id that all copies carry.

    A response needs --correlation-id, which is that of its query.

    Example: onceward channel send news 'all green' --topic build.done
    """
    channel = box.channels.get(name, session=in_session(where))
    posted = channel.send(parsed(body), kind=cast("Kind", kind), **options.given())
    box.run_until_idle()
    copies = [{"recipient": to, "id": each} for to, each in posted.copies]
    return {"id": posted.id, "copies": copies}


@command()
def receive(
    box: Postbox,
    name: Name,
    /,
    *,
    type: OfType = None,
    topic: OfTopics = None,
    wait: Wait = None,
    status: Status | None = None,
    detail: Detail = None,
) -> int:
    """
    Take this agent's next message of a channel, print it, and mark it as processed.

    Without a message the exit code is 4; for a message that has lost its body it is 1. A given
    status is reported to the sender. After received and in_progress the message stays leased for
    the channel's ack timeout, and onceward channel ack with the printed handle ends it; otherwise
    it is delivered again.

    Example: onceward channel receive news --wait 5s --status received
    """
    channel = box.channels.get(name)
    message = channel.receive(type, timeout=wait or 0.0, topics=topic)
    if message is None:
        raise TimedOut(f"no message waits in channel {name}")
    told = picked(message, PRINTED)
    if message.body_error is not None:
        told["body_error"] = message.body_error
    if status in ("received", "in_progress") and not message.settled:
        told["handle"] = channel.detach(message)
        message = channel.attach(told["handle"])
    document(told)
    note_problem(message.id, message.body_error)
    sys.stdout.flush()
    if status is not None:
        channel.acknowledge(message, status, detail)
    elif not message.settled:
        message.ack()
    box.run_until_idle()
    return FAILED if "body_error" in told else DONE


@command("id")
def ack(
    box: Postbox,
    name: Name,
    handle: Handle,
    status: Status = "completed",
    /,
    *,
    detail: Detail = None,
) -> Found:
    """
    Acknowledge a message that receive left leased, and print the id of the acknowledgment.

    received and in_progress extend its ack timeout, completed ends it, failed retries it or makes
    it a dead letter. After the timeout nothing is changed: exit code 5.

    Example: onceward channel ack news HANDLE completed --detail 'took 3 s'
    """
    channel = box.channels.get(name)
    told = channel.acknowledge(channel.attach(handle), status, detail)
    box.run_until_idle()
    return [{"id": told}]


@command(*ACKS)
def acks(box: Postbox, name: Name, message_id: MessageId, /) -> Found:
    """
    List the acknowledgments of a message that this agent sent.

    Example: onceward channel acks news 0199f0c2-7d1e
    """
    found = box.channels.get(name).acknowledgments(message_id)
    if not found:
        why = "has no acknowledgment yet, or this agent did not send it"
        raise NothingThere(f"message {message_id!r} in channel {name!r} {why}")
    return [picked(each, ACKS) for each in found]


@command()
def history(
    box: Postbox,
    name: Name,
    /,
    *,
    sought: Sought = PAST,
    where: Conversation = CONVERSATION,
) -> int:
    """
    List past messages of a channel, newest first, without consuming any.

    Columns: id, box, sender, recipient, type, topic, state, at, body. As JSON: a page, with
    total_count, has_more and next.

    Example: onceward channel history news --since 2h --json
    """
    page = box.channels.get(name).history(**sought.filters(), session=where.session)
    return print_page(page, where)


@command("id")
def publish(
    box: Postbox,
    topic: Topic,
    body: Body = None,
    /,
    *,
    options: Delayed = DELAYED,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    Send to all subscribers of a topic, outside any channel, and print the ids.

    Example: onceward publish build.done 'all green'
    """
    ids = box.session(in_session(where)).publish(topic, parsed(body), **options.given())
    box.run_until_idle()
    return [{"id": each} for each in ids]
