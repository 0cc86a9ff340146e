"""
Open the files of a home: its directory, and those of its other agents.

The directory is one small file that the agents share, made on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Final, NoReturn, TypeVar

import apsw

from onceward.errors import (
    SchemaMismatch,
    SchemaTooNew,
    StoreClosed,
)
from onceward.file import file_checks, migrations, open_files
from onceward.file.database import Database
from onceward.file.group_commit import ReplacedFileDetector
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Clock
from onceward.message.names import DIRECTORY
from onceward.message.settings import Settings

T = TypeVar("T")
FileOf = Callable[[str], Path | None]
"""From an agent's name to its file, None where there is none."""
AGENTS: Final = "agents"
VERSION: Final = 1
APPLICATION_ID: Final = 0x6F6E6469  # "ondi"
MARK: Final = "PRAGMA application_id"
TABLES: Final = "SELECT count(*) FROM sqlite_schema"
OPENED: Final = "SELECT version FROM meta"
INSERT: Final = "INSERT INTO meta (one, version, clock_at) VALUES (1, ?, ?)"
# The open barrier, as for an agent's file: one durable commit before acting on what was read.
BARRIER: Final = (
    "UPDATE meta SET opened = opened + 1, clock_at = max(clock_at, ?) RETURNING clock_at"
)
TICK: Final = "UPDATE meta SET clock_at = ? WHERE clock_at < ?"


def directory_path(file: Path) -> Path:
    """Return the path of a file's directory: in its home, or beside a file outside of any."""
    return (
        file.parent.parent / DIRECTORY if file.parent.name == AGENTS else file.with_name(DIRECTORY)
    )


class DirectoryDatabase(Database):
    """
    The file that the agents of a home share, open in this process.

    It differs from an agent's file in its schema, in having no owner and no
    settings, and in that a directory whose file was taken away or replaced is
    made or opened anew. Every change is one transaction, and constraints decide
    between processes. Work that is handed in touches nothing but the directory,
    and may run again if the file was taken away meanwhile.
    """

    application_id = APPLICATION_ID

    def apply_settings(self, settings: Settings, clock: Clock | None) -> None:
        """Change nothing: what the first user of the process set holds."""

    # -- opening ----------------------------------------------------------------------------

    def _open(self) -> apsw.Connection:
        """Open the file that has the name now, created anew where there is none."""
        file_checks.create_or_check(self.path, allow_network=self._settings.network_filesystem)
        self.guard = ReplacedFileDetector(self.path)
        con = super()._open()
        if self._openings > 1:
            self._register_again()
        return con

    def _register_again(self) -> None:
        key = file_checks.file_key(self.path)
        assert key is not None  # noqa: S101 - it is open
        open_files.enter((key, ""), self)

    def _refuse_unfit(self, tx: StoreTransaction) -> None:
        if tx.rows(MARK)[0][0] not in {0, APPLICATION_ID}:
            self._refuse()
        if not tx.rows(TABLES)[0][0]:
            return
        try:
            [(version,)] = tx.rows(OPENED)
        except apsw.SQLError:
            self._refuse()
        if version > VERSION:
            msg = (
                f"{self.path} has schema {version}, this version knows {VERSION}: upgrade onceward"
            )
            raise SchemaTooNew(msg)

    def _refuse(self) -> NoReturn:
        msg = f"{self.path} is no directory of a home: another file has its name; rename that"
        raise SchemaMismatch(msg)

    def _migrate(self, tx: StoreTransaction) -> None:
        if not tx.rows(TABLES)[0][0]:
            tx.rows((migrations.folder() / "directory.sql").read_text(encoding="utf-8"))
            tx.run(INSERT, (VERSION, tx.now))

    def _identify(self, tx: StoreTransaction) -> None:
        self.durability = "safe"
        [(clock_at,)] = tx.rows(BARRIER, (tx.now,))
        self.time.observe(clock_at)

    # -- using ------------------------------------------------------------------------------

    def on_begin(self, tx: StoreTransaction) -> None:
        """Store the time of the transaction, so that it never runs backwards."""
        tx.run(TICK, (tx.now, tx.now))

    def write(self, work: Callable[[StoreTransaction], T]) -> T:
        """
        Run *work* in a transaction, commit it and notify; inside another ``write`` it joins that.

        Raises:
            Busy: others held the file for the whole deadline; nothing was written.
            OutcomeUnknown: COMMIT raised; call again, every verb of the directory is idempotent.

        """
        found = super().write(work)
        if not self.writer.held:
            self.notifier.notify("out")
            self.notifier.notify("in")
        return found

    def read(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run a reading statement; inside a ``write`` of this thread, on that transaction."""
        self._follow_name()
        return super().read(sql, bindings)

    def look(self, work: Callable[[StoreTransaction], T]) -> T:
        """Run several reading statements on one snapshot."""
        self._follow_name()
        return self.snapshot(work)

    def _follow_name(self) -> None:
        if not self.writer.held and self.guard.replaced():
            self.write(lambda _: None)  # its commit notices, and opens what has the name now


class DirectoryHandle:
    """An agent's access to the directory of its home, which is opened on first use."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db, self._settings = db, settings
        self._lock = RLock()
        self._open: DirectoryDatabase | None = None
        self._closed = False

    @property
    def path(self) -> Path:
        """Path of the directory, which need not exist."""
        return directory_path(self._db.path)

    @property
    def known(self) -> bool:
        """Whether the directory exists; none is created."""
        return self._open is not None or self.path.exists()

    @property
    def directory(self) -> DirectoryDatabase:
        """The directory, opened or created on first use."""
        with self._lock:
            if self._closed:
                msg = "the postbox was closed: open it again"
                raise StoreClosed(msg)
            if self._open is None:
                self._open = DirectoryDatabase.open(
                    self.path, settings=self._settings, clock=self._db.clock
                )
            return self._open

    def close(self) -> None:
        """Close the directory, if it was opened."""
        with self._lock:
            opened, self._open, self._closed = self._open, None, True
        if opened is not None:
            opened.close()


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
