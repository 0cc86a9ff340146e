"""Store schedules, and advance each to its next date together with the current date's message."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from onceward.file.sql_parts import columns
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.dates import ENDLESS, Due, Origin, Rule, Schedule, Spans
from onceward.message.vocabulary import Missed, Overlap

AGAIN: Final = 10_000
"""Milliseconds after which a message that the outbox refused is tried again."""


class ScheduledMessage(NamedTuple):
    """A schedule with the fields of its messages."""

    name: str
    every: Millis | None
    cron: str | None
    timezone: str | None
    missed: Missed
    overlap: Overlap
    recipient: str
    session: str
    media: str | None
    body: str | None
    options: str
    origin: Origin
    next_at: Millis
    unsent: str | None
    """Unsent dates as JSON; None if they are the next one and all after it."""
    seen_at: Millis
    """The wall clock when the next date was computed."""
    last_at: Millis | None = None

    @property
    def unsent_dates(self) -> Spans:
        """The dates without a message."""
        if self.unsent is None:
            return ((self.next_at, ENDLESS),)
        return tuple((start, end) for start, end in json.loads(self.unsent))

    def all_unsent(self, earliest: Millis | None) -> str | None:
        """
        Return the dates of a schedule that has sent none, none before *earliest*.

        They begin before its next date: the clock may be ahead, and be set back.
        """
        rule = self.rule
        if earliest is not None:
            start = rule.after(earliest - 1, date=earliest)
        else:
            start = 0 if rule.every is None else self.next_at % rule.every
        return unsent_text(((start, ENDLESS),), self.next_at)

    @property
    def rule(self) -> Rule:
        """The rule of its dates."""
        return Rule(self.every, self.cron, self.timezone)

    def next_date(self, now: Millis) -> Millis:
        """Return the first date after now without a message: where it continues after a pause."""
        return self.rule.first(self.unsent_dates, now)

    def is_like(self, other: ScheduledMessage) -> bool:
        """Return whether both have the same definition, regardless of their dates."""
        return self[:DEFINITION] == other[:DEFINITION]


def unsent_text(dates: Spans, next_at: Millis) -> str | None:
    """Return unsent dates as they are stored; None for the next one and all after it."""
    return None if dates == ((next_at, ENDLESS),) else json.dumps(dates)


DEFINITION: Final = ScheduledMessage._fields.index("next_at")
FIELDS: Final = ", ".join(ScheduledMessage._fields)
# A date was computed later than now: the wall clock has been set back.
DUE: Final = f"""
SELECT {FIELDS}
  FROM _onceward_schedules
 WHERE due_at <= ?1 OR due_at IS NOT NULL AND seen_at > ?1
 ORDER BY due_at, name LIMIT 100
"""
ONE: Final = f"SELECT {FIELDS} FROM _onceward_schedules WHERE name = ?"
# The definition of a known name: its sent dates and its pause are kept.
PUT: Final = """
INSERT INTO _onceward_schedules (name, every, cron, timezone, missed, overlap, recipient, session,
                                 media, body, options, origin, next_at, unsent, seen_at, due_at,
                                 created_at)
VALUES (:name, :every, :cron, :timezone, :missed, :overlap, :recipient, :session, :media, :body,
        :options, :origin, :next_at, :unsent, :seen_at, :next_at, :now)
ON CONFLICT (name) DO UPDATE
   SET every = excluded.every, cron = excluded.cron, timezone = excluded.timezone,
       missed = excluded.missed, overlap = excluded.overlap, recipient = excluded.recipient,
       session = excluded.session, media = excluded.media, body = excluded.body,
       options = excluded.options, origin = excluded.origin, next_at = excluded.next_at,
       unsent = excluded.unsent, seen_at = excluded.seen_at, last_error = NULL,
       paused_at = CASE WHEN origin <> 'withdrawn' THEN paused_at END,
       due_at = CASE WHEN paused_at IS NULL OR origin = 'withdrawn' THEN excluded.next_at END
"""
# Changes nothing if another process was faster, or has replaced the definition, since the row was
# read.
ADVANCE: Final = """
UPDATE _onceward_schedules
   SET next_at = :then, due_at = :then, unsent = :left, seen_at = :now, last_error = NULL
 WHERE name = :name AND next_at = :next_at AND due_at <= :now AND unsent IS :unsent
   AND every IS :every AND cron IS :cron AND timezone IS :timezone AND missed = :missed
   AND overlap = :overlap AND recipient = :recipient
   AND session = :session AND media IS :media AND body IS :body AND options = :options
"""
STEP_BACK: Final = """
UPDATE _onceward_schedules
   SET next_at = :then, due_at = :then, seen_at = :now
 WHERE name = :name AND next_at = :next_at AND unsent IS :unsent AND due_at IS NOT NULL
"""
UNFINISHED: Final = """
SELECT last_id
  FROM _onceward_schedules AS s
 WHERE name = :name
   AND (EXISTS (SELECT 1 FROM _onceward_outbox WHERE id = s.last_id AND ended_at IS NULL)
        OR EXISTS (SELECT 1 FROM _onceward_inbox
                    WHERE sender = :agent AND id = s.last_id AND ended_at IS NULL))
"""
SKIP: Final = """
UPDATE _onceward_schedules
   SET skipped = skipped + 1, skipped_at = :date
 WHERE name = :name
"""
NOTE: Final = """
UPDATE _onceward_schedules
   SET sent = sent + :count, last_at = :date, last_id = :id
 WHERE name = :name
"""
PUT_OFF: Final = """
UPDATE _onceward_schedules
   SET due_at = :due_at, seen_at = :now, last_error = :error
 WHERE name = :name AND next_at = :seen AND due_at IS NOT NULL
"""
PAUSE: Final = """
UPDATE _onceward_schedules
   SET paused_at = :now, due_at = NULL,
       origin = CASE origin WHEN 'withdrawn' THEN 'declared' ELSE origin END
 WHERE name = :name AND (paused_at IS NULL OR origin = 'withdrawn')
"""
RESUME: Final = """
UPDATE _onceward_schedules
   SET paused_at = NULL, due_at = :next_at, next_at = :next_at, seen_at = :seen_at,
       origin = CASE origin WHEN 'withdrawn' THEN 'added' ELSE origin END
 WHERE name = :name AND paused_at IS NOT NULL
"""
DECLARED: Final = """
SELECT name, declared_by
  FROM _onceward_schedules
 WHERE origin = 'declared' AND paused_at IS NULL
   AND name NOT IN (SELECT value FROM json_each(?))
 ORDER BY name
"""
# One that was withdrawn since this opening added it is declared again.
JOIN: Final = """
UPDATE _onceward_schedules
   SET declared_by = json_insert(declared_by, '$[#]', :owner), origin = 'declared',
       paused_at = CASE WHEN origin <> 'withdrawn' THEN paused_at END,
       due_at = CASE origin WHEN 'withdrawn' THEN next_at ELSE due_at END
 WHERE name IN (SELECT value FROM json_each(:names)) AND origin <> 'added'
"""
LEAVE: Final = """
UPDATE _onceward_schedules
   SET declared_by = (SELECT json_group_array(value) FROM json_each(declared_by)
                       WHERE value <> :owner)
 WHERE name IN (SELECT value FROM json_each(:names)) AND instr(declared_by, :owner)
"""
LEFT: Final = "UPDATE _onceward_schedules SET declared_by = '[]' WHERE declared_by <> '[]'"
# Changes nothing if another opening has declared it since the row was read.
WITHDRAW: Final = """
UPDATE _onceward_schedules
   SET origin = 'withdrawn', paused_at = :now, due_at = NULL, declared_by = '[]'
 WHERE name = :name AND origin = 'declared' AND paused_at IS NULL AND declared_by = :seen
"""
REMOVE: Final = "DELETE FROM _onceward_schedules WHERE name = ?"
LIST: Final = f"""
SELECT {columns(Schedule)} FROM onceward_schedules WHERE name = coalesce(?, name) ORDER BY name
"""


def find(read: Rows, name: str) -> ScheduledMessage | None:
    """Return a schedule; None if none has this name."""
    return next((ScheduledMessage(*row) for row in read(ONE, (name,))), None)


def listed(read: Rows, name: str | None = None) -> list[Schedule]:
    """Return all schedules by name, or the one of *name*."""
    return [Schedule(*row) for row in read(LIST, (name,))]


def due(read: Rows, now: Millis) -> list[ScheduledMessage]:
    """Return the schedules with a due date, or with a date from before the clock was set back."""
    return [ScheduledMessage(*row) for row in read(DUE, (now,))]


class Declared(NamedTuple):
    """A schedule that openings of the file declare, and the owners of these, as JSON."""

    name: str
    declared_by: str


def declared_elsewhere(read: Rows, names: Iterable[str]) -> list[Declared]:
    """Return the schedules that were declared, and are neither paused nor in *names*."""
    return [Declared(*row) for row in read(DECLARED, (json.dumps(sorted(names)),))]


def join(tx: StoreTransaction, names: Iterable[str], owner: str) -> None:
    """Store that an opening of the file declares schedules."""
    tx.run(JOIN, {"names": json.dumps(sorted(names)), "owner": owner})


def leave(tx: StoreTransaction, names: Iterable[str], owner: str) -> None:
    """Store that an opening of the file, which ends, no longer declares schedules."""
    tx.run(LEAVE, {"names": json.dumps(sorted(names)), "owner": owner})


def leave_all(tx: StoreTransaction) -> None:
    """Store that no opening of the file declares schedules, because there is none."""
    tx.run(LEFT)


def put(tx: StoreTransaction, made: ScheduledMessage) -> None:
    """Store a schedule, replacing one of the same name."""
    tx.run(PUT, {**made._asdict(), "now": tx.now})


def remove(tx: StoreTransaction, name: str) -> bool:
    """Remove a schedule; return whether there was one."""
    return tx.run(REMOVE, (name,)) > 0


def pause(tx: StoreTransaction, name: str) -> bool:
    """Pause a schedule until it is resumed; return whether that is a change."""
    return tx.run(PAUSE, {"name": name, "now": tx.now}) > 0


def withdraw(tx: StoreTransaction, seen: Declared) -> bool:
    """Pause a schedule until it is declared again; return whether that is a change."""
    return tx.run(WITHDRAW, {"name": seen.name, "seen": seen.declared_by, "now": tx.now}) > 0


def resume(tx: StoreTransaction, name: str, now: Millis) -> bool:
    """Resume a paused schedule with its next date; return whether that is a change."""
    found = find(tx.rows, name)
    if found is None:
        return False
    next_at = found.next_date(now)
    return tx.run(RESUME, {"name": name, "next_at": next_at, "seen_at": now}) > 0


def step_back(tx: StoreTransaction, seen: ScheduledMessage, then: Millis, now: Millis) -> None:
    """Return to an earlier date after the clock was set back, unless the schedule has changed."""
    tx.run(STEP_BACK, {**seen._asdict(), "then": then, "now": now})


def skip(tx: StoreTransaction, name: str, date: Millis) -> None:
    """Count a date without a message."""
    tx.run(SKIP, {"name": name, "date": date})


def note_sent(tx: StoreTransaction, name: str, count: int, date: Millis, last_id: str) -> None:
    """Count the messages that were sent for dates up to *date*."""
    tx.run(NOTE, {"name": name, "count": count, "date": date, "id": last_id})


def put_off(tx: StoreTransaction, seen: ScheduledMessage, now: Millis, error: str) -> None:
    """Delay a message that could not be sent, and store why."""
    fields = {"name": seen.name, "seen": seen.next_at, "now": now, "error": error}
    tx.run(PUT_OFF, {**fields, "due_at": now + AGAIN})


def advance(tx: StoreTransaction, seen: ScheduledMessage, due: Due, now: Millis) -> bool:
    """Advance a schedule from *seen* to its next date; return False if it has changed."""
    left = unsent_text(due.unsent, due.next_at)
    fields = {**seen._asdict(), "then": due.next_at, "left": left, "now": now}
    return tx.run(ADVANCE, fields) == 1


def unfinished(tx: StoreTransaction, schedule: ScheduledMessage, agent: str) -> str | None:
    """Return the last message of a schedule while it is unfinished."""
    rows = tx.rows(UNFINISHED, {"name": schedule.name, "agent": agent})
    return next((message_id for (message_id,) in rows), None)
