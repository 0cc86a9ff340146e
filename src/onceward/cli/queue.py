"""``onceward queue``: what waits in sessions with runs, and how they are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward import Postbox
from onceward.cli import queries
from onceward.cli.durations import MaybeSpan
from onceward.cli.exit_codes import DONE, NothingThere
from onceward.cli.output import show, show_one
from onceward.cli.readonly import views, whole_id
from onceward.cli.target import Where, open_box
from onceward.model.queue_modes import QueueOptions
from onceward.model.vocabulary import QueueMode, QueueOverflow

WHERE = Where()
QUEUES: Final = (
    "session",
    "state",
    "mode",
    "cap",
    "overflow",
    "waiting",
    "bound",
    "dropped",
    "run",
)
WAITING: Final = ("place", "id", "sender", "type", "priority", "attempts", "received_at")
Ids = Annotated[str, Parameter(allow_leading_hyphen=True)]


def ls(session: str | None = None, /, *, limit: int = 100, where: Where = WHERE) -> int:
    """
    List the queues of sessions with runs, or what waits in one of them.

    Columns: session, state, mode, cap, overflow, waiting, bound, dropped, run; of one queue: place, id, sender, type, priority,
    attempts, received.

    Args:
        session: Whose queue, in the order in which it will be taken; without it, all queues by name.
        limit: At most so many lines.
        where: Whose file.

    """
    with views(where.path()) as found:
        rows = (
            found.ask(queries.SESSIONS, limit=limit)
            if session is None
            else found.ask(queries.WAITING, session=session, limit=limit)
        )
    show(rows, QUEUES if session is None else WAITING, where.style)
    return DONE


def mode(
    session: str,
    to: QueueMode | None = None,
    /,
    *,
    debounce: MaybeSpan = None,
    cap: float | None = None,
    overflow: QueueOverflow | None = None,
    where: Where = WHERE,
) -> int:
    """
    Set how a session queues, also while messages wait.

    All settings of the session itself are replaced: what is left out is as its handler says.

    Args:
        session: Whose queue.
        to: The mode.
        debounce: Quiet that a collect waits for.
        cap: Most messages that may wait.
        overflow: What a full queue does: reject the new, drop the old, or drop it and summarize for the next run.
        where: Whose file.

    """
    options: QueueOptions = {"mode": to, "debounce": debounce, "cap": cap, "overflow": overflow}
    return _change(where, session, lambda box: box.queues.set(session, **options))


def reorder(session: str, /, *ids: Ids, where: Where = WHERE) -> int:
    """
    Put waiting messages to the front, in the order given.

    Args:
        session: Whose queue.
        ids: Ids of messages that wait there, or unique beginnings.
        where: Whose file.

    """
    chosen = _whole(where, ids)
    with open_box(where.path()) as box:
        box.queues.reorder(session, chosen)
    return ls(session, where=where)


def remove(session: str, /, *ids: Ids, where: Where = WHERE) -> int:
    """
    Drop waiting messages, with a reason that SQL can read.

    Args:
        session: Whose queue.
        ids: Ids of messages that wait there, or unique beginnings.
        where: Whose file.

    """
    chosen = _whole(where, ids)
    with open_box(where.path()) as box:
        gone = [each for each in chosen if box.queues.remove(session, each)]
    show([{"id": each} for each in gone], ("id",), where.style)
    if len(gone) < len(ids) or not gone:
        msg = f"not waiting in the queue of {session!r}: {', '.join(each for each in chosen if each not in gone) or 'no id was given'}"
        raise NothingThere(msg)
    return DONE


def _whole(where: Where, ids: tuple[str, ...]) -> list[str]:
    with views(where.path()) as found:
        return [whole_id(found, queries.WAITING_IDS, each) for each in ids]


def pause(session: str, /, *, where: Where = WHERE) -> int:
    """
    Begin no further run of a session; mail is taken in, the open run goes on.

    Args:
        session: Whose queue.
        where: Whose file.

    """
    return _change(where, session, lambda box: box.queues.pause(session))


def resume(session: str, /, *, where: Where = WHERE) -> int:
    """
    Go on where pause stopped.

    Args:
        session: Whose queue.
        where: Whose file.

    """
    return _change(where, session, lambda box: box.queues.resume(session))


def dissolve(pattern: str, /, *, where: Where = WHERE) -> int:
    """
    Serve sessions of a pattern by runs no more: for handlers that were taken out of the code.

    What waits is for workers and readers again.

    Args:
        pattern: The pattern that the handler was declared with, such as chat.* or *.
        where: Whose file.

    """
    with open_box(where.path()) as box:
        box.queues.dissolve(pattern)
        show_one({"agent": box.agent, "dissolved": pattern}, where.style)
    return DONE


def _change(where: Where, session: str, change: Callable[[Postbox], object]) -> int:
    path = where.path()
    with open_box(path) as box:
        change(box)
    with views(path) as found:
        rows: list[dict[str, Any]] = [
            row for row in found.ask(queries.SESSIONS, limit=-1) if row["session"] == session
        ]
    show_one(rows[0], where.style)
    return DONE
