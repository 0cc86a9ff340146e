"""State what holds between lanes that wait for the turns of their groups and these turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onceward.core.contract import FileRule
from onceward.message.vocabulary import PARKED

RULES: Final = {
    "H1": FileRule(
        "a lane that waits for the turn of a group has a group with a turn",
        f"""
        SELECT coalesce(l.group_name, 'no group') || ' lane ' || l.lane_id
          FROM _onceward_lanes AS l
         WHERE l.due_at = {PARKED} AND l.head_seq IS NOT NULL
           AND NOT EXISTS (SELECT 1
                             FROM _onceward_turns AS t
                            WHERE t.group_name = l.group_name AND t.rank = l.rank)
        """,
    ),
}


def rules() -> Mapping[str, FileRule]:
    """Return what must hold for groups."""
    return RULES
