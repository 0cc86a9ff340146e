"""State what holds for the bodies of retained posts, which messages share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onceward.core.contract import FileRule

RULES: Final = {
    "S11": FileRule(
        "a shared body is deleted with the last message that refers to it",
        """
        SELECT 'body ' || b.body_id FROM _onceward_bodies AS b
         WHERE NOT EXISTS (SELECT 1 FROM _onceward_outbox AS o WHERE o.body_id = b.body_id)
           AND NOT EXISTS (SELECT 1 FROM _onceward_retained_posts AS p WHERE p.body_id = b.body_id)
        """,
    ),
    "S12": FileRule(
        "a retained post has its body",
        """
        SELECT 'post ' || p.number
          FROM _onceward_retained_posts AS p
         WHERE NOT EXISTS (SELECT 1 FROM _onceward_bodies AS b WHERE b.body_id = p.body_id)
        """,
    ),
}


def rules() -> Mapping[str, FileRule]:
    """Return what must hold for shared bodies and posts."""
    return RULES
