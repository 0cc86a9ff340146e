"""Ask one file for the messages that a schedule has sent."""

from __future__ import annotations

from typing import Final

from onceward.message.dates import Schedule
from onceward.ops.views.asking import NEVER, Source
from onceward.ops.views.listing import stored
from onceward.ops.views.messages import StoredMessage

LOOK: Final = 5_000
"""Maximum newest messages of the outbox that are searched for a schedule's."""
# Its messages have a separate lane, unless the schedule has an ordering key.
SENT: Final = f"""
SELECT seq
  FROM (SELECT seq, recipient, lane FROM onceward_outbox
         WHERE seq <= :newest ORDER BY seq DESC LIMIT {LOOK}) AS s
 WHERE recipient = :recipient AND lane = :lane ORDER BY seq DESC LIMIT :limit
"""


def sent_by(source: Source, schedule: Schedule, limit: int) -> tuple[StoredMessage, ...]:
    """Return the newest stored messages of a schedule."""
    named = {
        "newest": NEVER,
        "recipient": schedule.recipient,
        "lane": f"schedule.{schedule.name}",
        "limit": limit,
    }
    return stored(source, "outbox", (seq for (seq,) in source.rows(SENT, named)))
