"""Store schedules, and move each to its next date together with the message of this one."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceward.db.transaction import StoreTransaction
from onceward.model.clock import Millis
from onceward.model.schedules import Rule
from onceward.model.values import dataclass
from onceward.model.vocabulary import Missed

FIELDS: Final = """name, every, cron, timezone, missed, recipient, session, media, body, options,
       next_at"""
DUE: Final = f"""
SELECT {FIELDS}
  FROM _onceward_schedules
 WHERE due_at <= ?
 ORDER BY due_at, name LIMIT 100
"""
ONE: Final = f"SELECT {FIELDS} FROM _onceward_schedules WHERE name = ?"
# The definition of a known name: what was sent, and a pause, stay as they were.
PUT: Final = """
INSERT INTO _onceward_schedules (name, every, cron, timezone, missed, recipient, session, media,
                                 body, options, next_at, due_at, created_at)
VALUES (:name, :every, :cron, :timezone, :missed, :recipient, :session, :media, :body, :options,
        :next_at, :next_at, :now)
ON CONFLICT (name) DO UPDATE
   SET every = excluded.every, cron = excluded.cron, timezone = excluded.timezone,
       missed = excluded.missed, recipient = excluded.recipient, session = excluded.session,
       media = excluded.media, body = excluded.body, options = excluded.options,
       next_at = excluded.next_at, last_error = NULL,
       due_at = CASE WHEN paused_at IS NULL THEN excluded.next_at END
"""
# All is as it was read before the lock: where another process was quicker, or has replaced the
# definition, nothing changes.
ADVANCE: Final = """
UPDATE _onceward_schedules
   SET next_at = :then, due_at = :then, last_error = NULL
 WHERE name = :name AND next_at = :next_at AND due_at <= :now AND every IS :every
   AND cron IS :cron AND timezone IS :timezone AND missed = :missed AND recipient = :recipient
   AND session = :session AND media IS :media AND body IS :body AND options = :options
"""
NOTE: Final = """
UPDATE _onceward_schedules
   SET sent = sent + :count, last_at = :date, last_id = :id
 WHERE name = :name
"""
PUT_OFF: Final = """
UPDATE _onceward_schedules
   SET due_at = :due_at, last_error = :error
 WHERE name = :name AND next_at = :seen AND due_at IS NOT NULL
"""
PAUSE: Final = """
UPDATE _onceward_schedules
   SET paused_at = :now, due_at = NULL
 WHERE name = :name AND paused_at IS NULL
"""
RESUME: Final = """
UPDATE _onceward_schedules
   SET paused_at = NULL, due_at = :next_at, next_at = :next_at
 WHERE name = :name AND paused_at IS NOT NULL
"""
REMOVE: Final = "DELETE FROM _onceward_schedules WHERE name = ?"
LIST: Final = """
SELECT name, every, cron, timezone, missed, recipient, session, next_at, paused_at, created_at,
       sent, last_at, last_id, last_error
  FROM onceward_schedules
 WHERE name = coalesce(?, name)
 ORDER BY name
"""


@dataclass(frozen=True, slots=True)
class Schedule:
    """
    A message that is sent again and again, and how far it has come.

    *every* is in milliseconds; *next_at* and the other ``*_at`` are milliseconds since 1970.
    *last_error* says why the message of *next_at* could not be sent yet.
    """

    name: str
    every: Millis | None
    cron: str | None
    timezone: str | None
    missed: Missed
    recipient: str
    session: str
    next_at: Millis
    paused_at: Millis | None
    created_at: Millis
    sent: int
    last_at: Millis | None
    last_id: str | None
    last_error: str | None


class ScheduledMessage(NamedTuple):
    """A schedule as its messages are made of it."""

    name: str
    every: Millis | None
    cron: str | None
    timezone: str | None
    missed: Missed
    recipient: str
    session: str
    media: str | None
    body: str | None
    options: str
    next_at: Millis

    @property
    def rule(self) -> Rule:
        """The rule of its dates."""
        return Rule(self.every, self.cron, self.timezone)

    def is_like(self, other: ScheduledMessage) -> bool:
        """Return whether both are defined alike, whatever their next date is."""
        return self[:-1] == other[:-1]


def find(tx: StoreTransaction, name: str) -> ScheduledMessage | None:
    """Return a schedule; None where there is none of this name."""
    return next((ScheduledMessage(*row) for row in tx.rows(ONE, (name,))), None)


def advance(tx: StoreTransaction, seen: ScheduledMessage, next_at: Millis) -> bool:
    """Move a schedule on, from *seen* to its next date; return False where it has changed."""
    return tx.run(ADVANCE, {**seen._asdict(), "then": next_at, "now": tx.now}) == 1
