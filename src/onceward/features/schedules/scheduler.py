"""Send the messages of schedules, each in one commit with the schedule's next date."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send.add import Outbox
from onceward.errors import OncewardError, StoreError
from onceward.features.schedules import schedules
from onceward.features.schedules.declarations import Declarations
from onceward.features.schedules.schedules import ScheduledMessage
from onceward.features.schedules.tick import Tick
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.body import BYTES, VERSIONED, decode
from onceward.message.clock import Millis
from onceward.message.dates import Due, iso
from onceward.message.error_text import message_of
from onceward.message.log import log
from onceward.message.options import MessageOptions


class Scheduler:
    """
    Sends the due messages of one file's schedules.

    Of several processes on the file one sends the message of a date: the same transaction advances
    the date, if it is unchanged. Dates follow the wall clock: the file's own time never steps back,
    so dates would stay ahead with it.
    """

    def __init__(self, db: Database, outbox: Outbox, declarations: Declarations) -> None:
        self._db, self._outbox, self._declarations = db, outbox, declarations

    def run(self) -> None:
        """Send due messages; do nothing inside an open transaction, which may be undone."""
        if self._db.writer.held:
            return
        now = self._db.clock.now()
        for seen in schedules.due(self._db.read, now):
            if self._declarations.leaves_to_others(seen):
                continue
            if seen.seen_at > now:
                self._send_due(self._step_back(seen, now), now)
            else:
                self._send_due(seen, now)

    def send_now(self, tx: StoreTransaction, schedule: ScheduledMessage) -> str:
        """Send a schedule's message in the caller's transaction, independent of its dates."""
        message = self._outbox.compose(*_parts(schedule, tx.now))
        return self._add(tx, schedule, [message], tx.now)

    def _step_back(self, seen: ScheduledMessage, now: Millis) -> ScheduledMessage:
        """After the clock was set back, return to the first unsent date; sent dates stay sent."""
        then = min(seen.next_at, seen.rule.first(seen.unsent_dates, now))
        self._db.write(partial(schedules.step_back, seen=seen, then=then, now=now))
        return seen._replace(next_at=then, seen_at=now)

    def _send_due(self, seen: ScheduledMessage, now: Millis) -> None:
        """Send one schedule's due messages; a failing schedule does not delay others."""
        if seen.next_at > now:
            return
        try:
            due = seen.rule.due(seen.unsent_dates, seen.next_at, now, seen.missed)
            messages = [self._compose_of(seen, date, now) for date in due.dates]
            self._db.write(partial(self._advance, seen=seen, messages=messages, due=due, now=now))
        except StoreError:  # an error of the file is not this schedule's fault
            raise
        except OncewardError as error:
            log.failure(
                "warning", "schedule waits", error, agent=self._db.agent, schedule=seen.name
            )
            self._db.write(partial(schedules.put_off, seen=seen, now=now, error=message_of(error)))

    def _advance(
        self,
        tx: StoreTransaction,
        *,
        seen: ScheduledMessage,
        messages: list[OutgoingMessage],
        due: Due,
        now: Millis,
    ) -> None:
        if not schedules.advance(tx, seen, due, now) or not messages:
            return
        skips = seen.overlap == "skip"
        waits_for = schedules.unfinished(tx, seen, self._db.agent) if skips else None
        if waits_for is None:
            self._add(tx, seen, messages, due.dates[-1])
            return
        schedules.skip(tx, seen.name, due.dates[-1])
        tx.after_commit(partial(self._tell_skipped, seen.name, due.dates[-1], waits_for))

    def _tell_skipped(self, name: str, date: Millis, waits_for: str) -> None:
        of_message = log.bind(agent=self._db.agent, schedule=name, message_id=waits_for)
        of_message.info("schedule skips a date: its last message is unfinished", date=iso(date))

    def _add(
        self,
        tx: StoreTransaction,
        schedule: ScheduledMessage,
        messages: list[OutgoingMessage],
        date: Millis,
    ) -> str:
        last = [self._outbox.add(tx, each) for each in messages][-1]
        schedules.note_sent(tx, schedule.name, len(messages), date, last)
        return last

    def _compose_of(self, schedule: ScheduledMessage, date: Millis, now: Millis) -> OutgoingMessage:
        """Return the message of one date, whose id a restored file finds again."""
        session, to, body, options = _parts(schedule, date)
        ids = self._outbox.composer.ids_at(date, now, "schedule", schedule.name)
        if ids is not None:
            options["ids"] = ids
        return self._outbox.compose(session, to, body, options)

    def check(self, schedule: ScheduledMessage, date: Millis) -> None:
        """Raise SendError if the message of a date could not be sent."""
        self._outbox.composer.check(*_parts(schedule, date))


def _parts(schedule: ScheduledMessage, date: Millis) -> tuple[str, str, Any, MessageOptions]:
    """Return session, recipient, body and options of the message of one date."""
    options: dict[str, Any] = json.loads(schedule.options)
    headers = {
        **(options.get("headers") or {}),
        "schedule": schedule.name,
        "scheduledat": iso(date),
    }
    named = MessageOptions(**{**options, "headers": headers})  # type: ignore[typeddict-item]
    return schedule.session, schedule.recipient, _body(schedule, date), named


def _body(schedule: ScheduledMessage, date: Millis) -> Any:
    if schedule.body is None:
        return Tick(schedule=schedule.name, at=date)
    if schedule.media == BYTES:
        return decode(None, json.loads(schedule.body), bytes)
    data = json.loads(schedule.body)
    if schedule.media is None or not schedule.media.startswith(VERSIONED):
        return data
    from onceward.message.versions import sent_again  # noqa: PLC0415 - rarely needed

    return sent_again(data, schedule.media)
