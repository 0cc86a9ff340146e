"""The directory of a home: one small file that its agents share, opened by the first verb that needs it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeVar

from onceward.db import file_checks, migrations, open_files
from onceward.db.connection import BusyHandler, check_version, connect, enable_wal, translate_error
from onceward.db.database import Database
from onceward.db.notify import Notifier
from onceward.db.transaction import StoreTransaction
from onceward.errors import ForkedProcess, OutcomeUnknown, SchemaMismatch, SchemaTooNew, StoreClosed
from onceward.model.clock import Clock, Millis
from onceward.model.settings import Settings

T = TypeVar("T")
FILE: Final = "directory.db"
AGENTS: Final = "agents"
VERSION: Final = 1
APPLICATION_ID: Final = 0x6F6E6469  # "ondi"
CHECKPOINT_PAGES: Final = 1000
TABLES: Final = "SELECT count(*) FROM sqlite_schema"
OPENED: Final = "SELECT version FROM meta"
INSERT: Final = "INSERT INTO meta (one, version, clock_at) VALUES (1, ?, ?)"
# The open barrier, as for an agent's file: a durable commit before anything that was read is acted upon.
BARRIER: Final = (
    "UPDATE meta SET opened = opened + 1, clock_at = max(clock_at, ?) RETURNING clock_at"
)
TICK: Final = "UPDATE meta SET clock_at = ? WHERE clock_at < ?"
DATA_VERSION: Final = "PRAGMA data_version"
REGISTER: Final = "INSERT INTO agents (name, joined_at) VALUES (?, ?) ON CONFLICT DO NOTHING"
REGISTERED: Final = "SELECT name FROM agents ORDER BY name"
IS_REGISTERED: Final = "SELECT 1 FROM agents WHERE name = ?"


def directory_path(file: Path) -> Path:
    """Return where the directory of an agent's file lies: in its home, or beside the file where that lies in none."""
    return file.parent.parent / FILE if file.parent.name == AGENTS else file.with_name(FILE)


class DirectoryDatabase:
    """
    The file that the agents of a home share, open in this process; all who open it share one connection.

    Every change is one transaction, and constraints decide between processes.
    Work that is handed in touches nothing but the directory, and may run
    again if the file was taken away meanwhile.
    """

    def __init__(self, path: Path, *, settings: Settings, clock: Clock) -> None:
        self.path, self._settings, self._clock = path, settings, clock
        self._floor, self._changes, self.users = 0, 0, 0
        self._pid = os.getpid()
        self._lock = RLock()
        self._busy_handler = BusyHandler()
        self._con: Any = None
        self._tx: StoreTransaction | None = None
        with self._lock:
            self._open()
        self.notifier = Notifier(path)
        """Rings whenever the directory changed."""

    @classmethod
    def open(cls, path: Path, *, settings: Settings, clock: Clock) -> DirectoryDatabase:
        """
        Open (create) the file and pass the open barrier.

        Raises:
            StoreUnusable, StoreCorrupt, Busy: see each class; nothing was changed.

        """
        check_version()
        real = file_checks.canonical(path)
        with open_files.lock:
            key = file_checks.file_key(real)
            found: DirectoryDatabase | None = (
                None if key is None else open_files.files.get((key, FILE))
            )
            if found is None:
                found = cls(real, settings=settings, clock=clock)
                found._register()
            found.users += 1
            return found

    def _register(self) -> None:
        key = file_checks.file_key(self.path)
        assert key is not None  # noqa: S101 - it is open
        open_files.files[(key, FILE)] = self

    # -- opening ----------------------------------------------------------------------------

    def _open(self) -> None:
        if file_checks.file_key(self.path) in open_files.inherited:
            msg = f"{self.path} was open when this process forked: start children by spawn, or fork before opening"
            raise ForkedProcess(msg)
        file_checks.create_or_check(self.path, allow_network=self._settings.network_filesystem)
        file_checks.refuse_foreign(self.path)
        self._busy_handler.deadline = time.monotonic() + self._settings.busy_timeout
        con = connect(self.path, patience=self._busy_handler)
        try:
            if con.pragma("application_id") not in {0, APPLICATION_ID}:
                self._refuse()
            enable_wal(
                con, full=True, checkpoint_pages=CHECKPOINT_PAGES, patience=self._busy_handler
            )
            self._con = con
            self._run(self._enter)
            con.pragma("application_id", APPLICATION_ID)
        except BaseException as error:
            self._con = None
            con.close(force=True)
            raise translate_error(error, self.path) from error
        self._watch = file_checks.ReplacedFileDetector(self.path)

    def _refuse(self) -> None:
        msg = f"{self.path} is no directory of a home: another file has its name; rename that"
        raise SchemaMismatch(msg)

    def _enter(self, tx: StoreTransaction) -> None:
        if not tx.rows(TABLES)[0][0]:
            tx.rows((migrations.folder() / "directory.sql").read_text(encoding="utf-8"))
            tx.run(INSERT, (VERSION, tx.now))
        try:
            [(version,)] = tx.rows(OPENED)
        except Exception:  # noqa: BLE001 - whatever SQLite says, it has no such table
            self._refuse()
        if version > VERSION:
            msg = (
                f"{self.path} has schema {version}, this version knows {VERSION}: upgrade onceward"
            )
            raise SchemaTooNew(msg)
        [(self._floor,)] = tx.rows(BARRIER, (tx.now,))

    # -- using ------------------------------------------------------------------------------

    def now(self) -> Millis:
        """Return the directory's time, which never runs backwards."""
        self._floor = max(self._floor, self._clock.now())
        return self._floor

    def write(self, work: Callable[[StoreTransaction], T]) -> T:
        """
        Run *work* in a transaction and commit it; inside another ``write`` of this thread it joins that.

        Raises:
            Busy: others held the file for the whole deadline; nothing was written.
            OutcomeUnknown: COMMIT raised; call again, every verb of the directory may be repeated.

        """
        with self._lock:
            if self._tx is not None:
                return work(self._tx)
            self._alive()
            found = self._run(work)
            if self._watch.replaced():  # the commit reached a file that nobody will find
                self._reopen()
                found = self._run(work)
            self._changes += 1
        self.notifier.notify("out")
        self.notifier.notify("in")
        return found

    def _run(self, work: Callable[[StoreTransaction], T]) -> T:
        self._busy_handler.deadline = time.monotonic() + self._settings.busy_timeout
        try:
            self._con.execute("BEGIN IMMEDIATE")
            tx = self._tx = StoreTransaction(self._con, self.now())
            found = work(tx)
            if self._floor:
                tx.run(TICK, (tx.now, tx.now))
        except BaseException as error:
            if self._con.in_transaction:
                self._con.execute("ROLLBACK")
            raise translate_error(error, self.path) from error
        finally:
            self._tx = None
        self._commit()
        for effect in tx.effects:
            effect()
        return found

    def _commit(self) -> None:
        try:
            self._con.execute("COMMIT")
        except BaseException as error:
            if self._con.in_transaction:
                self._con.execute("ROLLBACK")
                raise translate_error(error, self.path) from error
            msg = f"COMMIT on {self.path}: {error}; call again, it changes nothing twice"
            raise OutcomeUnknown(msg) from error

    def read(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run a reading statement; inside a ``write`` of this thread, on that transaction."""
        with self._lock:
            self._alive()
            if self._tx is None and self._watch.replaced():
                self._reopen()
            self._busy_handler.deadline = time.monotonic() + self._settings.busy_timeout
            try:
                found: list[tuple[Any, ...]] = self._con.execute(sql, bindings).fetchall()
            except Exception as error:
                raise translate_error(error, self.path) from error
        return found

    def look(self, work: Callable[[StoreTransaction], T]) -> T:
        """Run several reading statements on one snapshot."""
        with self._lock:
            self.read("BEGIN")
            try:
                return work(StoreTransaction(self._con, self.now()))
            finally:
                self._con.execute("ROLLBACK")

    def version(self) -> int:
        """Return a number that changes whenever anybody changed the directory, this process included."""
        with self._lock:
            return (self._changes << 40) + int(self.read(DATA_VERSION)[0][0])

    def _alive(self) -> None:
        if os.getpid() != self._pid:
            msg = f"{self.path} was open when this process forked: start children by spawn, or fork before opening"
            raise ForkedProcess(msg)
        if self._con is None:
            msg = f"the directory {self.path} was closed: open the postbox again"
            raise StoreClosed(msg)

    def _reopen(self) -> None:
        with open_files.lock:
            self._forget()
            self._con.close(force=True)
            self._changes += 1
            self._open()
            self._register()

    def _forget(self) -> None:
        for key in [key for key, known in open_files.files.items() if known is self]:
            del open_files.files[key]

    def close(self) -> None:
        """Give the directory back; the last user closes it. Safe in a forked child."""
        if os.getpid() != self._pid:
            return
        with open_files.lock:
            self.users -= 1
            if self.users != 0:
                return
            self._forget()
        with self._lock, suppress(Exception):
            self.notifier.close()
            con, self._con = self._con, None
            con.close(force=True)

    def connections(self) -> tuple[Any, ...]:
        """Return the handles that a forked child must leave alone."""
        return (self._con,)


class DirectoryHandle:
    """The way from an agent's file to the directory of its home, which is opened on first use."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db, self._settings = db, settings
        self._lock = RLock()
        self._open: DirectoryDatabase | None = None
        self._closed = False

    @property
    def path(self) -> Path:
        """Where the directory is, or would be."""
        return directory_path(self._db.path)

    @property
    def known(self) -> bool:
        """Whether there is a directory; asking creates none."""
        return self._open is not None or self.path.exists()

    @property
    def directory(self) -> DirectoryDatabase:
        """The directory, opened (created) by the first who asks; its agent is enrolled in it."""
        with self._lock:
            if self._closed:
                msg = "the postbox was closed: open it again"
                raise StoreClosed(msg)
            if self._open is None:
                opened = DirectoryDatabase.open(
                    self.path, settings=self._settings, clock=self._db.clock
                )
                try:
                    register(opened, self._db.agent)
                except BaseException:
                    opened.close()
                    raise
                self._open = opened
            return self._open

    def close(self) -> None:
        """Give the directory back, if it was opened."""
        with self._lock:
            opened, self._open, self._closed = self._open, None, True
        if opened is not None:
            opened.close()


def register(directory: DirectoryDatabase, name: str) -> bool:
    """Note an agent as one of the home; say whether it was new."""
    if directory.read(IS_REGISTERED, (name,)):
        return (
            False  # the usual case, without a commit; who is new is decided by the statement below
        )
    return directory.write(lambda tx: tx.run(REGISTER, (name, tx.now))) > 0


def is_registered(directory: DirectoryDatabase) -> list[str]:
    """Return all agents of the home by name."""
    return [str(name) for (name,) in directory.read(REGISTERED)]
