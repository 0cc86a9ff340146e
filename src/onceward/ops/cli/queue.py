"""``onceward runs queues``, ``set`` …: the queues of sessions with runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from onceward import Postbox
from onceward.file.read_only import FileReader
from onceward.message.vocabulary import QueueMode, QueueOverflow
from onceward.ops.cli.command import Found, command, emit
from onceward.ops.cli.cutting import cut
from onceward.ops.cli.durations import MaybeSpan
from onceward.ops.cli.exit_codes import NothingThere
from onceward.ops.cli.options import Limit, Session, said
from onceward.ops.cli.output import row_of
from onceward.ops.cli.readonly import views, whole_id
from onceward.ops.cli.target import WHERE, Where
from onceward.ops.views import lists

QUEUES: Final = (
    "session", "state", "mode", "cap", "overflow", "waiting", "bound", "dropped", "run",
)  # fmt: skip
WAITING: Final = ("position", "id", "sender", "type", "priority", "attempts", "received_at")
Waiting = Annotated[
    str,
    said("Ids of waiting messages, or unique prefixes.", allow_leading_hyphen=True),
]


@command()
def queues(
    found: FileReader,
    session: Session | None = None,
    /,
    *,
    limit: Limit = 100,
    where: Where = WHERE,
) -> Found:
    """
    List the queues of sessions with runs by name, or the messages of one queue in its order.

    Columns: session, state, mode, cap, overflow, waiting, bound, dropped, run; of one queue: place,
    id, sender, type, priority, attempts, received.

    Example: onceward runs queues chat-7
    """
    if session is None:
        rows = cut(lambda most: lists.session_queues(found, limit=most), limit)
        return emit(rows, QUEUES, where)
    return emit(cut(lambda most: lists.queued(found, session, most), limit), WAITING, where)


@command()
def set_(
    box: Postbox,
    session: Session,
    /,
    *,
    mode: QueueMode | None = None,
    debounce: MaybeSpan = None,
    cap: float | None = None,
    overflow: QueueOverflow | None = None,
) -> Found:
    """
    Set how a session queues, even while messages wait.

    All settings of the session itself are replaced: the others come from its handler.

    Example: onceward runs set chat-7 --mode collect --debounce 2s

    Args:
        mode: Treatment of messages that arrive while a run is open.
        debounce: Quiet time that a collect waits for.
        cap: Maximum number of waiting messages.
        overflow: A full queue rejects the new, drops the old, or drops and summarizes the old.

    """
    box.runs.set(session, mode=mode, debounce=debounce, cap=cap, overflow=overflow)
    return _row(box, session)


@command()
def reorder(box: Postbox, session: Session, /, *ids: Waiting, where: Where = WHERE) -> Found:
    """
    Move waiting messages to the front, in the given order.

    Example: onceward runs reorder chat-7 0199f0c2
    """
    box.runs.reorder(session, _whole(box, ids))
    with views(box.file.path) as found:
        return emit(lists.queued(found, session, 100), WAITING, where)


@command()
def discard(box: Postbox, session: Session, /, *ids: Waiting, where: Where = WHERE) -> None:
    """
    Discard waiting messages, with a reason that SQL can read.

    Example: onceward runs discard chat-7 0199f0c2
    """
    chosen = _whole(box, ids)
    gone = [each for each in chosen if box.runs.discard(session, each)]
    emit([{"id": each} for each in gone], ("id",), where)
    if len(gone) < len(ids) or not gone:
        left = ", ".join(each for each in chosen if each not in gone) or "no id was given"
        raise NothingThere(f"not waiting in the queue of {session!r}: {left}")


@command()
def pause(box: Postbox, session: Session, /) -> Found:
    """
    Start no further run of a session; messages are accepted, the open run continues.

    Example: onceward runs pause chat-7
    """
    box.runs.pause(session)
    return _row(box, session)


@command()
def resume(box: Postbox, session: Session, /) -> Found:
    """
    End the pause of a session.

    Example: onceward runs resume chat-7
    """
    box.runs.resume(session)
    return _row(box, session)


@command()
def remove(
    box: Postbox,
    pattern: Annotated[str, said("The handler's pattern, such as chat.* or *.")],
    /,
) -> Found:
    """
    Stop serving the sessions of a pattern by runs, after their handler was removed from the code.

    Waiting messages go to workers and readers again.

    Example: onceward runs remove 'chat-*'
    """
    box.runs.remove(pattern)
    return {"agent": box.agent, "removed": pattern}


def _whole(box: Postbox, ids: Sequence[str]) -> list[str]:
    with views(box.file.path) as found:
        return [whole_id(found, lists.queued_ids, each) for each in ids]


def _row(box: Postbox, session: str) -> Found:
    with views(box.file.path) as found:
        return row_of(lists.session_queue(found, session))
