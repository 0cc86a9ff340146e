"""Ask one file for the messages that a schedule has sent."""

from __future__ import annotations

import json
from typing import Final

from onceward.ops.views.asking import NEVER, Source, values
from onceward.ops.views.listing import ROW
from onceward.ops.views.lists import Schedule
from onceward.ops.views.messages import StoredMessage

LOOK: Final = 5_000
"""Newest messages of the outbox among which those of a schedule are sought."""
# Its messages have a lane of their own, unless the schedule was given an ordering key.
SENT: Final = f"""
SELECT seq
  FROM (SELECT seq, recipient, lane FROM onceward_outbox
         WHERE seq <= :newest ORDER BY seq DESC LIMIT {LOOK}) AS s
 WHERE recipient = :recipient AND lane = :lane ORDER BY seq DESC LIMIT :limit
"""


def sent_by(source: Source, schedule: Schedule, limit: int) -> tuple[StoredMessage, ...]:
    """Return the newest messages that a schedule has sent and that are still stored."""
    named = {
        "newest": NEVER,
        "recipient": schedule.recipient,
        "lane": f"schedule.{schedule.name}",
        "limit": limit,
    }
    seqs = [seq for (seq,) in source.rows(SENT, named)]
    return values(source, StoredMessage, ROW["outbox"], seqs=json.dumps(seqs))
