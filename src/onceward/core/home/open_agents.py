"""Open the files of other agents of the home on first use, and keep them open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from onceward.file.database import Database
from onceward.message.settings import Settings

FileOf = Callable[[str], Path | None]
"""From an agent's name to its file, None where there is none."""


class OpenAgentFiles:
    """The files of other agents that one postbox has open."""

    def __init__(self, db: Database, settings: Settings, file_of: FileOf) -> None:
        self._db, self._settings, self._file_of = db, settings, file_of
        self._opened: dict[str, Database] = {}
        self._lock = Lock()

    def file(self, agent: str) -> Database | None:
        """Return the open file of an agent of the home, also our own; None where there is none."""
        if agent == self._db.agent:
            return self._db
        with self._lock:
            if agent not in self._opened:
                path = self._file_of(agent)
                if path is None:
                    return None
                wanted = Settings._inherit(busy_timeout=self._settings.busy_timeout)
                self._opened[agent] = Database.open(
                    path, agent=agent, settings=wanted, clock=self._db.clock, mode="existing"
                )
            return self._opened[agent]

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            opened, self._opened = self._opened, {}
        for db in opened.values():
            db.close()
