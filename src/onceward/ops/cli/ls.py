"""``onceward ls``, ``show`` and ``stats``: print the content of a file, read through its views."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from onceward.file.caused import Root, in_home
from onceward.file.read_only import FileReader
from onceward.message.caused import CausedMessage, drawn
from onceward.message.vocabulary import LaneState, MessageState
from onceward.ops.cli.command import Found, command, emit
from onceward.ops.cli.cutting import cut
from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.options import Limit, Quiet, said
from onceward.ops.cli.output import dated, document, note, row_of, show_one
from onceward.ops.cli.output import show as show_rows
from onceward.ops.cli.readonly import whole_id
from onceward.ops.cli.target import CONVERSATION, WHERE, Conversation, Where
from onceward.ops.cli.watching import watched
from onceward.ops.views import lists, overview
from onceward.ops.views.asking import NEVER
from onceward.ops.views.listing import latest, queues
from onceward.ops.views.messages import (
    FoundMessage,
    Processed,
    StoredMessage,
    message,
    message_ids,
    whole_frame,
)

KINDS: Final[dict[str, tuple[Callable[..., Iterable[Any]], str]]] = {
    "queues": (queues, "box peer session state messages oldest_at"),
    "lanes": (lists.lanes, "sender lane priority state head_id attempts due_at reason"),
    "outbox": (
        partial(latest, box="outbox"),
        "id recipient session type state attempts created_at due_at reason",
    ),
    "inbox": (
        partial(latest, box="inbox"),
        "id sender session type state attempts received_at reason",
    ),
}
"""Question and printed columns by what is listed; JSON has every column."""
Id = Annotated[str, said("The message's id, or a unique prefix of it.")]
All = Annotated[bool, Quiet, said("Also print the numbers that are 0.")]


@watched
@command()
def ls(
    found: FileReader,
    what: Literal["queues", "lanes", "outbox", "inbox"] = "queues",
    /,
    *,
    state: MessageState | LaneState | None = None,
    peer: str | None = None,
    limit: Limit = 100,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    List queues by state, lanes, or the messages of a box, without consuming any.

    Columns of queues: box, peer, session, state, messages, oldest. Of lanes: sender, lane,
    priority, state, head_id, attempts, due, reason. Of the outbox: id, recipient, session, type,
    state, attempts, created, due, reason. Of the inbox: id, sender, session, type, state,
    attempts, received, reason. Messages come newest first.

    Example: onceward ls outbox --state pending --peer billing

    Args:
        what: Counts by peer, session and state; the inbox's lanes; or the messages of a box.
        state: Only this state; ready, waiting, leased and empty are states of lanes.
        peer: Only messages to or from this agent.

    """
    ask, columns = KINDS[what]
    sought = {"state": state, "peer": peer, "session": where.session}
    rows = cut(lambda most: ask(found, **sought, limit=most), limit)
    return emit([*map(row_of, rows)], columns.split(), where)


@command()
def show(found: FileReader, id: Id, /, *, where: Where = WHERE) -> Found:
    """
    Show everything that the file stores about a message.

    That is its rows in outbox, inbox, dead letters and processed messages, and its frame. A message
    that an agent sent to itself has a row in both boxes. It also shows the steps of its handler
    with their attempts and seconds, its output streams, its result if that is kept, its transitions
    if the file records them, and the tree of the messages that it caused, from the files beside it.

    Example: onceward show 0199f0c2
    """
    message_id = whole_id(found, message_ids, id)
    known = message(found, message_id, window=NEVER)
    rows = [with_frame(found, each) for each in known.rows]
    steps = [without_nothing(row_of(step)) | {"took": step.took} for step in known.steps]
    streams = [row_of(each) for each in known.streams]
    results = [row_of(each) for each in known.results]
    moves = [row_of(each) for each in known.transitions]
    children = _children(found, known)
    if where.json:
        listed: dict[str, Sequence[Mapping[str, Any]]]
        listed = {"rows": rows, "steps": steps, "streams": streams}
        listed |= {"results": results, "transitions": moves, "children": _nested(children)}
        document({"id": message_id} | {name: [*map(dated, each)] for name, each in listed.items()})
        return DONE
    told = [{"step": step["name"], **step} for step in steps]
    told += [{"stream": each["name"], **each} for each in streams]
    told += [{"result": each["body"], **each} for each in results]
    told += [{"transitions": each["box"], **without_nothing(each)} for each in moves]
    for row in [*rows, *told]:
        show_one(row, where.style)
    if children:
        show_rows([{"children": line} for line in drawn(children)], ("children",), where.style)
    return DONE


def _children(found: FileReader, known: FoundMessage) -> tuple[CausedMessage, ...]:
    """Return the messages that a message caused."""
    if (one := known.any) is None:
        return ()
    agent = one.sender if one is known.sent else one.recipient
    root = Root(one.id, one.sender, one.recipient, one.correlation_id)
    return in_home(root, agent, found.rows, found.path)


def _nested(children: Iterable[CausedMessage]) -> list[dict[str, Any]]:
    return [dated(row_of(each)) | {"children": _nested(each.children)} for each in children]


@watched
@command()
def stats(found: FileReader, /, *, all: All = False, where: Where = WHERE) -> Found:
    """
    Print the current numbers, and the totals since the file was created.

    Numbers that are 0 are omitted, except in JSON. The totals survive the pruning of old rows.

    Example: onceward stats shop.db --json

    Example: onceward stats shop.db --watch 2s
    """
    numbers = overview.stats(found)
    if all or where.json:
        return numbers
    if not (shown := {name: value for name, value in numbers.items() if value}):
        note("every number is 0: --all")
    return shown


def with_frame(found: FileReader, stored: StoredMessage | Processed) -> dict[str, Any]:
    """Return a row without its empty columns, and with its frame parsed."""
    row = without_nothing(row_of(stored))
    if isinstance(stored, Processed):
        return row
    frame = whole_frame(found, stored.box, stored.seq)
    return row if frame is None else row | {"frame": _parsed(frame.decode("utf-8", "replace"))}


def without_nothing(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without its empty columns."""
    return {name: value for name, value in row.items() if value is not None}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # damaged: shown as it is
        return text
