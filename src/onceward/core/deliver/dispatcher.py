"""Find the peers to push to, and give each to a carrier."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from onceward.core.deliver.carriers import Carriers, Share
from onceward.core.deliver.delivery import Deliveries
from onceward.core.deliver.transport import Routes
from onceward.core.end import sent
from onceward.core.rows import outbox, peers, senders
from onceward.core.run import engine_loop as engine
from onceward.core.run.engine_loop import DeadOwnerReaper, EngineLoop, RuntimeDeps
from onceward.core.run.event_emitter import EventEmitter
from onceward.core.run.threads import engine_threads
from onceward.errors import OncewardError
from onceward.file import file_checks, foreign_library, forks
from onceward.file.connection import raise_meant
from onceward.file.environment import SWITCH, VARIABLES, disabled_by_environment
from onceward.file.notify import Notifier, Owed
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis, monotonic
from onceward.message.log import log
from onceward.message.vocabulary import Reason

WAKE_ROWS: Final = 1000
"""Maximum rows that one commit makes ready or gives up."""
# When a row will be due, and the peers with messages, an unsettled parcel, receipts or a greeting
# that neither back off nor are leased.
# The end of a backoff stays stored where nothing is left to push; a past one does not matter.
# The moments of features stand last; they see :now, the file's time, and :wall, the wall clock's.
AGENDA: Final = """
WITH RECURSIVE next(name) AS (
    SELECT min(recipient)
      FROM _onceward_outbox
     WHERE state = 'pending' AND due_at IS NULL AND held_by IS NULL
    UNION ALL
    SELECT (SELECT min(recipient)
              FROM _onceward_outbox
             WHERE state = 'pending'
               AND due_at IS NULL
               AND held_by IS NULL
               AND recipient > next.name)
      FROM next WHERE next.name IS NOT NULL
), found(name) AS (
    SELECT name FROM next WHERE name IS NOT NULL
    UNION SELECT peer FROM _onceward_receipts
    UNION SELECT name FROM _onceward_peers WHERE in_flight_seqs IS NOT NULL OR greeting IS NOT NULL
), callers(name, share) AS (
    SELECT f.name,
           CASE WHEN p.failures > 0 THEN 'failing' WHEN p.seen_at IS NULL THEN 'new'
                ELSE 'known' END
      FROM found AS f LEFT JOIN _onceward_peers AS p ON p.name = f.name
     WHERE coalesce(max(p.due_at, p.lease_at), p.due_at, p.lease_at, 0) <= :now
       AND coalesce(substr(p.url, 1, instr(p.url, ':') - 1), '') NOT IN
           (SELECT value FROM json_each(:elsewhere))
       AND ':' || f.name NOT IN (SELECT value FROM json_each(:elsewhere))
     ORDER BY coalesce(p.due_at, 0), f.name
)
SELECT i.paused_at, i.clock_at,
       {due},
       (SELECT json_group_object(name, share) FROM callers),
       (SELECT min(due_at) FROM _onceward_outbox WHERE due_at IS NOT NULL),
       (SELECT min(expires_at)
          FROM _onceward_outbox
         WHERE expires_at IS NOT NULL AND state = 'pending' AND sent_at IS NULL),
       (SELECT min(coalesce(max(due_at, lease_at), due_at, lease_at)) FROM _onceward_peers
         WHERE coalesce(max(due_at, lease_at), due_at, lease_at) > :now){moments}
  FROM _onceward_file_info AS i"""
NOTHING_DUE: Final = "0"


class DueWork(NamedTuple):
    """A feature's work at moments that it stores in the file."""

    now: str
    """SQL: whether work is due at :now, the file's time, and :wall, the wall clock's."""
    run: Callable[..., None]
    """Does it, for an opening."""
    at: str | None = None
    """SQL: the next moment, in the file's time."""


@cache
def _agenda_of(now: tuple[str, ...], at: tuple[str, ...]) -> str:
    """Return the statement that reads the due work of a file, with that of features."""
    due = "\n       OR ".join(now) or NOTHING_DUE
    return AGENDA.format(due=due, moments="".join(f",\n       {each}" for each in at))


def _leave_owed(_owed: Owed, _stopping: Event) -> int:
    """Collect nothing."""
    return 0


class _Agenda(NamedTuple):
    """The due work in the file."""

    paused: bool
    """Whether a pause or the environment forbids any attempt."""
    tasks: bool
    """Whether work of features is due."""
    callers: dict[str, Share]
    """Peers to push to now, by name, longest due first."""
    due: bool
    """Whether rows must be woken or become dead letters."""
    next_at: Millis | None
    """When the next row is due."""
    index_is_damaged: bool = False
    """Whether due rows could not be moved."""


class Dispatcher:
    """
    Pushes parcels to peers, several peers at a time, one parcel per peer.

    It leases the peer, not its rows, so lanes stay in order without another rule.
    """

    def __init__(
        self,
        deps: RuntimeDeps,
        *,
        routes: Routes,
        due: Sequence[DueWork] = (),
        collect: Callable[[Owed, Event], int] = _leave_owed,
    ) -> None:
        self._db, self._settings = deps.db, deps.settings
        self._routes, self._background_tasks = routes, tuple(each.run for each in due)
        moments = tuple(each.at for each in due if each.at is not None)
        self._agenda_sql = _agenda_of(tuple(each.now for each in due), moments)
        self._policy = deps.settings.delivery_policy
        self._collect_one, self._collecting, self._noticed = collect, forks.new_lock(), -1
        self._left: set[str] = set()
        """Peers whose files another library uses in this process."""
        self._waiting: dict[str, float] = {}
        """Those that have something to collect, since when; inf once the file says so."""
        self._emitter = EventEmitter(deps.hooks, deps.db.agent)
        reaper = DeadOwnerReaper(deps.db, owners=peers.owners, free=peers.end_dead_owner)
        self._loop = EngineLoop(deps.db, "dispatcher", self._dispatch_due, reaper=reaper)
        self._deliveries = Deliveries(
            deps, routes, policy=self._policy, stopping=self._loop.stopping, wake=self._notify
        )
        self._watch_loop = EngineLoop(deps.db, "push-watch", self._deliveries.give_up_late)

    @property
    def owner(self) -> str:
        """The name under which it leases peers."""
        return self._deliveries.owner

    @property
    def started(self) -> bool:
        """Whether it pushes in the background, where its tasks must be brief."""
        return self._loop.started

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start pushing in the background."""
        self._deliveries.push_by(Carriers(self._settings.tuning.carriers, self._deliveries.carry))
        self._loop.start("out", poll=self._settings.tuning.poll_interval)
        self._watch_loop.start(delay=self._deliveries.give_up_late())

    def stop(self, timeout: float) -> None:
        """
        Start no new push; wait up to *timeout* seconds until the running ones are settled.

        The peers of those that take longer are given back: their parcels are pushed again.
        """
        self._deliveries.stop_packing()
        self._loop.stopping.set()
        self._db.writer.queue.hurry()
        deadline = monotonic() + timeout
        self._loop.stop(timeout)
        self._watch_loop.stop(max(0.0, deadline - monotonic()))
        self._deliveries.stop(deadline)

    def push_owed(self, timeout: float) -> None:
        """Wait up to *timeout* seconds until the receipts that can be pushed are pushed."""
        deadline = monotonic() + timeout
        if foreign_library.theirs and self._loop.started:
            with suppress(OncewardError):
                self._reachable(self._agenda().callers)
        while self._loop.started and self._owes() and monotonic() < deadline:
            self._db.writer.queue.hurry()
            self._notify()
            self._deliveries.wait_for_a_change()

    def _owes(self) -> bool:
        try:
            if self._loop.stopping.is_set() or self._agenda().paused:
                return False
            elsewhere = json.dumps(
                [*self._routes.elsewhere(), *(f":{name}" for name in self._left)]
            )
            return senders.any_receipts_due(self._db.read, self._db.now(), elsewhere)
        except OncewardError:
            return False

    def _notify(self) -> None:
        self._loop.notify()

    # -- giving peers to carriers -----------------------------------------------------------

    def _dispatch_due(self) -> float | None:
        """Give every peer that has messages to a carrier; return the seconds until more is due."""
        if self._noticed != self._db.notifier.remote_out:
            self._noticed = self._db.notifier.remote_out
            self._begin_collecting()
        agenda = self._plan()
        callers = self._reachable(agenda.callers) if foreign_library.theirs else agenda.callers
        for name, share in callers.items():
            self._deliveries.begin(name, share)
        return self._idle_for(agenda)

    # -- peers whose files this process must not open --------------------------------------------

    def _reachable(self, callers: dict[str, Share]) -> dict[str, Share]:
        """Return the peers to push to; ask the processes of the others to collect."""
        left = {name: path for name in callers if (path := self._routes.left(name)) is not None}
        for path in left.values():
            Notifier(path).ask_to_collect(self._db.path, self._db.agent)
        self._left |= left.keys()
        self._tell_left(left)
        return {name: share for name, share in callers.items() if name not in left}

    def _tell_left(self, left: dict[str, Path]) -> None:
        """Store why a peer waits, once it has waited for a while: nothing has collected."""
        now, before = monotonic(), self._waiting
        self._waiting = {name: before.get(name, now) for name in left}
        for name, path in left.items():
            if now - self._waiting[name] >= engine.MAX_IDLE_SECONDS:
                why, self._waiting[name] = file_checks.LEFT.format(path), math.inf
                self._db.write(partial(peers.note_left, name=name, error=why))

    def _begin_collecting(self) -> None:
        """Collect on a thread of its own, because another agent's file may be busy."""
        if not self._collecting.locked() and self._db.notifier.to_collect():
            with suppress(RuntimeError):  # the system starts no thread: the next notice tries again
                engine_threads().run("onceward-collector", self._collect_beside)

    def _collect_beside(self) -> None:
        self.collect()

    def collect(self) -> int:
        """Deliver to this agent what others have for it and may not deliver; return how many."""
        if not self._collecting.acquire(blocking=False):
            return 0
        count = 0
        try:
            tried = set[Owed]()
            while fresh := set(self._db.notifier.to_collect()) - tried:
                tried |= fresh
                for owed in fresh:
                    try:
                        count += self._collect_one(owed, self._loop.stopping)
                    except OncewardError as error:  # its agent asks again
                        log.failure("warning", "nothing collected", error, agent=self._db.agent)
        finally:
            self._collecting.release()
        return count

    def run_due(self) -> int:
        """
        Push all due parcels on this thread; return how many arrived.

        An error at one peer is stored with that peer. If the file cannot store it, it is raised.
        """
        callers = self._plan().callers
        if foreign_library.theirs:
            callers = self._reachable(callers)
        return sum(map(self._deliveries.deliver, callers))

    # -- looking ----------------------------------------------------------------------------

    def _agenda(self) -> _Agenda:
        now = self._db.now()
        elsewhere, wall = json.dumps(self._routes.elsewhere()), self._db.time.wall
        bindings = {"now": now, "elsewhere": elsewhere, "wall": wall}
        [(paused_at, clock_at, tasks, callers, *moments)] = self._db.read(
            self._agenda_sql, bindings
        )
        self._db.time.observe_remote(clock_at)
        disabled = SWITCH in VARIABLES and disabled_by_environment()
        paused = disabled or paused_at is not None
        due, next_at = False, None
        try:
            for at in moments:
                if at is not None and at <= now:
                    due = True
                elif at is not None and (next_at is None or at < next_at):
                    next_at = at
        except TypeError as error:
            raise_meant(self._db.explain(error), error)
            raise
        return _Agenda(
            paused=paused,
            tasks=bool(tasks),
            callers={} if paused else json.loads(callers),
            due=due and not paused,
            next_at=next_at,
        )

    def _plan(self) -> _Agenda:
        """Wake due rows; return the remaining work."""
        self._deliveries.release_left()
        agenda = self._agenda()
        if agenda.paused or not (agenda.tasks or agenda.due):
            return agenda
        if agenda.tasks:
            self._run_tasks()
        stuck = agenda.due and not self._db.write(self._wake)
        return self._agenda()._replace(index_is_damaged=stuck)

    def _run_tasks(self) -> None:
        """Do the background tasks; an error, such as of the directory, delays no message."""
        for run in self._background_tasks:
            try:
                run()
            except OncewardError as error:
                log.failure("warning", "background tasks wait", error, agent=self._db.agent)

    def _wake(self, tx: StoreTransaction) -> int:
        """Make ready or give up the oldest due rows; return their number."""
        outbox.unblock_lanes(tx)
        count, unanswered = sent.requeue_due(tx, WAKE_ROWS, self._policy.exhausted)
        expired = outbox.expired(tx, WAKE_ROWS)
        over: tuple[tuple[list[int], Reason, str], ...] = (
            (expired, "expired", ""),
            (unanswered, "attempts_spent", "stored, but never processed"),
        )
        for seqs, reason, error in over:
            if seqs:
                moved = sent.bury(tx, seqs, reason=reason, error=error)
                self._emitter.dead_lettered(tx, [(i, peer, reason) for i, peer in moved])
                count += len(moved)
        return count

    def _idle_for(self, agenda: _Agenda) -> float | None:
        """Return the seconds until more is due; None: not before a notification."""
        if agenda.paused or agenda.index_is_damaged:
            return engine.MAX_IDLE_SECONDS
        if agenda.due:  # more rows than one commit takes, or due since the others were woken
            return 0.0
        if agenda.callers:  # a carrier notifies the loop when it ends
            return engine.MAX_IDLE_SECONDS
        wait = None
        if agenda.next_at is not None:
            wait = max(0.001, (agenda.next_at - self._db.now()) / 1000)
        if agenda.tasks:  # the directory sends no notifications, so its tasks are polled
            return min(engine.MAX_IDLE_SECONDS, wait or engine.MAX_IDLE_SECONDS)
        return wait
