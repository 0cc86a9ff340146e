"""``onceward ls``."""

from __future__ import annotations

from typing import Final, Literal

from onceward.cli import queries
from onceward.cli.exit_codes import DONE
from onceward.cli.output import show
from onceward.cli.readonly import views
from onceward.cli.target import Conversation

WHERE = Conversation()
KINDS: Final = {
    "queues": (queries.QUEUES, ("box", "peer", "session", "state", "messages", "oldest_at")),
    "lanes": (
        queries.LANES,
        ("sender", "lane", "priority", "state", "head_id", "attempts", "due_at", "reason"),
    ),
    "outbox": (
        queries.OUTBOX,
        (
            "id",
            "recipient",
            "session",
            "type",
            "state",
            "attempts",
            "created_at",
            "due_at",
            "reason",
        ),
    ),
    "inbox": (
        queries.INBOX,
        ("id", "sender", "session", "type", "state", "attempts", "received_at", "reason"),
    ),
}
"""Statement and printed columns by what is listed; JSON has every column of the statement."""

# fmt: off
State = Literal[
    "pending", "sending", "sent", "acked", "failed", "cancelled", "processing", "processed", "dropped", "expired", "dead",
    "ready", "waiting", "leased", "empty",
]
# fmt: on
"""Those of messages, and those of lanes."""


def ls(
    what: Literal["queues", "lanes", "outbox", "inbox"] = "queues",
    /,
    *,
    state: State | None = None,
    peer: str | None = None,
    limit: int = 100,
    where: Conversation = WHERE,
) -> int:
    """
    List queues by state, lanes, or the messages of a box; consumes nothing.

    Columns of queues: box, peer, session, state, messages, oldest. Of lanes: sender, lane, priority, state, head_id, attempts, due,
    reason. Of the outbox: id, recipient, session, type, state, attempts, created, due, reason. Of the inbox: id, sender, session, type,
    state, attempts, received, reason. Messages come newest first.

    Args:
        what: Queues are counts per peer, session and state; lanes the units of order of the inbox; the boxes their messages.
        state: Only this state; the last four are those of lanes.
        peer: Only mail to or from this agent.
        limit: At most so many lines.
        where: Whose file, which session.

    """
    sql, columns = KINDS[what]
    with views(where.path()) as found:
        rows = found.ask(sql, state=state, peer=peer, session=where.session, limit=limit)
    show(rows, columns, where.style)
    return DONE
