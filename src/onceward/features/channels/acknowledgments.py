"""Store the acknowledgments of recipients, which only ever move forward."""

from __future__ import annotations

from typing import Final

from onceward.errors import refuse
from onceward.file.database import Database
from onceward.file.sql_parts import columns
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.handler_work import Acknowledgment

KIND: Final = "acknowledgment"
STAGES: Final = {"received": 1, "in_progress": 2, "failed": 3, "completed": 4}
"""Order of acknowledgments; ``failed`` precedes ``completed``, as a later attempt may succeed."""
DETAIL_MAX: Final = 2000
OURS: Final = """
SELECT 1 FROM _onceward_outbox WHERE id = ?1 AND recipient = ?2
UNION ALL
SELECT 1 FROM _onceward_acknowledgments WHERE message_id = ?1 AND participant = ?2
"""
OLD: Final = """
DELETE FROM _onceward_acknowledgments
 WHERE (message_id, participant) IN (
     SELECT message_id, participant
       FROM _onceward_acknowledgments AS a
      WHERE at < :before
        AND NOT EXISTS (SELECT 1 FROM _onceward_outbox AS o WHERE o.id = a.message_id)
      LIMIT :limit)
"""
NOTE: Final = """
INSERT INTO _onceward_acknowledgments (message_id, participant, stage, detail, first_at, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT (message_id, participant) DO UPDATE
   SET stage = excluded.stage, detail = excluded.detail, at = excluded.at
 WHERE excluded.stage > _onceward_acknowledgments.stage
"""
OF: Final = f"""
SELECT {columns(Acknowledgment)} FROM onceward_acknowledgments
 WHERE message_id = ?1 OR correlation_id = ?1
 ORDER BY participant
"""


def stage(status: str) -> int:
    """Return the number of a status; raise ValidationFailed for an unknown one."""
    if status not in STAGES:
        refuse("status", f"is not one of {', '.join(STAGES)}", len(str(status)))
    return STAGES[status]


def note(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Store a frame that is an acknowledgment; return False for an ordinary message."""
    said = frame.data
    if frame.causationid is None or not isinstance(said, dict) or said.get("status") not in STAGES:
        return False
    if not tx.rows(OURS, (frame.causationid, sender)):
        return False
    detail = said.get("detail")
    named = None if detail is None else str(detail)[:DETAIL_MAX]
    tx.run(NOTE, (frame.causationid, sender, STAGES[str(said["status"])], named, tx.now))
    return True


def prune(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Prune a slice of old acknowledgments whose messages no longer exist; return how many."""
    return tx.run(OLD, {"before": before, "limit": limit})


def of(db: Database, message_id: str) -> list[Acknowledgment]:
    """Return the acknowledgments of a message, by its id or the id that its copies share."""
    return [Acknowledgment(*row) for row in db.ask(OF, (message_id,))]
