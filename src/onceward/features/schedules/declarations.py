"""
Withdraw the schedules that no opening of a file declares any longer.

Each opening of an agent with schedules notes them in their rows until it ends. A schedule without a
note of a living process is withdrawn by a process that handles the agent's messages: its own
handlers would turn the schedule's messages into dead letters. A schedule that another process still
declares is left to that process.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from functools import partial

from onceward.core.contract import Opening
from onceward.errors import OncewardError
from onceward.features.schedules import schedules
from onceward.features.schedules.schedules import Declared, ScheduledMessage
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.message.log import log


class Declarations:
    """
    The schedules that the code of one opening declares.

    *handles_all*: its handlers get every message, also those of schedules that it does not declare.
    """

    def __init__(self, db: Database, names: Collection[str], *, handles_all: bool) -> None:
        self._db, self.names, self._handles_all = db, names, handles_all
        self._owner = file_checks.owner_name()

    def begin_alone(self) -> None:
        """Forget the notes of earlier openings: no process has the file open."""
        if any(each.declared_by != "[]" for each in self._of_others()):
            self._db.write(schedules.leave_all)

    def join(self, *, engines: bool) -> None:
        """Note what this opening declares; with *engines*, withdraw what no opening declares."""
        if self.names:
            self._db.write(partial(schedules.join, names=self.names, owner=self._owner))
        if engines and self._handles_all:
            for each in self._of_others():
                self._withdraw(each)

    def leave(self) -> None:
        """Delete the notes of this opening; those of a file that fails are deleted later."""
        if self.names:
            with suppress(OncewardError):
                self._db.write(partial(schedules.leave, names=self.names, owner=self._owner))

    def leaves_to_others(self, seen: ScheduledMessage) -> bool:
        """Return whether this process sends no message of a schedule; withdraw it if none does."""
        if not self._handles_all or seen.origin != "declared" or seen.name in self.names:
            return False
        for each in self._of_others():
            if each.name == seen.name:
                self._withdraw(each)
        return True

    def _of_others(self) -> list[Declared]:
        return schedules.declared_elsewhere(self._db.read, self.names)

    def _withdraw(self, seen: Declared) -> None:
        if not all(map(file_checks.is_dead, json.loads(seen.declared_by))):
            return
        if self._db.write(partial(schedules.withdraw, seen=seen)):
            of_schedule = log.bind(agent=self._db.agent, schedule=seen.name)
            of_schedule.warning("schedule paused: the agent's code no longer declares it")


def of(opening: Opening) -> Declarations:
    """Return the declarations of an opening."""
    return opening.once(_made)


def _made(opening: Opening) -> Declarations:
    agent = opening.agent
    names = agent._schedules if agent else ()
    all_handled = agent is not None and agent.unhandled == "dead"
    has_handlers = agent is not None and bool(agent.handlers or agent.sessions)
    return Declarations(opening.deps.db, names, handles_all=all_handled and has_handlers)


def declare(opening: Opening) -> None:
    """Note what an opening declares, from the moment that it joins the others to its end."""
    declared = of(opening)
    opening.alone.append(declared.begin_alone)
    opening.joined.append(partial(declared.join, engines=opening.engines))
    opening.closing.callback(declared.leave)
