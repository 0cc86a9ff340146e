"""State what holds between runs and the messages that they bind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onceward.core.contract import FileRule

RULES: Final = {
    "Q1": FileRule(
        "a message that is bound to a run is bound to an open one, which lists it",
        """
        SELECT b.id FROM _onceward_inbox AS b LEFT JOIN _onceward_runs AS r ON r.seq = b.run_seq
         WHERE b.state = 'pending' AND b.run_seq IS NOT NULL
           AND (r.state IS NOT 'open' OR b.seq NOT IN (SELECT value FROM json_each(r.bound)))
        """,
    ),
    "Q2": FileRule(
        "an open run holds every message that it lists",
        """
        SELECT r.id
          FROM _onceward_runs AS r, json_each(r.bound) AS j
          LEFT JOIN _onceward_inbox AS b ON b.seq = j.value
         WHERE r.state = 'open'
           AND (b.seq IS NULL OR b.run_seq IS NOT r.seq OR b.state <> 'pending')
        """,
    ),
    "Q3": FileRule(
        "a dropped message waits for a run that gets its summary",
        """
        SELECT d.id
          FROM _onceward_drops AS d
          JOIN _onceward_runs AS r ON r.seq = d.run_seq
         WHERE r.state <> 'open' AND NOT r.consumed
        """,
    ),
}


def rules() -> Mapping[str, FileRule]:
    """Return what must hold for runs."""
    return RULES
