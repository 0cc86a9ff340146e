"""Find the message that steps and output of a message's handler are stored with."""

from __future__ import annotations

from typing import Final

# A session may have had many runs: the last ones are asked.
FIRST_OF_RUN: Final = """
coalesce((SELECT newest.event_ids ->> '$[0]'
            FROM (SELECT event_ids
                    FROM onceward_runs
                   WHERE session = :session
                   ORDER BY seq DESC LIMIT 200) AS newest
           WHERE EXISTS (SELECT 1 FROM json_each(newest.event_ids) AS j WHERE j.value = :id)
           LIMIT 1), :id)
"""


def handled_as() -> str:
    """Return an expression for its id, from the message's ``:id`` and ``:session``."""
    return FIRST_OF_RUN
