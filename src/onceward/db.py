"""One agent's file, open in this process: shared by all who open it, one writer, one reader."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Final, Self, TypeVar

import apsw

from onceward import guard, migrate
from onceward.clock import Clock, Millis, SystemClock
from onceward.connect import Patience, check_version, connect, harden, mapped
from onceward.errors import ForkedProcess, StoreClosed, StoreCorrupt, StoreFault, StoreUnusable, WrongAgent
from onceward.ids import new_token
from onceward.names import agent_name
from onceward.parcel import Durability
from onceward.settings import Settings
from onceward.tx import Tx
from onceward.wake import Bell
from onceward.writer import Writer

T = TypeVar("T")
APPLICATION_ID: Final = 0x6F6E6365  # "once"

IDENTITY: Final = "SELECT agent, file_id, durability, boot_id FROM identity"
BORN: Final = """
INSERT INTO identity (one, agent, file_id, durability, max_pending, clock_at, opened_at, created_at)
VALUES (1, ?1, ?2, ?3, ?4, ?5, ?5, ?5)
"""
# The open barrier: one durable commit before anything that was read is acted upon.
BARRIER: Final = """
UPDATE identity
   SET opened = opened + 1, opened_at = ?1, clock_at = max(clock_at, ?1), boot_id = ?2, durability = ?3,
       max_pending = coalesce(?4, max_pending)
RETURNING clock_at
"""
# A 'fast' file that lived through a reboot may have lost its tail: what it sent since is to be judged by id.
RENEW_ALL: Final = """
UPDATE peers
   SET epoch = lower(hex(randomblob(16))), generation = generation + 1, number = 0, last_id = '', parcel = NULL,
       again_seq = coalesce((SELECT max(seq) FROM outbox), 0)
"""
LIMIT: Final = "UPDATE identity SET max_pending = ?"
LEVEL: Final = "UPDATE identity SET durability = ?"
TICK: Final = "UPDATE identity SET clock_at = max(clock_at, ?)"

_registry: dict[tuple[guard.FileKey, str], Database] = {}
_registry_lock = RLock()
_inherited: set[guard.FileKey] = set()
"""Files that were open when this process was forked off: SQLite here believes to hold locks on them that it has not."""


class Database:
    """
    One agent's SQLite file with its writer and its reader.

    Opening a file that this process has open already returns the same object:
    all its users share one writer, and so one commit.
    """

    def __init__(self, path: Path, *, agent: str | None, settings: Settings, clock: Clock, vfs: str | None) -> None:
        self.path, self.clock, self._vfs = path, clock, vfs
        self._settings, self._wanted = settings, agent
        self._pid, self._floor, self._users = os.getpid(), 0, 0
        self.committing = False
        self.agent, self.file_id = agent or "", ""
        self.durability: Durability = settings.durability
        self._patience = Patience(random.Random())  # noqa: S311 - jitter, not a secret
        self._read_patience = Patience(random.Random())  # noqa: S311
        self._reading = Lock()
        self._con: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._writer = Writer(self, settings.busy_timeout)
        self._open()
        self.bell = Bell(self.path)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        agent: str | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        vfs: str | None = None,
        create: bool = True,
    ) -> Self:
        """
        Open (create, migrate) the file and pass the open barrier.

        Without *agent* the file must exist and says itself whose it is, and its
        own durability holds.

        Raises:
            StoreUnusable: see its subclasses; nothing was changed.
            StoreCorrupt: the file is damaged or no database; it was left as it is.
            Busy: another process held the file for the whole deadline.

        """
        check_version()
        if agent is not None:
            agent_name(agent)
        real = guard.canonical(path)
        chosen = settings or Settings()
        with _registry_lock:
            key = guard.file_key(real)
            if key is None and not create:
                msg = f"no file {real}: its agent has not been created"
                raise StoreUnusable(msg)
            found = None if key is None else _registry.get((key, vfs or ""))
            if found is None:
                found = cls._first(real, agent, chosen, clock or SystemClock(), vfs)
            else:
                found._refuse_other(agent)
                found._adopt(chosen, clock)
            found._users += 1
            return found  # type: ignore[return-value]  # the registry holds what cls made

    @classmethod
    def _first(cls, real: Path, agent: str | None, settings: Settings, clock: Clock, vfs: str | None) -> Database:
        if guard.file_key(real) in _inherited:
            msg = f"{real} was open when this process forked: start children by spawn, or fork before opening"
            raise ForkedProcess(msg)
        guard.prepare(real, allow_network=settings.network_filesystem)
        if not any(_lies_at(con, real) for con in apsw.connections()):
            guard.refuse_foreign(real)
        made = cls(real, agent=agent, settings=settings, clock=clock, vfs=vfs)
        key = guard.file_key(real)
        assert key is not None  # noqa: S101 - it is open
        _registry[(key, vfs or "")] = made
        return made

    def _adopt(self, settings: Settings, clock: Clock | None) -> None:
        """Let a second opener's explicit settings hold: the first may have been a neighbour that only delivered."""
        given = settings.model_fields_set
        if clock is not None:
            self.clock = clock
        if "busy_timeout" in given:
            self._writer.be_patient(settings.busy_timeout)
        if "max_pending" in given:
            self.write(lambda tx: tx.run(LIMIT, (settings.max_pending,)))
        if "durability" in given and settings.durability != self.durability:
            self.durability = settings.durability
            self.write(lambda tx: tx.run(LEVEL, (settings.durability,)))
            with self._writer.exclusive() as handle:
                handle.execute(f"PRAGMA synchronous = {'full' if self.durability == 'safe' else 'normal'}")

    # -- opening ----------------------------------------------------------------------------

    def _open(self) -> None:
        deadline = time.monotonic() + self._settings.busy_timeout
        try:
            self._con = self._connected(deadline)
            self._harden(self._con)
            self._prepare(self._con)
            self._reader = connect(self.path, vfs=self._vfs)
            self._reader.set_busy_handler(self._read_patience)
            self._reader.execute("PRAGMA query_only = ON")
        except BaseException as error:
            self._drop()
            raise mapped(error, self.path) from error
        # Only the writer commits: a COMMIT that hides in a user's statement is refused and undone.
        self._con.set_commit_hook(lambda: not self.committing)
        self._con.set_rollback_hook(self._writer.rolled_back)
        self._watch = guard.Watch(self.path)

    def _connected(self, deadline: float) -> apsw.Connection:
        con = connect(self.path, vfs=self._vfs)
        self._patience.deadline = deadline
        con.set_busy_handler(self._patience)
        try:
            self._look_first(con)
        except BaseException:
            con.close()
            raise
        return con

    def _look_first(self, con: apsw.Connection) -> None:
        """Refuse what must be refused before anything of the file is changed."""
        tx = Tx(con, self.clock.now())
        con.execute("BEGIN")
        try:
            known = {name for (name,) in tx.rows(migrate.TABLES)}
            migrate.pending(tx)
            owner = tx.rows(IDENTITY) if "identity" in known and "schema_migrations" in known else []
        finally:
            con.execute("ROLLBACK")
        if owner and self._wanted is not None and owner[0][0] != self._wanted:
            self._refuse_owner(owner[0][0])
        if not owner and self._wanted is None:
            msg = f"{self.path} is no agent's file yet: open it with agent=NAME first"
            raise StoreUnusable(msg)

    def _refuse_owner(self, owner: str) -> None:
        msg = f"{self.path} belongs to agent {owner!r}, not {self._wanted!r}: open it under its own name"
        raise WrongAgent(msg)

    def _harden(self, con: apsw.Connection) -> None:
        if con.pragma("page_count") == 0:
            con.pragma("auto_vacuum", 2)
            con.pragma("application_id", APPLICATION_ID)
        harden(con, full=True, checkpoint_pages=self._settings.checkpoint_pages)

    def _prepare(self, con: apsw.Connection) -> None:
        con.execute("BEGIN IMMEDIATE")
        try:
            tx = Tx(con, self.clock.now())
            for step in migrate.pending(tx):
                migrate.apply(tx, step, tx.now)
            self._identify(tx)
            con.execute("COMMIT")
        except BaseException:
            if con.in_transaction:
                con.execute("ROLLBACK")
            raise
        if self.durability == "fast":
            con.pragma("synchronous", "normal")

    def _identify(self, tx: Tx) -> None:
        found = tx.rows(IDENTITY)
        if not found:
            self._born(tx)
            found = tx.rows(IDENTITY)
        [(self.agent, file_id, stored, boot)] = found
        if self._wanted is not None and self.agent != self._wanted:
            self._refuse_owner(self.agent)
        if self.file_id not in {"", file_id}:
            msg = f"{self.path} was replaced by another file while it was open: close, look, and open again"
            raise StoreCorrupt(msg)
        self.file_id = file_id
        if self._wanted is None or "durability" not in self._settings.model_fields_set:
            self.durability = stored
        now_boot = guard.boot_id()
        if stored == "fast" and boot not in {"", now_boot}:
            tx.run(RENEW_ALL)
        limit = self._settings.max_pending if "max_pending" in self._settings.model_fields_set else None
        [(self._floor,)] = tx.rows(BARRIER, (tx.now, now_boot, self.durability, limit))

    def _born(self, tx: Tx) -> None:
        tx.run(BORN, (self._wanted, new_token(), self._settings.durability, self._settings.max_pending, tx.now))

    def _refuse_other(self, agent: str | None) -> None:
        if agent is not None and agent != self.agent:
            if not self._users:
                self.close()
            msg = f"{self.path} belongs to agent {self.agent!r}, not {agent!r}: open it under its own name"
            raise WrongAgent(msg)

    # -- what the writer asks (writer.Store) --------------------------------------------------

    def handle(self, deadline: float) -> apsw.Connection:
        """Return the writing connection, its patience set to *deadline*; opened anew if it had to be dropped."""
        if self._con is None:
            self._open()
        self._patience.deadline = deadline
        assert self._con is not None  # noqa: S101 - _open sets it or raises
        return self._con

    def now(self) -> Millis:
        """Return the wall clock, or what the file has seen already if that is later."""
        self._floor = max(self._floor, self.clock.now())
        return self._floor

    def orphaned(self) -> bool:
        """Return whether file or WAL were taken away, so that the last commit reached nobody."""
        return self._watch.rang()

    def reopen(self) -> None:
        """Drop the connections without a checkpoint and open the file anew, with its barrier."""
        self._drop()
        self._open()

    def mapped(self, error: BaseException) -> BaseException:
        """Return what a foreign error means."""
        return mapped(error, self.path)

    def _drop(self) -> None:
        with self._reading:
            for con in (self._con, self._reader):
                if con is not None:
                    with suppress(apsw.Error):
                        con.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                        con.close(force=True)
            self._con = self._reader = None

    # -- what the rest of the house uses ------------------------------------------------------

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run *work* and commit it, together with others that wait; see Writer.write."""
        return self._writer.write(work)

    def contribute(self, work: Callable[[Tx], T]) -> T:
        """Run a user's work: inside a handler it joins the handler's transaction, elsewhere it is as ``write``."""
        self._writer.join_host()
        return self._writer.write(work)

    def transaction(self) -> AbstractContextManager[Tx]:
        """Open a transaction for a user's own statements; inside a handler it joins the handler's."""
        self._writer.join_host()
        return self._writer.transaction()

    @property
    def turn(self) -> Writer:
        """The turnstile itself, for who must begin and commit in different places."""
        return self._writer

    def read(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run a reading statement on a snapshot of its own; inside the thread's transaction, on that."""
        if self._writer.held:
            with self._writer.transaction() as tx:
                return tx.rows(sql, bindings)
        self._writer.check()
        with self._reading:
            self._read_patience.deadline = time.monotonic() + self._settings.busy_timeout
            if self._reader is None:
                msg = f"{self.path} could not be opened again; the next write tries once more"
                raise StoreFault(msg)
            try:
                found: list[tuple[Any, ...]] = self._reader.execute(sql, bindings).fetchall()
            except Exception as error:
                raise mapped(error, self.path) from error
        return found

    def version(self) -> int:
        """Return a number that changes whenever somebody else committed."""
        [(number,)] = self.read("PRAGMA data_version")
        return int(number)

    def tick(self) -> None:
        """Store how far the clock has come, so that it never runs backwards across restarts."""
        self.contribute(lambda tx: tx.run(TICK, (tx.now,)))

    def checkpoint(self, *, truncate: bool) -> tuple[int, int]:
        """Move WAL pages into the file; return (pages in the WAL, pages moved), -1 where a reader was in the way."""
        self._writer.check()
        with self._reading:
            if self._reader is None:
                return -1, -1
            mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_PASSIVE
            self._read_patience.deadline = 0.0
            try:
                return self._reader.wal_checkpoint(None, mode)
            except (apsw.BusyError, apsw.LockedError):
                return -1, -1

    def wal_bytes(self) -> int:
        """Return the size of the WAL."""
        with suppress(FileNotFoundError):
            return os.stat(f"{self.path}-wal").st_size
        return 0

    def close(self) -> None:
        """Give the file back; the last user closes it. Safe to call twice and in a forked child."""
        if os.getpid() != self._pid:
            return
        with _registry_lock:
            self._users -= 1
            if self._users != 0:
                return
            with suppress(StoreClosed):
                self._writer.close()
            for key in [key for key, known in _registry.items() if known is self]:
                del _registry[key]
            self.bell.close()
            with self._reading:
                for con in (self._reader, self._con):
                    if con is not None:
                        con.close(force=True)
                self._con = self._reader = None


def _lies_at(con: apsw.Connection, path: Path) -> bool:
    while True:
        try:
            return guard.canonical(con.filename or "/") == path
        except apsw.ThreadingViolationError:
            time.sleep(0.001)  # another thread is inside it, for a statement's time
        except apsw.ConnectionClosedError:
            return False


def _keep_for_the_parent() -> None:
    # A forked child must not close the parent's handles, not even when its interpreter ends.
    import ctypes  # noqa: PLC0415 - paid by forks only

    _inherited.update(key for key, _ in _registry)
    for database in _registry.values():
        for con in (database._con, database._reader):  # noqa: SLF001 - this module's own class
            if con is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(con))
    _registry.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_for_the_parent)
