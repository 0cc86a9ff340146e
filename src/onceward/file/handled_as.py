"""Find the message under which the steps and output of another message's handler are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Ask = Callable[[str, dict[str, str]], list[tuple[Any, ...]]]
"""Return the rows of a statement."""

# A session may have had many runs: only the last ones are searched. A separate statement: SQLite
# reads a grouping view in full for an id that another statement must find.
HANDLED_AS: Final = """
SELECT coalesce((SELECT newest.event_ids ->> '$[0]'
                   FROM (SELECT event_ids
                           FROM onceward_runs
                          WHERE session = :session
                          ORDER BY seq DESC LIMIT 200) AS newest
                  WHERE EXISTS (SELECT 1 FROM json_each(newest.event_ids) AS j WHERE j.value = :id)
                  LIMIT 1), :id)
"""


def handled_as(ask: Ask, message_id: str, session: str) -> str:
    """Return its id; for messages that a run has handled, the id of the first one."""
    [(first,)] = ask(HANDLED_AS, {"id": message_id, "session": session})
    return str(first)
