"""``onceward history``, ``thread`` and ``search``: list past messages without consuming any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward import Postbox
from onceward.ops.cli.command import Found, command, emit, picked
from onceward.ops.cli.cutting import tell_more
from onceward.ops.cli.durations import MaybeMoment
from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.ls import Id
from onceward.ops.cli.options import Limit, Quiet, Several, said
from onceward.ops.cli.output import dated, document
from onceward.ops.cli.readonly import views, whole_id
from onceward.ops.cli.records import plain_body
from onceward.ops.cli.target import CONVERSATION, Conversation, Where
from onceward.ops.views.messages import message_ids
from onceward.types import Page

COLUMNS: Final = (
    "id", "box", "sender", "recipient", "type", "topic", "state", "at", "body",
)  # fmt: skip
FIELDS: Final = (
    "id", "sender", "recipient", "session", "type", "topic", "priority", "state", "attempts", "at",
    "reason", "box", "channel", "kind", "correlation_id",
)  # fmt: skip
Channel = Annotated[str | None, said("Only messages of this channel.")]
Words = Annotated[str, said("Words; a star at the end matches any continuation.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Sought:
    """Filters of past messages; every given filter must match."""

    sender: str | None = None
    """Only messages from this agent."""
    recipient: str | None = None
    """Only messages to this agent."""
    type: str | None = None
    """Only this type."""
    topic: str | None = None
    """Only this topic, which may be a pattern such as build.#."""
    state: str | None = None
    """Only this state."""
    kind: Several = None
    """Only this kind: command, query, response, ...; may be repeated."""
    priority: Several = None
    """Only this priority; may be repeated."""
    correlation_id: str | None = None
    """Only this conversation."""
    content: str | None = None
    """Only bodies that contain a match of this regular expression."""
    since: MaybeMoment = None
    """Only messages since this moment: 2026-01-31T12:00:00Z, or a duration ago, such as 2h."""
    until: MaybeMoment = None
    """Only messages before this moment."""
    limit: int = 100
    """Print at most this many."""
    offset: int = 0
    """Skip this many."""
    after: str | None = None
    """Start where a page ended: the value that its JSON calls next."""
    count: Annotated[bool, Quiet] = False
    """Add the number of all matches to the JSON, which may be slow."""

    def filters(self) -> dict[str, Any]:
        """Return the filters as the keywords of the library."""
        return dict(vars(self))


PAST = Sought()


@command()
def history(
    box: Postbox,
    /,
    *,
    channel: Channel = None,
    sought: Sought = PAST,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    List sent, received and dead messages, newest first, without consuming any.

    Columns: id, box, sender, recipient, type, topic, state, at, body. As JSON: a page, with
    total_count, has_more and next.

    Example: onceward history --recipient billing --state dead --since 2h
    """
    page = box.history(**sought.filters(), channel=channel, session=where.session)
    return print_page(page, where)


def print_page(page: Page, where: Where) -> int:
    """Print a page of past messages, and say how the next one is listed."""
    if page.has_more:
        tell_more("more", f", or --after {page.next}" if page.next else "")
    if not where.json:
        return emit(_rows(page.messages), COLUMNS, where)
    rows = {"messages": _rows(page.messages), "total_count": page.total_count}
    document(rows | {"has_more": page.has_more, "next": page.next})
    return DONE


@command(*COLUMNS)
def thread(box: Postbox, id: Id, /) -> Found:
    """
    List the conversation of a message, oldest first, without consuming any.

    Example: onceward thread 0199f0c2
    """
    with views(box.file.path) as found:
        message_id = whole_id(found, message_ids, id)
    return _rows(box.thread(message_id))


@command(*COLUMNS)
def search(box: Postbox, /, *words: Words, limit: Limit = 100) -> Found:
    """
    List messages whose body has all words, best match first; needs search=True.

    Example: onceward search invoice 'over*' --limit 10
    """
    page = box.search(" ".join(words), limit=limit)
    if page.has_more:
        tell_more("more")
    return _rows(page.messages)


def _content(past: Any) -> dict[str, Any]:
    problem = past.body_error
    found = {"body": plain_body(past)} if problem is None else {"body": None, "body_error": problem}
    return found | ({"late": True} if past.late else {})


def _rows(messages: list[Any]) -> list[dict[str, Any]]:
    return [dated(picked(past, FIELDS)) | _content(past) for past in messages]
