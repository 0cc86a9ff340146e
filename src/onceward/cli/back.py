"""``onceward history``, ``thread`` and ``search``: past messages, without consuming anything."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from onceward.cli import queries
from onceward.cli.codes import DONE
from onceward.cli.look import views, whole_id
from onceward.cli.paint import show
from onceward.cli.place import Conversation, Where, open_box
from onceward.cli.spans import MaybeSpan
from onceward.clock import SystemClock

WHERE = Where()
CONVERSATION = Conversation()
COLUMNS: Final = ("id", "box", "sender", "recipient", "type", "topic", "state", "at", "body")


def history(
    *,
    sender: str | None = None,
    recipient: str | None = None,
    type: str | None = None,  # noqa: A002 - the wire's word
    topic: str | None = None,
    state: str | None = None,
    channel: str | None = None,
    kind: list[str] | None = None,
    priority: list[str] | None = None,
    correlation_id: str | None = None,
    content: str | None = None,
    last: MaybeSpan = None,
    limit: int = 100,
    offset: int = 0,
    where: Conversation = CONVERSATION,
) -> int:
    """
    List sent, received and dead messages, newest first; consumes nothing.

    Columns: id, box, sender, recipient, type, topic, state, at, body.

    Args:
        sender: Only what this agent sent.
        recipient: Only what is for this agent.
        type: Only this type.
        topic: Only this topic, which may be a pattern such as build.#.
        state: Only this state.
        channel: Only what came through this channel.
        kind: Only this kind: command, query, response, ...; may be given more than once.
        priority: Only this priority; may be given more than once.
        correlation_id: Only this conversation.
        content: Only bodies in which this regular expression occurs.
        last: Only what is younger than this span.
        limit: At most so many lines.
        offset: Leave out so many.
        where: Whose file, which session.

    """
    since = None if last is None else SystemClock().now() - round(last * 1000)
    with open_box(where.path()) as box:
        page = box.history(
            sender=sender, recipient=recipient, type=type, topic=topic, state=state, channel=channel, kind=kind, priority=priority,
            correlation_id=correlation_id, content=content, since=since, session=where.session, limit=limit, offset=offset, count=False,
        )  # fmt: skip
    return _show(page.messages, where)


def thread(id: str, /, *, where: Where = WHERE) -> int:  # noqa: A002 - the wire's word
    """
    List the conversation that a message belongs to, oldest first; consumes nothing.

    Columns: id, box, sender, recipient, type, topic, state, at, body.

    Args:
        id: Its id, or a beginning of it that no other message has.
        where: Whose file.

    """
    with views(where.path()) as found:
        message_id = whole_id(found, queries.IDS, id)
    with open_box(where.path()) as box:
        return _show(box.thread(message_id), where)


def search(*words: str, limit: int = 100, where: Where = WHERE) -> int:
    """
    List messages whose body holds all words, best match first; the agent must have opted in.

    Columns: id, box, sender, recipient, type, topic, state, at, body.

    Args:
        words: Words; one that ends in a star stands for all that begin like it.
        limit: At most so many lines.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        return _show(box.search(" ".join(words), limit=limit).messages, where)


def _show(messages: list[Any], where: Where) -> int:
    rows = [asdict(past) | {"body": past.body} for past in messages]
    for row in rows:
        del row["frame"]
    show(rows, COLUMNS, where.style)
    return DONE
