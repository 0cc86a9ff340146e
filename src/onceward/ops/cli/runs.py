"""``onceward runs ls``, ``show`` and ``abort``: runs of sessions, open and past."""

from __future__ import annotations

import json
from typing import Annotated, Any

from onceward import Postbox
from onceward.file.read_only import FileReader
from onceward.message.vocabulary import RunState
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.cutting import cut
from onceward.ops.cli.exit_codes import NothingThere
from onceward.ops.cli.ls import without_nothing
from onceward.ops.cli.options import Limit, said
from onceward.ops.cli.output import row_of
from onceward.ops.cli.readonly import views, whole_id
from onceward.ops.cli.target import CONVERSATION, WHERE, Conversation, Where
from onceward.ops.views import lists

Id = Annotated[str, said("The run's id, or a unique prefix of it.")]
State = Annotated[RunState | None, said("Only runs in this state.")]


@command("id", "session", "mode", "state", "messages", "started_at", "ended_at", "cause")
def ls(
    found: FileReader,
    /,
    *,
    state: State = None,
    limit: Limit = 100,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    List runs, newest first.

    Example: onceward runs ls --state open
    """
    return cut(
        lambda most: lists.runs(found, state=state, session=where.session, limit=most), limit
    )


@command()
def show(found: FileReader, id: Id, /, *, where: Where = WHERE) -> Found:
    """
    Show all of a run: its messages, its partial output and its result.

    Example: onceward runs show 0199f0c2 --json
    """
    return _run(found, whole_id(found, lists.run_ids, id), where)


@command()
def abort(
    box: Postbox,
    id: Id,
    /,
    *,
    cause: str = "aborted manually",
    where: Where = WHERE,
) -> Found:
    """
    Abort an open run, as a steering message does.

    Its messages go back to the head of the queue. If the run stored partial output, the settings of
    its queue may count them as delivered.

    Example: onceward runs abort 0199f0c2 --cause 'wrong branch'

    Args:
        cause: The reason to store with the run.

    """
    with views(box.file.path) as found:
        run_id = whole_id(found, lists.run_ids, id)
        if not box.runs.abort(run_id, cause):
            raise NothingThere(f"run {run_id} has ended already")
        return _run(found, run_id, where)


def _run(found: FileReader, run_id: str, where: Where) -> dict[str, Any]:
    run, content = lists.run(found, run_id)
    row = without_nothing({**row_of(run), **row_of(content)})
    texts = ("event_ids", "partial", "result") if where.json else ()
    return row | {name: json.loads(row[name]) for name in texts if name in row}
