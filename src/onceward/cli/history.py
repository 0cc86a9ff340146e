"""``onceward history``, ``thread`` and ``search``: past messages, without consuming anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward import Page
from onceward.cli import queries
from onceward.cli.durations import MaybeMoment
from onceward.cli.exit_codes import DONE
from onceward.cli.output import dated, document, show
from onceward.cli.readonly import views, whole_id
from onceward.cli.target import Conversation, Quiet, Where, open_box

WHERE = Where()
CONVERSATION = Conversation()
COLUMNS: Final = ("id", "box", "sender", "recipient", "type", "topic", "state", "at", "body")


Several = Annotated[list[str] | None, Parameter(negative=())]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Sought:
    """Which past messages are meant; all that is said must hold."""

    sender: str | None = None
    """Only what this agent sent."""
    recipient: str | None = None
    """Only what is for this agent."""
    type: str | None = None
    """Only this type."""
    topic: str | None = None
    """Only this topic, which may be a pattern such as build.#."""
    state: str | None = None
    """Only this state."""
    kind: Several = None
    """Only this kind: command, query, response, ...; may be given more than once."""
    priority: Several = None
    """Only this priority; may be given more than once."""
    correlation_id: str | None = None
    """Only this conversation."""
    content: str | None = None
    """Only bodies in which this regular expression occurs."""
    since: MaybeMoment = None
    """Only what is from then or later: 2026-01-31T12:00:00Z, or how long ago, as in 2h."""
    until: MaybeMoment = None
    """Only what is from before then."""
    limit: int = 100
    """At most so many."""
    offset: int = 0
    """Leave out so many."""
    after: str | None = None
    """Go on where a page ended: what its JSON calls next."""
    count: Annotated[bool, Quiet] = False
    """Say in the JSON how many there are in all, which may take long."""

    def filters(self) -> dict[str, Any]:
        """Return the same as the keywords of the library."""
        return dict(vars(self))


PAST = Sought()


def history(
    *, channel: str | None = None, sought: Sought = PAST, where: Conversation = CONVERSATION
) -> int:
    """
    List sent, received and dead messages, newest first; consumes nothing.

    Columns: id, box, sender, recipient, type, topic, state, at, body. As JSON: a page, with total_count, has_more and next.

    Args:
        channel: Only what came through this channel.
        sought: Which.
        where: Whose file, which session.

    """
    with open_box(where.path()) as box:
        page = box.history(**sought.filters(), channel=channel, session=where.session)
    return print_page(page, where)


def print_page(page: Page, where: Where) -> int:
    """Print a page of past messages."""
    if not where.json:
        return _show(page.messages, where)
    document(
        {
            "messages": _rows(page.messages),
            "total_count": page.total_count,
            "has_more": page.has_more,
            "next": page.next,
        }
    )
    return DONE


def thread(id: str, /, *, where: Where = WHERE) -> int:
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
    show(_rows(messages), COLUMNS, where.style)
    return DONE


def _rows(messages: list[Any]) -> list[dict[str, Any]]:
    rows = [dated(asdict(past)) | {"body": past.body} for past in messages]
    for row in rows:
        del row["frame"]
    return rows
