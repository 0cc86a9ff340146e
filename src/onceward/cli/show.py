"""``onceward show``."""

from __future__ import annotations

import json
from typing import Any

from onceward.cli import queries
from onceward.cli.exit_codes import DONE
from onceward.cli.output import dated, document, show_one
from onceward.cli.readonly import views, whole_id
from onceward.cli.target import Where

WHERE = Where()


def show(id: str, /, *, where: Where = WHERE) -> int:
    """
    Show everything that is known about a message.

    That is its rows in outbox, inbox, dead letters and marks, and its frame. A message that an agent sent to itself has a row
    in both boxes. The trail is added where the file keeps one.

    Args:
        id: The message's id, or a beginning of it that no other message has.
        where: Whose file.

    """
    with views(where.path()) as found:
        message_id = whole_id(found, queries.IDS, id)
        rows = [without_nothing(row) for row in found.ask(queries.ROWS, id=message_id)]
        trail = found.ask(queries.TRAIL, id=message_id)
    if where.json:
        document(
            {
                "id": message_id,
                "rows": [dated(row) for row in rows],
                "trail": [dated(step) for step in trail],
            }
        )
        return DONE
    for row in rows:
        show_one(row, where.style)
    for step in trail:
        show_one({"trail": step["box"], **without_nothing(step)}, where.style)
    return DONE


def without_nothing(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its empty columns, its frame read."""
    return {
        name: frame_of(value) if name == "frame" else value
        for name, value in row.items()
        if value is not None
    }


def frame_of(text: str) -> Any:
    """Return a stored frame as values; damaged text comes back as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
