"""``onceward runs``: runs of sessions, open and past."""

from __future__ import annotations

import json
from typing import Final

from onceward.cli import queries
from onceward.cli.exit_codes import DONE, NothingThere
from onceward.cli.output import dated, document, show_one
from onceward.cli.output import show as show_rows
from onceward.cli.readonly import views, whole_id
from onceward.cli.show import without_nothing
from onceward.cli.target import Conversation, Where, open_box
from onceward.model.vocabulary import RunState

WHERE = Where()
CONVERSATION = Conversation()
COLUMNS: Final = ("id", "session", "mode", "state", "messages", "started_at", "ended_at", "cause")


def ls(
    *,
    state: RunState | None = None,
    limit: int = 100,
    where: Conversation = CONVERSATION,
) -> int:
    """
    List runs, newest first.

    Columns: id, session, mode, state, messages, started, ended, cause.

    Args:
        state: Only runs that are open, or that ended so.
        limit: At most so many lines.
        where: Whose file, which session.

    """
    with views(where.path()) as found:
        rows = found.ask(queries.RUNS, state=state, session=where.session, limit=limit)
    show_rows(rows, COLUMNS, where.style)
    return DONE


def show(id: str, /, *, where: Where = WHERE) -> int:
    """
    Show a run whole: its messages, what it left behind, what it returned.

    Args:
        id: Its id, or a beginning of it that no other run has.
        where: Whose file.

    """
    with views(where.path()) as found:
        run_id = whole_id(found, queries.RUN_IDS, id)
        [row] = [without_nothing(row) for row in found.ask(queries.RUN, id=run_id)]
    if where.json:
        document(
            dated(row)
            | {
                name: json.loads(row[name])
                for name in ("event_ids", "partial", "result")
                if name in row
            }
        )
    else:
        show_one(row, where.style)
    return DONE


def abort(id: str, /, *, cause: str = "aborted by hand", where: Where = WHERE) -> int:
    """
    End an open run, as a steering message does.

    Its messages go back to the head; they are delivered if it stored partial output and its queue says so.

    Args:
        id: Its id, or a beginning of it that no other run has.
        cause: Why, for whoever looks at the run later.
        where: Whose file.

    """
    with views(where.path()) as found:
        run_id = whole_id(found, queries.RUN_IDS, id)
    with open_box(where.path()) as box:
        ended = box.runs.abort(run_id, cause)
    if not ended:
        msg = f"run {run_id} is over already"
        raise NothingThere(msg)
    return show(run_id, where=where)
