"""Manage the schedules of one file: messages that are sent repeatedly."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final, NamedTuple, Unpack

from onceward.core.contract import Opening
from onceward.core.send.add import Outbox
from onceward.errors import InvalidArgument
from onceward.features.schedules import declarations, schedules
from onceward.features.schedules.declarations import Declarations
from onceward.features.schedules.scheduler import Scheduler
from onceward.features.schedules.schedules import ScheduledMessage
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import checks_arguments
from onceward.message.body import encode
from onceward.message.clock import Millis
from onceward.message.dates import Rule, Schedule, check_policies, make_rule, schedule_name
from onceward.message.names import DEFAULT_SESSION, quoted, refuse_options
from onceward.message.options import ScheduleOptions
from onceward.message.times import Point, Span, point, seconds
from onceward.message.vocabulary import Missed, Overlap

NO_BODY: Final = object()
UNTYPED: Final = frozenset({"json", "text", "bytes"})
"""Types of bodies that have no class of their own."""
NO_SUCH: Final = "there is no schedule {}: list them with onceward schedules ls"


class Changes(NamedTuple):
    """The parts of a schedule that are given to change it."""

    cron: str | None
    every: Span | None
    timezone: str | None
    to: str | None
    body: object
    session: str | None
    missed: Missed | None
    overlap: Overlap | None
    options: ScheduleOptions

    def applied_to(self, known: ScheduledMessage, now: Millis) -> ScheduledMessage:
        """Return a schedule with these parts; its next date is that of its rule after now."""
        rule = self._rule(known)
        media, text, kept = _content(self.body, self.options)
        before, changed = json.loads(known.options), json.loads(kept)
        named = before.get("type") not in UNTYPED | {None} and self.options.get("type") is None
        if named and changed.get("type") in UNTYPED:
            del changed["type"]  # it is that of the new body's class, if it has one
        return known._replace(
            every=rule.every,
            cron=rule.cron,
            timezone=rule.timezone,
            missed=self.missed or known.missed,
            overlap=self.overlap or known.overlap,
            recipient=self.to or known.recipient,
            session=self.session or known.session,
            media=known.media if self.body is NO_BODY else media,
            body=known.body if self.body is NO_BODY else text,
            options=json.dumps(before | changed, sort_keys=True, ensure_ascii=False),
            next_at=rule.after(now, date=now),
            unsent=None,
            seen_at=now,
        )

    def _rule(self, known: ScheduledMessage) -> Rule:
        if self.cron is None and self.every is None:
            if self.timezone is None:
                return known.rule
            every = None if known.every is None else known.every / 1000
            return make_rule(every, known.cron, self.timezone)
        zone = known.timezone if self.timezone is None and self.every is None else self.timezone
        return make_rule(self.every, self.cron, zone)


@checks_arguments()
class Schedules:
    """
    Schedules of this file: each sends exactly one message for each of its dates.

    A date's message and the schedule's next date are one commit, by whichever process of the file
    is first. No message is sent while no process has the file open with engines, or while it is
    paused; *missed* decides what happens afterwards.
    """

    def __init__(self, db: Database, outbox: Outbox, declarations: Declarations) -> None:
        self._db, self._declarations = db, declarations
        self._scheduler = Scheduler(db, outbox, declarations)

    def add(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Span | None = None,
        timezone: str | None = None,
        to: str | None = None,
        body: object = NO_BODY,
        session: str | None = None,
        missed: Missed = "one",
        overlap: Overlap = "queue",
        start_at: Point | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """
        Send a message at the dates of *cron*, in *timezone* (UTC), or *every* span.

        It goes to this agent itself by default, and without a *body* it is a ``Tick``. Its headers
        ``schedule`` and ``scheduledat`` name the schedule and the date. Without *session* and
        ``ordering_key`` its messages have their own lane: other messages do not wait for them.
        *overlap* ``skip`` sends none while the last one is unfinished. The first date is
        *start_at*, or the next one by *cron*, or one interval from now. Adding the same schedule
        again changes nothing, and loses no missed date; another definition under its name replaces
        it, and a pause stays.

        Raises:
            InvalidArgument, InvalidMessage: the rule, name or message breaks its rules.
            UnknownRecipient: no agent is called *to*.

        """
        rule = make_rule(every, cron, timezone)
        check_policies(missed, overlap)
        now = self._db.clock.now()
        first = now if start_at is None else point("start_at", start_at)
        if session is None:
            options = _in_own_lane(schedule_name(name), options)
        media, text, kept = _content(body, options)
        made = ScheduledMessage(
            name=schedule_name(name),
            every=rule.every,
            cron=rule.cron,
            timezone=rule.timezone,
            missed=missed,
            overlap=overlap,
            recipient=self._db.agent if to is None else to,
            session=DEFAULT_SESSION if session is None else session,
            media=media,
            body=text,
            options=kept,
            origin="declared" if name in self._declarations.names else "added",
            next_at=rule.after(now if start_at is None else max(first - 1, now), date=first),
            unsent=None,
            seen_at=now,
        )
        self._scheduler.check(made, now)  # a message that cannot be sent is refused now
        return self._put(made, None if start_at is None else first)

    def edit(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Span | None = None,
        timezone: str | None = None,
        to: str | None = None,
        body: object = NO_BODY,
        session: str | None = None,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """
        Change parts of a schedule; what is not given stays, and so do sent dates and a pause.

        One that an agent's code declares is changed in the code; it can be paused here. With
        *cron* alone the time zone stays. A changed rule begins now.

        Raises:
            InvalidArgument, InvalidMessage: no schedule has this name, code declares it, or a part
                breaks its rules.
            UnknownRecipient: no agent is called *to*.

        """
        given = Changes(cron, every, timezone, to, body, session, missed, overlap, options)
        self._db.write(partial(self._edit, name=name, given=given))
        self._db.notifier.notify("out")
        [stored] = schedules.listed(self._db.read, name)
        return stored

    def _edit(self, tx: StoreTransaction, name: str, given: Changes) -> None:
        known = _named(tx, name)
        if known.origin != "added":
            msg = f"schedule {name} is declared by the agent's code: change it there, or pause it"
            raise InvalidArgument(msg)
        made = given.applied_to(known, self._db.clock.now())
        check_policies(made.missed, made.overlap)
        self._scheduler.check(made, made.seen_at)
        if not known.is_like(made):
            _put(tx, made=made, first=None)

    def list(self) -> list[Schedule]:
        """Return all schedules, by name."""
        return schedules.listed(self._db.read)

    def get(self, name: str) -> Schedule | None:
        """Return one schedule; None if none has this name."""
        return next(iter(schedules.listed(self._db.read, name)), None)

    def remove(self, name: str) -> bool:
        """Remove a schedule; messages that it sent stay. Return whether there was one."""
        return self._db.write(partial(schedules.remove, name=name))

    def pause(self, name: str) -> bool:
        """
        Send no messages of a schedule until it is resumed; return whether that is a change.

        It stays paused until ``resume``, even if the agent's code declares it.
        """
        return self._db.write(partial(schedules.pause, name=name))

    def resume(self, name: str) -> bool:
        """Continue with the next date after now; return whether that is a change."""
        changed = self._db.write(partial(schedules.resume, name=name, now=self._db.clock.now()))
        self._db.notifier.notify("out")
        return changed

    def run_now(self, name: str) -> str:
        """Send a schedule's message now, in addition to its dates; return its id."""
        return self._db.write(partial(self._run_now, name=name))

    def _run_now(self, tx: StoreTransaction, name: str) -> str:
        return self._scheduler.send_now(tx, _named(tx, name))

    def _put(self, made: ScheduledMessage, first: Millis | None) -> Schedule:
        """Store a schedule; one with the same name and definition is unchanged."""
        known = schedules.find(self._db.read, made.name)
        if not (known and known.is_like(made) and _keeps_date(known, made, first)):
            self._db.write(partial(_put, made=made, first=first))
            self._db.notifier.notify("out")
        [stored] = schedules.listed(self._db.read, made.name)
        return stored


def _named(tx: StoreTransaction, name: str) -> ScheduledMessage:
    """Return the schedule of a name; raise InvalidArgument if none has it."""
    found = schedules.find(tx.rows, name)
    if found is None:
        raise InvalidArgument(NO_SUCH.format(quoted(name)))
    return found


def _put(tx: StoreTransaction, *, made: ScheduledMessage, first: Millis | None) -> None:
    known = schedules.find(tx.rows, made.name)
    if known is None:
        made = made._replace(unsent=made.all_unsent(first))
    elif _keeps_date(known, made, first):
        gone = known.origin == "withdrawn"  # its dates meanwhile are those of a pause
        next_at = known.next_date(made.seen_at) if gone else known.next_at
        made = made._replace(next_at=next_at, unsent=known.unsent)
    schedules.put(tx, made)


def _keeps_date(known: ScheduledMessage, made: ScheduledMessage, first: Millis | None) -> bool:
    """Return whether the next date of a known schedule is a date of *made*, not before *first*."""
    if known.rule != made.rule:
        return False
    if first is None:
        return True
    date = known.next_at
    # After the clock was set back, a date after the first possible one is kept: the earlier ones
    # were sent.
    reached = date <= made.next_at or made.next_at <= (known.last_at or 0)
    return first <= date and reached and date == made.rule.until(date, date=first)


def _in_own_lane(name: str, options: ScheduleOptions) -> ScheduleOptions:
    """Return options with a separate lane, unless the caller set an ordering key."""
    if options.get("ordering_key") is not None:
        return options
    return {**options, "ordering_key": f"schedule.{name}"}


def _content(body: object, options: ScheduleOptions) -> tuple[str | None, str | None, str]:
    """Return media type and text of a body, and the options, in stored form."""
    unknown = options.keys() - ScheduleOptions.__annotations__.keys()
    if unknown:
        refuse_options("a schedule", unknown, ScheduleOptions.__annotations__)
    kept: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "ttl" in kept:
        kept["ttl"] = seconds("ttl", kept["ttl"])
    payload = None if body is NO_BODY else encode(body)
    if payload is not None:
        kept.setdefault("type", payload.type)
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False)
    return (None, None, text) if payload is None else (payload.media, payload.text, text)


def schedules_of(opening: Opening) -> Schedules:
    """Return the schedules of an opening."""
    deps = opening.deps
    return Schedules(deps.db, deps.outbox, declarations.of(opening))


def send_due(opening: Opening) -> None:
    """Send the due messages of an opening's schedules."""
    opening.once(schedules_of)._scheduler.run()
