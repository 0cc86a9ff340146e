"""Operate the file of a postbox: check, repair, maintain and pause it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceward.api import features
from onceward.core.end import received
from onceward.core.maintenance import Maintenance
from onceward.file import identity
from onceward.file.database import Database
from onceward.file.environment import disabled_by_environment
from onceward.file.in_flight import has_died
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.arguments import checks_arguments
from onceward.message.events import Expired
from onceward.message.settings import Settings
from onceward.message.topics import check_pattern

if TYPE_CHECKING:
    from onceward.features.checks.health import Health
    from onceward.features.checks.invariants import Violation
    from onceward.features.checks.repairs import Repair

SLICE: Final = 500
"""Messages that one commit expires."""
EXPIRING: Final = [each.expire for each in features.UPKEEP if each.expire is not None]
"""Functions of features that end expired messages."""


@checks_arguments()
class AgentFile:
    """The file itself: its path, numbers, health, checks, repairs, maintenance and pause."""

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        hooks: Hooks,
        maintenance: Maintenance,
        offers: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._db, self._lease, self._hooks = db, settings.lease, hooks
        self._maintenance, self._offers = maintenance, offers

    def __repr__(self) -> str:
        """Name the file."""
        return f"<AgentFile {self._db.path}>"

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._db.path

    def check(self, *others: AgentFile) -> list[Violation]:
        """
        Return the invariants that do not hold; an empty list means none is violated.

        Looks at this file, and at the messages between it and *others*. The audit log gets a line
        for each message of this file whose stored body is damaged.
        """
        from onceward.features.checks import invariants  # noqa: PLC0415 - rarely needed

        # SQLite's check takes what an earlier one kept of the search index for damage
        self._db.readers.close_idle(0.0)
        found = invariants.check(self._db, features.rules())
        if audit := self._offers.get("audit_damage"):
            audit(found)
        pairs = [
            pair for other in others for pair in ((self._db, other._db), (other._db, self._db))
        ]
        return [
            *found,
            *(found for pair in pairs for found in invariants.check_pair(*pair)),
        ]

    def repair(self, *, dry_run: bool = False) -> list[Repair]:
        """
        Repair leases and positions that no process would repair, and return each change.

        Leases of ended processes end now, leases that end in a month or later end after one lease
        time, and positions past the last message move back to it. With *dry_run* nothing is
        changed.
        """
        from onceward.features.checks import repairs  # noqa: PLC0415 - rarely needed

        tables = features.repairs()
        lease_for, died = round(1000 * self._lease), partial(has_died, self._db.path)
        if dry_run:
            return repairs.find(self._db.read, self._db.now(), lease_for, died, tables)
        mended = self._db.write(lambda tx: repairs.mend(tx, lease_for, died, tables))
        self._db.notifier.notify("in")
        self._db.notifier.notify("out")
        return mended

    def stats(self) -> dict[str, int]:
        """Return current numbers, and totals that survive pruning."""
        from onceward.features.checks import health  # noqa: PLC0415 - rarely needed

        return health.stats(self._db)

    def health(self) -> Health:
        """Return the state of the file: sizes, lags, peers and pauses."""
        from onceward.features.checks import health  # noqa: PLC0415 - rarely needed

        count = self._offers.get("calls_left")
        return health.read_health(self._db, calls_left=0 if count is None else count(self._db))

    def expire(self, session: str | None = None) -> int:
        """
        End expired messages, in one session or in all.

        Returns their number; 0 while the file is paused.
        """
        total = 0
        while not disabled_by_environment() and not identity.is_paused(self._db.read):
            ended = self._db.write(lambda tx: self._expire(tx, session))
            total += ended
            if not ended:
                break
        if self._hooks.wanted(Expired):
            self._hooks.emit(
                [Expired(agent=self._db.agent, at=self._db.now(), session=session, count=total)]
            )
        return total

    def _expire(self, tx: StoreTransaction, session: str | None) -> int:
        ended = received.expire(tx, SLICE, session)
        if ended:
            tx.after_commit(lambda: self._db.notifier.notify("out"))
        if session is not None:
            return ended
        return ended + sum(expire(tx, SLICE) for expire in EXPIRING)

    def run_maintenance(self) -> int:
        """Run maintenance once; return the number of pruned rows."""
        with self._db.outside_handler():
            return self._maintenance.run_once()

    def pause(self, *, type: str | None = None) -> None:
        """
        Stop sending, pushing and handling in all processes, durably.

        With *type*, only stop calling handlers for that type or topic, or those that a pattern such
        as ``order.*`` matches. Nothing is lost, and no retry is counted; messages behind a paused
        one in its lane wait, too.

        Raises:
            InvalidArgument: *type* is not a type, topic or pattern.

        """
        if type is None:
            self._db.write(identity.pause)
        else:
            from onceward.core.rows import handler_limits  # noqa: PLC0415 - rarely needed

            name = check_pattern(type)
            self._db.write(lambda tx: handler_limits.pause(tx, name))
        self._db.notifier.notify("in")

    def resume(self, *, type: str | None = None) -> bool:
        """
        Continue after ``pause``; with *type* after a pause of the same type or pattern.

        Return whether it was paused.

        Raises:
            TakenOver: another machine has taken over the agent; this file is not used any more.

        """
        if type is None:
            paused = self._db.write(identity.resume)
        else:
            from onceward.core.rows import handler_limits  # noqa: PLC0415 - rarely needed

            paused = self._db.write(lambda tx: handler_limits.resume(tx, type))
        self._db.notifier.notify("out")
        self._db.notifier.notify("in")
        return paused
