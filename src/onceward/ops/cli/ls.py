"""``onceward ls``, ``show`` and ``stats``: what a file holds, read through its views."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from onceward.message.vocabulary import LaneState, MessageState
from onceward.ops.cli import queries
from onceward.ops.cli.command import Found, command, emit
from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.options import Limit, said
from onceward.ops.cli.output import dated, document, show_one
from onceward.ops.cli.readonly import Look, whole_id
from onceward.ops.cli.target import Conversation, Where
from onceward.ops.cli.watching import watched

CONVERSATION = Conversation()
WHERE = Where()
KINDS: Final = {
    "queues": (queries.QUEUES, "box peer session state messages oldest_at"),
    "lanes": (queries.LANES, "sender lane priority state head_id attempts due_at reason"),
    "outbox": (
        queries.OUTBOX,
        "id recipient session type state attempts created_at due_at reason",
    ),
    "inbox": (queries.INBOX, "id sender session type state attempts received_at reason"),
}
"""Statement and printed columns by what is listed; JSON has every column of the statement."""
Id = Annotated[str, said("The message's id, or a beginning of it that no other message has.")]


@watched
@command()
def ls(
    found: Look,
    what: Literal["queues", "lanes", "outbox", "inbox"] = "queues",
    /,
    *,
    state: MessageState | LaneState | None = None,
    peer: str | None = None,
    limit: Limit = 100,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    List queues by state, lanes, or the messages of a box; consumes nothing.

    Columns of queues: box, peer, session, state, messages, oldest. Of lanes: sender, lane,
    priority, state, head_id, attempts, due, reason. Of the outbox: id, recipient, session, type,
    state, attempts, created, due, reason. Of the inbox: id, sender, session, type, state,
    attempts, received, reason. Messages come newest first.

    Args:
        what: Counts by peer, session and state; the inbox's lanes; or the messages of a box.
        state: Only this state; ready, waiting, leased and empty are states of lanes.
        peer: Only messages to or from this agent.

    """
    sql, columns = KINDS[what]
    rows = found.ask(sql, state=state, peer=peer, session=where.session, limit=limit)
    return emit(rows, columns.split(), where)


@command()
def show(found: Look, id: Id, /, *, where: Where = WHERE) -> Found:
    """
    Show everything that the file stores about a message.

    These are its rows in outbox, inbox, dead letters and processed messages, and its frame. A
    message that an agent sent to itself has a row in both boxes. Its transitions are added where
    the file records them.
    """
    message_id = whole_id(found, queries.IDS, id)
    rows = [without_nothing(row) for row in found.ask(queries.ROWS, id=message_id)]
    steps = found.ask(queries.TRANSITIONS, id=message_id)
    if where.json:
        found_rows, moves = [*map(dated, rows)], [*map(dated, steps)]
        document({"id": message_id, "rows": found_rows, "transitions": moves})
        return DONE
    told = [{"transitions": step["box"], **without_nothing(step)} for step in steps]
    for row in [*rows, *told]:
        show_one(row, where.style)
    return DONE


@watched
@command()
def stats(found: Look, /) -> Found:
    """
    Print the present numbers, and the totals since the file was made.

    The totals survive the pruning of old rows.
    """
    [numbers] = found.ask(queries.STATS)
    return numbers


def without_nothing(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its empty columns, its frame parsed."""
    return {
        name: _parsed(value) if name == "frame" else value
        for name, value in row.items()
        if value is not None
    }


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # damaged: shown as it is
        return text
