"""Ask one file how much of a channel its agent has not received."""

from __future__ import annotations

from typing import Final

from onceward.ops.views.asking import NEVER, Source

LOOK: Final = 1_000
"""Maximum newest messages of the channel that are counted."""
WAITS: Final = f"""
SELECT count(*)
  FROM (SELECT state FROM onceward_inbox
         WHERE channel = :channel AND seq <= :newest ORDER BY seq DESC LIMIT {LOOK}) AS s
 WHERE s.state IN ('pending', 'processing')
"""


def waits_in_channel(source: Source, name: str) -> int:
    """Return how many of a channel's newest messages wait to be received; LOOK at most."""
    [(count,)] = source.rows(WAITS, {"channel": name, "newest": NEVER})
    return int(count)
