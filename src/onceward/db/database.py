"""One agent's file, open in this process: shared by all who open it, one writer, one reader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self, TypeVar

import apsw

from onceward.db import file_checks, identity, migrations, open_files
from onceward.db.connection import (
    Patience,
    check_version,
    connect,
    drop,
    harden,
    leave,
    lies_at,
    mapped,
    ours,
)
from onceward.db.group_commit import Writer
from onceward.db.notify import Bell
from onceward.db.transaction import Tx
from onceward.errors import ForkedProcess, StoreClosed, StoreCorrupt, StoreFault, StoreUnusable
from onceward.model.clock import Clock, FileTime, Millis, SystemClock
from onceward.model.names import agent_name
from onceward.model.parcel import Durability
from onceward.model.settings import Settings

T = TypeVar("T")
APPLICATION_ID: Final = 0x6F6E6365  # "once"


class Database:
    """
    One agent's SQLite file with its writer and its reader.

    Opening a file that this process has open already returns the same object:
    all its users share one writer, and so one commit.
    """

    def __init__(
        self, path: Path, *, agent: str | None, settings: Settings, clock: Clock, vfs: str | None
    ) -> None:
        self.path, self.clock, self._vfs = path, clock, vfs
        self._settings, self._wanted, self._asked = (
            settings,
            agent,
            "busy_timeout" in settings.model_fields_set,
        )
        self._pid, self.time, self.users, self.committing, self._shut = (
            os.getpid(),
            FileTime(),
            0,
            False,
            "",
        )
        self.agent, self.file_id, self.max_inbox, self.max_body = (
            agent or "",
            "",
            settings.max_inbox,
            settings.max_body,
        )
        self.durability: Durability = settings.durability
        self._patience, self._read_patience = Patience(), Patience()
        self._reading = Lock()
        self._con: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._writer = Writer(self, settings.busy_timeout)
        self._watch = file_checks.Watch(self.path)
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

        Without *agent* the file says itself whose it is, and its durability holds.

        Raises:
            StoreUnusable, StoreCorrupt, Busy: see each class; nothing was changed.

        """
        check_version()
        if agent is not None:
            agent_name(agent)
        real = file_checks.canonical(path)
        chosen = settings or Settings()
        with open_files.lock:
            key = file_checks.file_key(real)
            if key is None and not create:
                msg = f"no file {real}: a Postbox that is opened with agent=NAME creates it"
                raise StoreUnusable(msg)
            found = None if key is None else open_files.files.get((key, vfs or ""))
            if found is None:
                found = cls._first(real, agent, chosen, clock or SystemClock(), vfs)
            else:
                identity.refuse_other(found.agent, agent)
                found.adopt(chosen, clock)
            found.users += 1
            return found  # type: ignore[return-value]  # the registry holds what cls made

    @classmethod
    def _first(
        cls, real: Path, agent: str | None, settings: Settings, clock: Clock, vfs: str | None
    ) -> Database:
        if file_checks.file_key(real) in open_files.inherited:
            msg = f"{real} was open when this process forked: start children by spawn, or fork before opening"
            raise ForkedProcess(msg)
        file_checks.prepare(real, allow_network=settings.network_filesystem)
        if not any(lies_at(con, real) for con in apsw.connections()):
            file_checks.refuse_foreign(real)
        made = cls(real, agent=agent, settings=settings, clock=clock, vfs=vfs)
        key = file_checks.file_key(real)
        assert key is not None  # noqa: S101 - it is open
        open_files.files[(key, vfs or "")] = made
        return made

    def adopt(self, settings: Settings, clock: Clock | None) -> None:
        """Let a second opener's explicit settings hold; a neighbour that only delivers gives none, first or second."""
        given = settings.model_fields_set
        if clock is not None:
            self.clock = clock
        if "busy_timeout" in given:
            waits = self._writer.turnstile  # as long as the most patient of those who said
            waits.timeout = max(settings.busy_timeout, waits.timeout if self._asked else 0.0)
            self._asked = True
        if given & {"max_pending", "max_inbox", "max_body"}:
            [(self.max_inbox, self.max_body)] = self.write(
                lambda tx: tx.rows(identity.LIMITS, identity.limits(settings))
            )
        if "durability" in given and settings.durability != self.durability:
            self.durability = settings.durability
            self.write(lambda tx: tx.run(identity.LEVEL, (settings.durability,)))
            with self._writer.exclusive() as handle:
                handle.execute(
                    f"PRAGMA synchronous = {'full' if self.durability == 'safe' else 'normal'}"
                )

    # -- opening ----------------------------------------------------------------------------

    def _open(self) -> apsw.Connection:
        deadline = time.monotonic() + self._writer.turnstile.timeout
        try:
            self._watch.refuse_replaced()
            con = self._con = self._connected(deadline)
            self._harden(con)
            self._prepare(con)
            self._reader = connect(self.path, vfs=self._vfs, patience=self._read_patience)
            self._reader.execute("PRAGMA query_only = ON")
        except BaseException as error:
            self._drop()
            self._shut = str(found := ours(error, self.path))
            raise found from error
        # Only the writer commits: a COMMIT that hides in a user's statement is refused and undone.
        con.set_commit_hook(lambda: not self.committing)
        con.set_rollback_hook(self._writer.rolled_back)
        self._watch = file_checks.Watch(self.path)
        return con

    def _connected(self, deadline: float) -> apsw.Connection:
        self._patience.deadline = self._read_patience.deadline = deadline
        con = connect(self.path, vfs=self._vfs, patience=self._patience)
        try:
            self._look_first(con)
        except BaseException:
            leave(con)
            raise
        return con

    def _look_first(self, con: apsw.Connection) -> None:
        """Refuse what must be refused before anything of the file is changed."""
        tx = Tx(con, self.clock.now())
        con.execute("BEGIN")
        try:
            migrations.pending(tx)
            identity.look(tx, self._wanted)
        finally:
            if con.in_transaction:  # an error may have ended it already
                con.execute("ROLLBACK")

    def _harden(self, con: apsw.Connection) -> None:
        if con.pragma("page_count") == 0:
            con.pragma("auto_vacuum", 2)
            con.pragma("application_id", APPLICATION_ID)
        harden(
            con,
            full=True,
            checkpoint_pages=self._settings.checkpoint_pages,
            patience=self._patience,
        )

    def _prepare(self, con: apsw.Connection) -> None:
        con.execute("BEGIN IMMEDIATE")
        try:
            tx = Tx(con, self.clock.now())
            for step in migrations.pending(tx):
                migrations.apply(tx, step, tx.now)
            self._identify(tx)
            con.execute("COMMIT")
        except BaseException:
            if con.in_transaction:
                con.execute("ROLLBACK")
            raise
        if self.durability == "fast":
            con.pragma("synchronous", "normal")

    def _identify(self, tx: Tx) -> None:
        found = identity.identify(tx, self._wanted, self._settings)
        if self.file_id not in {"", found.file_id}:
            msg = f"{self.path} was replaced by another file while it was open: close, look, and open again"
            raise StoreCorrupt(msg)
        self.agent, self.file_id, self.durability = found.agent, found.file_id, found.durability
        self.time.see(found.clock_at)
        self.max_inbox, self.max_body = found.max_inbox, found.max_body

    # -- what the writer asks (writer.Store) --------------------------------------------------

    def handle(self, deadline: float) -> apsw.Connection:
        """Return the writing connection, its patience set to *deadline*; opened anew if it had to be dropped."""
        con = self._con or self._open()
        self._patience.deadline = deadline
        return con

    def now(self) -> Millis:
        """Return the file's time: the wall clock, but never earlier than what the file has seen, and never standing still."""
        return self.time.now(self.clock)

    def note(self, tx: Tx) -> None:
        """Let an open transaction store how far the clock has come, if the file would forget too much of it."""
        identity.note(tx, self.time)

    def orphaned(self) -> bool:
        """Return whether file or WAL were taken away, so that the last commit reached nobody."""
        return self._watch.rang()

    def reopen(self) -> None:
        """Drop the connections without a checkpoint and open the file anew, with its barrier."""
        self._drop()
        self._open()

    def mapped(self, error: BaseException) -> BaseException:
        """Return what a foreign error means."""
        return ours(error, self.path)

    def _drop(self, let_go: Callable[[apsw.Connection | None], None] = drop) -> None:
        with self._reading:
            for con in (self._reader, self._con):
                let_go(con)
            self._con = self._reader = None

    # -- what the rest of the house uses ------------------------------------------------------

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run *work* and commit it, together with others that wait; see Writer.write."""
        return self._writer.write(work)

    def contribute(self, work: Callable[[Tx], T]) -> T:
        """Run a user's work: inside a handler it joins the handler's transaction, elsewhere it is as ``write``."""
        self._writer.hosts.join()
        return self._writer.write(work)

    def transaction(self) -> AbstractContextManager[Tx]:
        """Open a transaction for a user's own statements; inside a handler it joins the handler's."""
        self._writer.hosts.join()
        return self._writer.transaction()

    @property
    def turn(self) -> Writer:
        """The turnstile itself, for who must begin and commit in different places."""
        return self._writer

    def read(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run a reading statement on a snapshot of its own; inside the thread's transaction, on that."""
        if self._writer.held:
            with self._writer.transaction() as tx:
                try:
                    return tx.rows(sql, bindings)
                except Exception as error:
                    raise ours(error, self.path) from error
        self._writer.turnstile.check()
        with self._reading:
            self._read_patience.deadline = time.monotonic() + self._writer.turnstile.timeout
            if self._reader is None:
                msg = f"{self._shut or self.path}: not opened again yet; the next write tries once more"
                raise StoreFault(msg)
            try:
                found: list[tuple[Any, ...]] = self._reader.execute(sql, bindings).fetchall()
            except Exception as error:
                raise ours(error, self.path) from error
        return found

    def version(self) -> int:
        """Return a number that changes whenever somebody else committed."""
        return int(self.read("PRAGMA data_version")[0][0])

    def tick(self) -> None:
        """Store how far the clock has come, so that it never runs backwards across restarts."""
        self.contribute(identity.tick)

    def checkpoint(self, *, truncate: bool) -> tuple[int, int]:
        """Move WAL pages into the file; return (pages in the WAL, pages moved), -1 where a reader was in the way."""
        self._writer.turnstile.check()
        with self._reading:
            if self._reader is None:
                return -1, -1
            mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_PASSIVE
            self._read_patience.deadline = 0.0
            try:
                return self._reader.wal_checkpoint(None, mode)
            except (apsw.BusyError, apsw.LockedError):
                return -1, -1
            except apsw.Error as error:
                raise mapped(error, self.path) from error

    def wal_bytes(self) -> int:
        """Return the size of the WAL."""
        with suppress(FileNotFoundError):
            return os.stat(f"{self.path}-wal").st_size
        return 0

    def close(self) -> None:
        """Give the file back; the last user closes it. Safe to call twice and in a forked child."""
        if os.getpid() != self._pid:
            return
        with open_files.lock:
            self.users -= 1
            if self.users != 0:
                return
            with suppress(StoreClosed):
                self._writer.turnstile.close()
            for key in [key for key, known in open_files.files.items() if known is self]:
                del open_files.files[key]
            self.bell.close()
            self._drop(leave)

    def connections(self) -> tuple[apsw.Connection | None, ...]:
        """Return the handles that a forked child must leave alone."""
        return self._con, self._reader
