"""Keep one agent's file open in this process, with connections that all openings share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeVar

import apsw

from onceward.errors import (
    Busy,
    DiskFull,
    ForeignHandle,
    ForkedProcess,
    OncewardError,
    ReadOnlyStore,
    SchemaMismatch,
    StoreCorrupt,
    StoreFault,
    StoreUnusable,
)
from onceward.file import (
    descriptors,
    file_checks,
    foreign_library,
    forks,
    identity,
    migrations,
    open_files,
    readers,
)
from onceward.file.connection import (
    STATEMENTS,
    BusyHandler,
    check_version,
    close,
    close_without_checkpoint,
    connect,
    enable_wal,
    execute_reading,
    is_connected_to,
    may_be_damage,
    moves,
    raise_meant,
    translate_error,
    translate_own_error,
)
from onceward.file.group_commit import NOT_YET, ReplacedFileDetector, Writer, WriteRequest
from onceward.file.in_flight import CallRecords
from onceward.file.notify import Direction, Notifier
from onceward.file.transaction import (
    Handle,
    OwnReceiver,
    Row,
    StoreTransaction,
    bad_bindings,
    check_bindings,
    check_statement,
    refuse_pragma,
    row_class,
)
from onceward.file.waiter import Waiter
from onceward.message.clock import Clock, Millis, MonotonicFileClock, SystemClock, monotonic
from onceward.message.error_text import Hint
from onceward.message.log import log, quietly
from onceward.message.names import agent_name, quoted
from onceward.message.parcel import Answer, Durability, Parcel
from onceward.message.settings import Settings

if TYPE_CHECKING:
    from onceward.file.last_seen import LastSeen
    from onceward.file.slept import Slept

T = TypeVar("T")
FIRST_PAUSE: Final = 0.05
"""Seconds in which reads do not try again to open a failed file; doubled after each attempt."""
LONGEST_PAUSE: Final = 1.0
"""Maximum seconds of that pause."""
SMALL_CACHE: Final = "PRAGMA cache_size = -512"
"""Page cache in KiB of a file that only accepts parcels: a thousand such files may be open."""
FORGET_SCHEMA: Final = "PRAGMA writable_schema = RESET"
"""
Frees the parsed schema, 290 KB; the next statement reads it again in about 1 ms.

It takes effect when it is prepared, so it must not come from the cache of statements.
"""
FORGET_STATEMENT: Final = "SELECT 1"
"""
Evicts one prepared statement: the cache is a ring, and each execution takes its next place.

apsw cannot empty the cache.
"""
QUIET: Final = 2
"""Number of looks without a use after which a file rests."""
SLEEPS: Final = 12
"""The same after which it sleeps: it has no connection until its next use."""
FEW_STATEMENTS: Final = 24
"""Prepared statements to keep of a file that only accepts parcels: a parcel needs up to 20."""
LAST_WRITE: Final = 5.0
"""Seconds that closing waits for a transaction of another thread before it rolls it back."""
SMALL_WAL: Final = 8 << 20
"""Bytes of a WAL that the writer's connection checkpoints: so few delay no writer much."""
OPENED_OR_CLOSED: Final = 0.25
"""Seconds in which a thread has closed a descriptor that it opened briefly."""
DATA_VERSION: Final = "PRAGMA data_version"
FOREIGN_KEYS: Final = "PRAGMA foreign_keys = {}"
MORE: Final = """
SELECT (SELECT count(*) FROM sqlite_temp_schema)
     + (SELECT count(*) FROM pragma_database_list WHERE name NOT IN ('main', 'temp'))
"""
MARK: Final = "PRAGMA application_id"
OpenMode = Literal["create", "existing", "deliver"]
"""Any use of a file, any use of an existing file, or accepting parcels only."""


class _Reopening(NamedTuple):
    """The last attempt of a reader to reopen the file."""

    error: OncewardError | None = None
    retry_at: float = 0.0
    """Until this time of the monotonic clock, readers get the error without another attempt."""
    pause: float = FIRST_PAUSE


class _JustClosed(StoreFault):
    """The file was closed or reopened while a reader connected to it."""


class DeletedWal(NamedTuple):
    """A WAL that was deleted while this process had its database open."""

    at: Millis
    """When this process noticed it."""
    saved: bool
    """Whether all of its commits are in the database."""


class Database:
    """
    One agent's SQLite file with its writer and its reader.

    Opening a file that is already open in this process returns the same object: all its users share
    one writer, and so one commit. Our own reads use the writer's connection while no thread writes;
    the first read that finds a writer opens a second connection for all of them, which is closed
    once no read has met a writer for a minute. A subclass is another kind of file, with its own
    mark, schema and identity.
    """

    application_id: ClassVar[int] = migrations.APPLICATION_ID
    """Mark in the header of a file that has no mark of its host."""
    quiet = 0
    """Number of looks since the last use; see ``rest_if_quiet``."""
    foreign_keys = False
    """Whether foreign keys of the application's tables are enforced; ours have none."""
    _enforces = False
    """Whether an opening asked for it; the file's own setting may differ."""
    deleted_wal: DeletedWal | None = None
    """The last WAL that was deleted under this process."""
    on_deleted_wal: tuple[Callable[[DeletedWal], None], ...] = ()
    """Called while the writer's turn is held: they must not use the file."""
    takeover: str | None = None
    """The takeover that the file comes from."""
    was_restored = False
    """Whether its opening found that it was restored, moved or copied."""
    _seen: LastSeen | None = None
    """The note beside it of how it was left; None for a file that is in no folder."""
    damaged: str | None = None
    """The damaged value that the last examination found."""
    _sound_until = 0.0
    """Until this time of the monotonic clock, the tables are not examined again."""
    _slept: Slept | None = None
    """How it was left while it sleeps."""
    _readers_opened = 0
    """Number of second connections so far."""
    _ticks = 0
    """Rows in which the writer's connection stored the time."""
    _descriptors: tuple[file_checks.FileKey, ...] = ()
    """The files of which that connection has descriptors."""

    def __init__(
        self,
        path: Path,
        *,
        agent: str | None,
        settings: Settings,
        clock: Clock,
        vfs: str | None,
        only_takes_parcels: bool = False,
    ) -> None:
        self.path, self.clock, self.vfs = path, clock, vfs
        self._settings, self._expected_agent = settings, agent
        self._timeout_was_given = "busy_timeout" in settings.model_fields_set
        self.users = 0
        self.closing = False
        """Whether its last user has closed it: another opening waits until the file is closed."""
        self._openings, self._migrated, self._foreign_keys = 0, False, False
        self.only_takes_parcels = self._is_small = only_takes_parcels
        self._reopening = _Reopening()
        self.time = MonotonicFileClock()
        self.agent, self.file_id = agent or "", ""
        self.max_inbox, self.max_body = settings.max_inbox, settings.max_body
        self.durability: Durability = settings.durability
        self.busy_handler, self._read_busy_handler = BusyHandler(), BusyHandler()
        self._reading = forks.new_lock()
        self._con: apsw.Connection | None = None
        self.readers = readers.ReaderPool(self._connect_for_caller)
        """Connections for callers, whose reads may be slow: engines do not wait for them."""
        self._reader: apsw.Connection | None = None
        self._reading_turn: WriteRequest[None] = WriteRequest(None)
        """Holds the turn to write while the writer's connection is read."""
        self._reader_needed_at = 0.0
        """Time of the monotonic clock at which a read last met a writer."""
        self.writer = Writer(self, settings.busy_timeout)
        """Queue and commits; used directly if a transaction begins and ends in two places."""
        self.write = self.writer.write
        self.write_each = self.writer.write_each
        self.write_with_next = self.writer.write_with_next
        self.transaction = self.writer.transaction
        self.outside_handler = self.writer.outside_handler
        self.write_outside = self.writer.write_outside
        self.guard = ReplacedFileDetector(self.path)
        self.in_flight = self.writer.in_flight = CallRecords(None if vfs else self.path)
        self.receivers: tuple[Callable[[Parcel], Answer], ...] = ()
        """Functions of the postboxes that have it open; the last one accepts its parcels."""
        self._own: tuple[OwnReceiver, ...] = ()
        self._open()
        self.notifier = Notifier(self.path)
        self.notifier.on_remote_out = self.writer.queue.hurry
        self.writer.wake_dispatchers = partial(self.notifier.notify, "out")

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        agent: str | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        vfs: str | None = None,
        mode: OpenMode = "create",
    ) -> Self:
        """
        Open (create, migrate) the file and pass the open barrier.

        Without *agent* the stored agent and durability apply.
        In the mode ``deliver`` it takes little memory until it is opened in another.

        Raises:
            StoreUnusable, StoreCorrupt, Busy: see each class; nothing was changed.

        """
        check_version()
        if agent is not None:
            agent_name(agent)
        real = file_checks.canonical(path)
        file_checks.refuse_dangling(path)
        chosen = settings or Settings()
        make = partial(
            cls, agent=agent, settings=chosen, clock=clock or SystemClock(), vfs=vfs,
            only_takes_parcels=mode == "deliver",
        )  # fmt: skip
        while True:
            name = cls._existing(real, mode, chosen), vfs or ""
            found = open_files.use(name)
            if found is not None:
                return cls._shared(found, agent, mode, chosen, clock)
            with open_files.turn(name):  # of this file: threads that open others do not wait
                if name not in open_files.files and file_checks.file_key(real) == name[0]:
                    return cls._first(make, real, name, chosen, mode)

    @classmethod
    def _existing(cls, real: Path, mode: OpenMode, settings: Settings) -> file_checks.FileKey:
        """Return the key of the file at a path; create the file if the mode allows it."""
        key = file_checks.file_key(real)
        if key is None and mode != "create":
            msg = f"no file {real}: {Hint.CREATE_FILE}"
            raise StoreUnusable(msg)
        if key in forks.lost:
            raise ForkedProcess(open_files.INHERITED.format(real))
        if key is not None:
            return key
        cls._refuse_left_wal(real)
        open_files.create(real, allow_network=settings.network_filesystem)
        return cls._existing(real, mode, settings)

    @staticmethod
    def _refuse_left_wal(real: Path) -> None:
        file_checks.refuse_left_wal(real)

    @classmethod
    def _first(
        cls,
        make: Callable[[Path], Self],
        real: Path,
        name: open_files.Name,
        settings: Settings,
        mode: OpenMode,
    ) -> Self:
        """Open a file that is not open in this process; the thread holds its lock."""
        foreign_library.install_hook()
        open_files.create(real, allow_network=settings.network_filesystem)
        if mode == "deliver" and foreign_library.theirs and foreign_library.has(real):
            raise ForeignHandle(
                f"sqlite3 uses {real} in this process: its own process must collect"
            )
        cls._refuse_foreign(real)
        made = make(real)
        made.users = 1
        open_files.enter(name, made)
        return made

    @classmethod
    def _of_this_kind(cls, found: Database) -> Self:
        if type(found) is not cls:
            msg = f"{found.path} is open as another kind of file: use a separate file for onceward"
            raise SchemaMismatch(msg)
        return found

    @classmethod
    def _shared(
        cls,
        found: Database,
        agent: str | None,
        mode: OpenMode,
        settings: Settings,
        clock: Clock | None,
    ) -> Self:
        """Return an open file, which this opening also uses."""
        try:
            shared = cls._of_this_kind(found)
            identity.refuse_other(found.agent, agent)
            found.recover()
            if mode != "deliver":
                found._take_any_use()
            found.apply_settings(settings, clock)
        except BaseException:
            found.close()
            raise
        return shared

    @staticmethod
    def _refuse_foreign(real: Path) -> None:
        """
        Raise ForeignHandle if this process holds the file outside our SQLite.

        A descriptor is foreign if it stays, and no thread has ended to open or close one of our
        connections during the last look.
        """
        until = monotonic() + OPENED_OR_CLOSED
        while True:
            late, before = monotonic() >= until, moves.last
            held = descriptors.table.holder(real)
            if held is None or any(is_connected_to(con, real) for con in apsw.connections()):
                return
            if moves.touches(real):
                return
            if late and moves.last is before:
                raise ForeignHandle(
                    f"descriptor {held[0]} of this process holds {held[1]}: close it;"
                    " read through postbox or another process"
                )
            time.sleep(0.001)

    def _take_any_use(self) -> None:
        """Reconnect with the memory that uses other than accepting parcels need."""
        if self.only_takes_parcels:
            with self.writer.exclusive():
                if self.only_takes_parcels:  # no other opening has done it meanwhile
                    self._is_small = False
                    self.reopen()
                    self.only_takes_parcels = False

    @property
    def rests(self) -> bool:
        """Whether the file has had no use since it rested."""
        return self.quiet >= QUIET

    def rest_if_quiet(self) -> bool:
        """
        Rest once after ``QUIET`` calls without a use of the file in between; return whether.

        After ``SLEEPS`` calls, sleep.
        """
        self.quiet += 1
        if self.quiet == QUIET:
            self.rest()
            return self.rests
        if self.quiet >= SLEEPS and self._slept is None:
            self.sleep()
            return self._slept is not None
        return False

    def rest_after_parcel(self) -> None:
        """Rest if the file only accepts parcels; in any other use it may be needed soon."""
        if self.only_takes_parcels:
            self.rest()

    def rest(self) -> None:
        """
        Free the memory that the next use fills again in about 2 ms; close second connections.

        A file that is in use at the moment is left alone, and counts as used.
        """
        self.quiet = 0
        with self.writer.exclusive_if_free() as handle, suppress(apsw.Error):
            if handle is None or handle.in_transaction or self._reading.locked():
                return
            self._close_reader(handle)
            for _ in range(self._statements):
                handle.execute(FORGET_STATEMENT)
            handle.execute(FORGET_SCHEMA, can_cache=False)
            handle.release_memory()
            self.readers.close_idle(0.0)
            self.quiet = QUIET

    def sleep(self) -> None:
        """
        Close the connection; the next use opens the file as another process would.

        A file that is in use at the moment is left alone, as is one that Litestream replicates,
        that has lost its WAL, or whose connection has temporary tables or other databases of the
        application. A commit of another process wakes its engines.
        """
        if self.vfs is not None or self._is_replicated():
            return
        from onceward.file.slept import Slept  # noqa: PLC0415 - not before a minute

        with self.writer.exclusive_if_free() as handle, suppress(apsw.Error):
            if handle is None or handle.in_transaction or self._reading.locked():
                return
            self.readers.close_idle(0.0)
            if self.readers.are_lent or self.guard.replaced() or _has_more(handle):
                return
            self._close_reader(handle)
            version = self._version_by(handle)
            self._drop(close)
            self._note_closing()
            self.guard = ReplacedFileDetector(self.path)
            self._slept = Slept.at(self.path, version)

    def _close_reader(self, handle: Handle) -> None:
        """Close the second connection; the version that it counted is that of *handle* now."""
        with self._reading:
            reader = self._reader
            if reader is not None:
                # in this order: a commit in between is noticed as a change
                now, before = self._version_by(handle), self._version_by(reader)
                self._reader = None
                close(reader)
                self.notifier.renumber(before, now)

    def apply_settings(self, settings: Settings, clock: Clock | None) -> None:
        """Apply the explicit settings of another opening; one that only delivers has none."""
        given = settings.model_fields_set
        if clock is not None:
            self.clock = clock
        if "busy_timeout" in given:
            waits = self.writer.queue  # the longest requested timeout
            waits.timeout = max(
                settings.busy_timeout, waits.timeout if self._timeout_was_given else 0.0
            )
            self._timeout_was_given = True
        if given & {"max_pending", "max_inbox", "max_body"}:
            self.max_inbox, self.max_body = self.write(
                partial(identity.set_limits, settings=settings)
            )
        if "foreign_keys" in given and settings.foreign_keys != self.foreign_keys:
            self.write(partial(identity.set_foreign_keys, checked=settings.foreign_keys))
            self._set_foreign_keys(checked=settings.foreign_keys)
        if "durability" in given and settings.durability != self.durability:
            self.durability = settings.durability
            self.write(partial(identity.set_durability, durability=settings.durability))
            with self.writer.exclusive() as handle:
                handle.execute(
                    f"PRAGMA synchronous = {'full' if self.durability == 'safe' else 'normal'}"
                )

    def enforce_foreign_keys(self) -> None:
        """Enforce foreign keys as long as the file is open here."""
        self._enforces = True
        self._set_foreign_keys(checked=True)

    def _set_foreign_keys(self, *, checked: bool) -> None:
        with self.writer.exclusive() as handle:
            self.foreign_keys = checked or self._enforces
            handle.execute(FOREIGN_KEYS.format("ON" if self.foreign_keys else "OFF"))

    # -- opening ----------------------------------------------------------------------------

    def _open(self) -> apsw.Connection:
        deadline, con = monotonic() + self.writer.queue.timeout, None
        slept = self._slept
        unchanged = slept is not None and slept.version_now == slept.version
        try:
            self.guard.refuse_replaced()
            self._look_before()
            con = self._connect(deadline)
            self._enable_wal(con)
            self._prepare(con)
            if self.foreign_keys:
                con.execute(FOREIGN_KEYS.format("ON"))
        except BaseException as error:
            self._con = con
            self._drop()
            raise_meant(translate_own_error(error, self.path), error)
            raise
        # Only the writer commits: a COMMIT hidden in a user's statement is refused and undone.
        con.set_commit_hook(partial(getattr, self.writer, "refuses_commit"))
        con.set_rollback_hook(self.writer.rolled_back)
        # A Python callback may be interrupted before it sets the flag; this one is not Python.
        con.set_rollback_hook(partial(setattr, self.writer, "undone", 1), id="undone")
        self._con = con
        self.writer.use(con)
        self._descriptors = descriptors.table.opened(self.path)
        self.guard = ReplacedFileDetector(self.path)
        self._openings += 1
        self._ticks, self._reopening, self._slept = 0, _Reopening(), None
        if self._openings == 1 or slept is not None:
            self._note_opening()
        if self._openings > 1 and not unchanged:  # commits made in between notified no listener
            self.notifier.notify_local()
        return con

    def _connect(self, deadline: float) -> apsw.Connection:
        self.busy_handler.deadline = self._read_busy_handler.deadline = deadline
        con = connect(
            self.path, vfs=self.vfs, patience=self.busy_handler, statements=self._statements
        )
        try:
            if self._is_small:
                con.execute(SMALL_CACHE)
            self._preflight(con)
        except BaseException:
            close(con)
            raise
        return con

    @property
    def _statements(self) -> int:
        """Number of prepared statements to keep."""
        return FEW_STATEMENTS if self._is_small else STATEMENTS

    def _preflight(self, con: apsw.Connection) -> None:
        """Refuse an unsuitable file before changing it."""
        tx = StoreTransaction(con, self.clock.now())
        con.execute("BEGIN")
        try:
            self._refuse_unfit(tx)
        finally:
            if con.in_transaction:  # an error may already have ended it
                con.execute("ROLLBACK")

    def _refuse_unfit(self, tx: StoreTransaction) -> None:
        missing = migrations.pending(tx)
        self._migrated = not missing
        if missing == migrations.migrations() and tx.rows(MARK) == [(self.application_id,)]:
            migrations.refuse_unknown_tables(tx, self.path)
        identity.check_owner(tx, self._expected_agent, migrated=self._migrated)

    def _enable_wal(self, con: apsw.Connection) -> None:
        is_new = con.pragma("page_count") == 0
        if is_new:
            con.pragma("auto_vacuum", 2)
        enable_wal(
            con,
            full=True,
            checkpoint_pages=0 if self._is_replicated() else self._settings.tuning.checkpoint_pages,
            patience=self.busy_handler,
        )
        if is_new:
            from onceward.file import image  # noqa: PLC0415 - not before a new file

            image.copy_tables(con, self._create)

    def _prepare(self, con: apsw.Connection) -> None:
        con.execute("BEGIN IMMEDIATE")
        try:
            tx = StoreTransaction(con, self.clock.now())
            if not self._migrated and tx.rows(MARK) == [(0,)]:  # a host's own mark stays
                tx.rows(f"{MARK} = {self.application_id}")
            self._migrate(tx)
            self._identify(tx)
            con.execute("COMMIT")
            con.release_memory()  # of the pages of the schema, which is parsed by now
        except BaseException:
            if con.in_transaction:
                con.execute("ROLLBACK")
            raise
        if self.durability == "fast":
            con.pragma("synchronous", "normal")

    @classmethod
    def _create(cls, tx: StoreTransaction) -> None:
        """Create all tables in an empty file."""
        tx.rows(f"{MARK} = {cls.application_id}")
        for step in migrations.migrations():
            migrations.apply(tx, step, tx.now)

    def _migrate(self, tx: StoreTransaction) -> None:
        if self._migrated:  # migrations are never undone
            return
        for step in migrations.pending(tx):
            migrations.apply(tx, step, tx.now)

    def _identify(self, tx: StoreTransaction) -> None:
        found = identity.identify(tx, self._expected_agent, self._settings)
        if self.file_id not in {"", found.file_id}:
            raise StoreCorrupt(
                f"{self.path} was replaced by another file while it was open: close it, check the "
                "file, and open it again"
            )
        self.agent, self.file_id, self.durability = found.agent, found.file_id, found.durability
        self.time.observe(found.clock_at)
        self.max_inbox, self.max_body, self.takeover = (
            found.max_inbox,
            found.max_body,
            found.takeover,
        )
        self.foreign_keys = found.foreign_keys or self._enforces
        if self.deleted_wal is not None and not self.deleted_wal.saved:
            identity.note_lost_wal(tx, self.deleted_wal.at)
        if self._is_first_use and self._seen is not None:
            self.was_restored = self._seen.is_restored(found)
            if self.was_restored:
                identity.greet_peers(tx)

    @property
    def _is_first_use(self) -> bool:
        """Whether the file is opened, or wakes: it may have been restored before."""
        return self._openings == 0 or self._slept is not None

    def _look_before(self) -> None:
        """Look how the file was left, before the first connection changes it."""
        if self._is_first_use and self.vfs is None:
            from onceward.file.last_seen import LastSeen  # noqa: PLC0415 - not before an opening

            self._seen = LastSeen(self.path)

    def _note_opening(self) -> None:
        """Note how the file is left if this process dies; it has greeted its peers by now."""
        if self._seen is not None:
            self._seen.note(closed=False)
        if self.was_restored:
            about = log.bind(agent=self.agent, path=str(self.path))
            about.warning("file restored, moved or copied: its peers are greeted")

    def _note_closing(self) -> None:
        """Note that the file is closed, if no other process has it open."""
        if self._seen is not None:
            self._seen.note(closed=True)

    # -- for the writer (transaction.Store) --------------------------------------------------

    def writing_connection(self, deadline: float) -> apsw.Connection:
        """Return the writing connection with its deadline set; reopen it if it was dropped."""
        con = self._con or self._open()
        self.busy_handler.deadline, self.quiet = deadline, 0
        return con

    def now(self) -> Millis:
        """Return the file's time in milliseconds: the wall clock, but never running backwards."""
        return self.time.now(self.clock)

    def on_begin(self, tx: StoreTransaction) -> None:
        """Store the file's time in a transaction that has just begun."""
        self._ticks += identity.persist_progress(tx, self.time)

    def recover(self) -> None:
        """
        Reopen the file if an error closed it; otherwise do nothing.

        Raises:
            StoreError, StoreCorrupt: the error persists.

        """
        if self._con is None:
            with self.writer.exclusive():
                pass  # the connection that is lent is open

    def _recover_to_read(self) -> None:
        """Recover for a reader; between two failed attempts, raise the error of the last one."""
        last = self._reopening
        if last.error is not None and self.clock.monotonic() < last.retry_at:
            raise last.error.with_traceback(None)
        try:
            self.recover()
        except OncewardError as error:
            retry_at = self.clock.monotonic() + last.pause
            self._reopening = _Reopening(error, retry_at, min(LONGEST_PAUSE, 2 * last.pause))
            raise

    def reopen(self) -> None:
        """Drop the connections without a checkpoint and reopen the file, with its barrier."""
        self._keep_deleted_wal()
        self._drop()
        self.writer.queue.check()  # a file that was closed in between stays closed
        self._open()

    def save_deleted_wal(self) -> bool:
        """
        Move the commits of a deleted WAL into the file; return whether all of them are in it.

        The open connection still has the deleted WAL. Nothing is moved once another process has
        created a new one: its pages and those of the old WAL exclude each other.
        """
        con = self._con
        if con is None or not self.guard.only_wal_is_gone:
            return False
        with suppress(apsw.Error):
            pages, moved = con.wal_checkpoint(None, apsw.SQLITE_CHECKPOINT_FULL)
            return pages == moved and self.guard.only_wal_is_gone
        return False

    def _keep_deleted_wal(self) -> None:
        """Save a deleted WAL before its last descriptor is closed; report what happened."""
        about = log.bind(agent=self.agent, path=str(self.path))
        if self._con is not None and self.guard.only_wal_is_gone:
            if not self.save_deleted_wal():
                raise StoreFault(f"{self.path}: {NOT_YET}")
            about.warning("deleted WAL saved: never delete the -wal of an open file")
            self._tell_deleted_wal(saved=True)
        elif self._con is not None and self.guard.has_lost_wal:
            about.error("deleted WAL not saved: commits since the last checkpoint may be lost")
            self._tell_deleted_wal(saved=False)  # the next opening stores it

    def _tell_deleted_wal(self, *, saved: bool) -> None:
        self.deleted_wal = found = DeletedWal(self.clock.now(), saved)
        for tell in self.on_deleted_wal:
            quietly(tell, found, failed=partial(log.failure, "error", "a deleted WAL is not told"))

    def translate_error(self, error: BaseException) -> BaseException:
        """Return the error of ours for a foreign error."""
        return self.explain(translate_own_error(error, self.path))

    def explain(self, error: BaseException) -> BaseException:
        """Return StoreCorrupt for an error that a damaged value of our tables explains."""
        said = self.examine() if may_be_damage(error) else None
        if said is None:
            return error
        from onceward.file import damage  # noqa: PLC0415 - rarely needed

        return damage.corrupt(self.path, said)

    def examine(self) -> str | None:
        """Return a value that our tables cannot hold; None if none was found in a second."""
        if monotonic() < self._sound_until:
            return None
        from onceward.file import damage  # noqa: PLC0415 - rarely needed

        with suppress(OncewardError, apsw.Error), self.readers.lend(0.0) as reader:
            self.damaged = damage.find(reader)
            self._sound_until = 0.0 if self.damaged else monotonic() + damage.SOUND_FOR
            return self.damaged
        return None

    def _drop(
        self, let_go: Callable[[apsw.Connection | None], None] = close_without_checkpoint
    ) -> None:
        descriptors.table.closing(self._descriptors)
        with self._reading:
            self.writer.use(None)
            self.readers.replace(let_go)
            for con in (self._reader, self._con):
                let_go(con)
            self._con = self._reader = None

    # -- receiving ----------------------------------------------------------------------------

    def add_receiver(
        self, accept: Callable[[Parcel], Answer], own: OwnReceiver | None = None
    ) -> None:
        """Register *accept* for parcels from this process, and *own* for messages to oneself."""
        with open_files.lock:
            self.receivers += (accept,)
            self._own += () if own is None else (own,)
            self.writer.own = self._own[-1] if self._own else None

    def remove_receiver(
        self, accept: Callable[[Parcel], Answer], own: OwnReceiver | None = None
    ) -> None:
        """Unregister both in favour of those added before; do nothing if they are gone."""
        with open_files.lock:
            self.receivers = tuple(each for each in self.receivers if each != accept)
            self._own = tuple(each for each in self._own if each is not own)
            self.writer.own = self._own[-1] if self._own else None

    # -- using the open file ------------------------------------------------------------------

    def read(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """
        Run a short reading statement on its own snapshot, or in this thread's transaction.

        Engines wait for it: run slow statements with ``ask``.
        """
        if self.writer._owner == get_ident():
            return self._read_inside(sql, bindings)
        queue = self.writer.queue
        if self.writer.thread_transactions.hosts:
            self.writer.thread_transactions.before_read()
        if queue.closed:
            queue.check()
        if self._con is None:
            self._recover_to_read()
        self.quiet = 0
        try:
            try:
                return self._by_any(apsw.Connection.execute, sql, bindings)
            except apsw.SchemaChangeError:  # without the turn to write between two tries
                again = partial(self._by_any, apsw.Connection.execute)
                return self._execute(again, sql, bindings)
            except _JustClosed:
                self._recover_to_read()
                return self._by_any(apsw.Connection.execute, sql, bindings)
        except Exception as error:
            raise_meant(translate_own_error(error, self.path), error)
            raise

    def _by_any(
        self, work: Callable[..., Iterable[T]], *args: Any, within: float | None = None
    ) -> list[T]:
        """Return the result of *work* on the writer's connection, or another while it writes."""
        queue, turn = self.writer.queue, self._reading_turn
        deadline = monotonic() + (queue.timeout if within is None else within)
        with self._reading:
            try:
                try:
                    con = self._reader
                    if queue.taken:
                        if forks.forking:
                            forks.pause()
                        self._reader_needed_at = monotonic()
                    elif con is None and queue.enter_if_free(turn):
                        con, self.busy_handler.deadline = self._con, deadline
                        if con is not None and con.in_transaction:
                            con.execute("ROLLBACK")  # an interrupt came before it ended
                    self._read_busy_handler.deadline = deadline
                    return list(work(con or self._open_reader(), *args))
                finally:
                    if turn.is_leader:
                        queue.pass_on(turn)
            except BaseException:
                queue.pass_on(turn)  # the interrupt may have come before the turn was passed on
                raise

    def _execute(self, execute: Callable[..., T], sql: str, bindings: Any = None) -> T:
        """Run a reading statement; wait for other writers as long as a commit does."""
        return execute_reading(execute, sql, bindings, within=self.writer.queue.timeout)

    def _read_inside(self, sql: str, bindings: Any) -> list[tuple[Any, ...]]:
        tx = self.writer.open_transaction()
        try:
            return tx.rows(sql, bindings)
        except Exception as error:
            raise_meant(translate_own_error(error, self.path), error)
            raise

    def ask(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run a reading statement for a caller, as ``read``; no engine waits for it."""
        if self.writer._owner == get_ident():
            return self._read_inside(sql, bindings)
        with self._lent_reader() as reader, self._errors_by(self.translate_error):
            found: list[tuple[Any, ...]] = self._execute(reader.execute, sql, bindings).fetchall()
        return found

    def query(
        self, sql: str, bindings: Any = None, *, inside: StoreTransaction | None = None
    ) -> list[Row]:
        """Run a caller's statement on committed data, or *inside* its transaction."""
        check_statement(sql)
        check_bindings(bindings)
        if "pragma" in sql.lower():
            refuse_pragma(sql)
        try:
            return self._query(sql, bindings, inside)
        except ReadOnlyStore as error:
            if inside is not None:
                raise
            raise ReadOnlyStore(f"{quoted(sql)} is not a SELECT: write in a transaction") from error
        except (TypeError, KeyError, OverflowError) as error:
            raise bad_bindings(bindings, error) from error

    def _query(self, sql: str, bindings: Any, inside: StoreTransaction | None) -> list[Row]:
        by_path = partial(translate_error, path=self.path)
        if inside is not None:
            with self._errors_by(by_path):
                return _named(inside.read(sql, bindings))
        with self._lent_reader() as reader, self._errors_by(by_path):
            return _named(self._execute(reader.execute, sql, bindings))

    @contextmanager
    def _errors_by(self, translate: Callable[[BaseException], BaseException]) -> Iterator[None]:
        """Raise the errors of a caller's block translated, and an interrupt as it is."""
        try:
            yield
        except apsw.InterruptError:
            raise
        except Exception as error:
            raise_meant(translate(error), error)
            raise

    @contextmanager
    def _lent_reader(self) -> Iterator[apsw.Connection]:
        """Lend a caller its own connection; on a full disk, one without a barrier."""
        self.writer.thread_transactions.before_read()
        self.writer.queue.check()
        if self._con is None:
            try:
                self._recover_to_read()
            except DiskFull:
                with self._before_the_barrier() as reader:
                    yield reader
                return
        with self.readers.lend(self.writer.queue.timeout) as reader:
            yield reader

    @contextmanager
    def _before_the_barrier(self) -> Iterator[apsw.Connection]:
        """Connect to read data that no commit of ours has made durable; a power cut may lose it."""
        patience = BusyHandler()
        patience.deadline = monotonic() + self.writer.queue.timeout
        reader = connect(self.path, vfs=self.vfs, readonly=True, patience=patience)
        try:
            yield reader
        finally:
            close_without_checkpoint(reader)

    @property
    def behind_barrier(self) -> bool:
        """Whether callers read durable data: False while a full disk refuses the barrier."""
        return self._con is not None or self._slept is not None

    def _connect_reader(self, patience: BusyHandler) -> apsw.Connection:
        openings = self._openings
        reader = connect(self.path, vfs=self.vfs, patience=patience, statements=self._statements)
        reader.execute("PRAGMA query_only = ON")
        if self._con is None or openings != self._openings:  # it may have read before the barrier
            close_without_checkpoint(reader)
            self.writer.queue.check()
            raise _JustClosed(f"{self.path}: an error has just closed it; try again")
        return reader

    def _connect_for_caller(self, patience: BusyHandler) -> apsw.Connection:
        """Connect; if the file is reopened meanwhile, once more after that."""
        try:
            return self._connect_reader(patience)
        except _JustClosed:
            self._recover_to_read()
            return self._connect_reader(patience)

    def _open_reader(self) -> apsw.Connection:
        """Connect for the first read that meets a writer."""
        self._read_busy_handler.deadline = monotonic() + self.writer.queue.timeout
        self._reader_needed_at = monotonic()
        self._reader = self._connect_reader(self._read_busy_handler)
        self._readers_opened += 1
        return self._reader

    def snapshot(self, work: Callable[[StoreTransaction], T]) -> T:
        """Run several reading statements on one snapshot, outside of any transaction."""
        with self._lent_reader() as reader, self._errors_by(self.translate_error):
            try:
                reader.execute("BEGIN")
                return work(StoreTransaction(reader, self.now()))
            finally:
                if reader.in_transaction:
                    reader.execute("ROLLBACK")

    def version(self) -> int:
        """Return a number that changes with each commit, and when the file is reopened."""
        self.writer.queue.check()
        if self._con is None:
            self._recover_to_read()
        try:
            try:
                [number] = self._by_any(self._versions_by)
            except _JustClosed:
                self._recover_to_read()
                [number] = self._by_any(self._versions_by)
        except Exception as error:
            raise_meant(translate_own_error(error, self.path), error)
            raise
        return number

    def _versions_by(self, con: apsw.Connection) -> list[int]:
        return [self._version_by(con)]

    def _version_by(self, con: Handle) -> int:
        """
        Count other connections' commits and this one's rows, differently per connection.

        The times that this connection stored are not counted.
        """
        found: list[tuple[Any, ...]] = con.execute(DATA_VERSION).fetchall()
        by_writer = con is self._con
        own = con.total_changes() - self._ticks if by_writer else 0
        # a new connection counts from the start, and would repeat the numbers of the one before
        turn = 0 if by_writer else self._readers_opened
        return (self._openings << 80) + (turn << 40) + 2 * (int(found[0][0]) + own) + by_writer

    def version_if_open(self) -> int:
        """Return ``version()`` without opening the file; -1 while an error keeps it closed."""
        if self._con is not None:
            return self.version()
        slept = self._slept
        return -1 if slept is None else slept.version_now

    def waiter(self, side: Direction, poll: float) -> Waiter:
        """Return a thread's waiter; *poll* is the seconds between two checks of the version."""
        return Waiter(self.notifier, side, version=self.version_if_open, poll=poll)

    def persist_clock(self) -> None:
        """Store the file's time, so that it never runs backwards across restarts."""
        self.write(self._persist_clock)

    def _persist_clock(self, tx: StoreTransaction) -> None:
        self._ticks += identity.persist_clock(tx)

    def checkpoint(self, *, truncate: bool) -> tuple[int, int]:
        """
        Move WAL pages into the file; return (WAL pages, pages moved), -1 if a reader blocks.

        Below the limit of the WAL a file that Litestream replicates is left to it: a checkpoint in
        the moment in which it has no lock makes version 0.3 miss commits.
        """
        self.writer.queue.check()
        if self._con is None:
            self._recover_to_read()
        if not truncate and self._is_replicated():
            return -1, -1
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_PASSIVE
        try:
            if self.wal_bytes() <= SMALL_WAL:
                pages, moved = self._by_any(apsw.Connection.wal_checkpoint, None, mode, within=0.0)
                return pages, moved
            with self.readers.lend(0.0) as reader:
                return reader.wal_checkpoint(None, mode)
        except (Busy, apsw.BusyError, apsw.LockedError):
            return -1, -1
        except apsw.Error as error:
            raise_meant(translate_error(error, self.path), error)
            raise

    def _is_replicated(self) -> bool:
        return file_checks.is_replicated(self.path)

    def close_idle(self) -> None:
        """Close connections that were not used for a while, except the writer's."""
        self.readers.close_idle()
        with self._reading:
            if monotonic() - self._reader_needed_at >= readers.IDLE:
                reader, self._reader = self._reader, None
                close(reader)

    def wal_bytes(self) -> int:
        """Return the size of the WAL."""
        with suppress(FileNotFoundError):
            return os.stat(f"{self.path}-wal").st_size
        return 0

    def close(self) -> None:
        """Release the file; the last user closes it. Safe to call twice and in a forked child."""
        if self.is_inherited:
            return
        if not open_files.leave(self) or (name := open_files.name_of(self)) is None:
            return
        with open_files.turn(name):
            if open_files.retire(self):
                self._close()

    def _close(self) -> None:
        try:
            in_time = self.writer.queue.close(LAST_WRITE)
        except BaseException:
            self.closing = False  # the next opening uses it unchanged
            raise
        if in_time and self._slept is None and self.guard.has_lost_wal:
            self._store_loss()
        open_files.remove(self)
        self.notifier.close()
        self.in_flight.close()
        self.readers.close()
        if in_time:
            # SQLite would checkpoint a deleted WAL over the new one, and delete the new one
            self._drop(close_without_checkpoint if self.guard.has_other_wal else close)
            self._note_closing()
        else:
            self._take_from_holder()

    def _store_loss(self) -> None:
        """Reopen a file whose deleted WAL cannot be saved, so that the file says so after us."""
        with suppress(OncewardError):
            self._keep_deleted_wal()
            self._drop()
            self._open()

    def _take_from_holder(self) -> None:
        """Close the file although a thread has an open transaction, which is rolled back."""
        log.bind(agent=self.agent).warning("transaction rolled back by close", path=str(self.path))
        descriptors.table.closing(self._descriptors)
        con, until = self._con, monotonic() + LAST_WRITE
        while con is not None and monotonic() < until:
            self.busy_handler.deadline = 0.0  # of a statement that is waiting for another process
            with suppress(apsw.Error):
                con.interrupt()
                con.close(force=True)
                break
            time.sleep(0.001)  # the other thread is inside the connection
        if (tx := self.writer._tx) is not None:
            tx.rolled_back = tx.closed = True
        self._drop(close)

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a child, by fork, of the one that opened the file."""
        return self.writer.queue.inherited

    def connections(self) -> tuple[apsw.Connection | None, ...]:
        """Return the handles that are open or lent."""
        return self._con, self._reader, *self.readers.connections()

    def hold(self, until: float, later: forks.Later) -> None:
        """Take the turn to write before a fork, by a time; *later* gives it back."""
        if not self.writer.held:
            request: WriteRequest[Any] = WriteRequest(None)
            later(partial(self.writer.queue.leave, request))
            with suppress(OncewardError):
                self.writer.queue.enter(request, max(0.0, until - monotonic()))

    def leave_to_the_parent(self) -> None:
        """Forget the connections, in a forked child."""
        self.writer.leave_to_the_parent()
        self.readers.leave_to_the_parent()
        self._con = self._reader = None
        self.notifier.leave_to_the_parent()


def _has_more(handle: Handle) -> bool:
    """Return whether a connection has more than its file, which its end would remove."""
    [(count,)] = handle.execute(MORE).fetchall()
    return bool(count)


def _named(cursor: apsw.Cursor) -> list[Row]:
    try:
        made = row_class(tuple(name for name, _ in cursor.getdescription()))
    except apsw.ExecutionCompleteError:  # no row
        return []
    return list(map(made, cursor))
