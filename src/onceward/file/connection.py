"""Open apsw connections with our pragmas, and translate SQLite's errors."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any, Final, TypeVar
from urllib.parse import quote

import apsw

from onceward.errors import (
    Busy,
    DiskFull,
    FileLimit,
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    OncewardError,
    OutboxLimit,
    Paused,
    ReadOnlyStore,
    SqliteTooOld,
    StoreCorrupt,
    StoreError,
    StoreFault,
    TakenOver,
)
from onceward.file import forks
from onceward.file.file_checks import canonical, descriptors_left, files_limit, read_only_part
from onceward.message.clock import monotonic
from onceward.message.error_text import Hint
from onceward.message.names import quoted

T = TypeVar("T")
MIN_VERSION: Final = (3, 51, 3)
WITHDRAWN_VERSIONS: Final = (3, 52, 0)
MARK: Final = "onceward:"
SURROGATES: Final = "surrogates not allowed"
"""Python's reason for text that cannot be written as UTF-8."""
REFUSALS: Final = (
    "CHECK constraint failed",
    "cannot store",
    "NOT NULL constraint failed: _onceward_",
)
"""SQLite's texts for a row of ours that violates a CHECK, a strict type or NOT NULL."""
UNTYPED: Final = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Errors that a damaged value of another type causes where it is used."""
ENDED_ONCE: Final = (
    "_onceward_processed_messages.",
    "_onceward_dead_letters.",
    "_onceward_pending_replies.asker_seq",
)
"""Columns of rows that the holder of a lease writes once."""
ConstraintError = apsw.ConstraintError
"""A row that the schema refused; defined here so that other modules need not import apsw."""
DEFERRED: Final = apsw.SQLITE_DBSTATUS_DEFERRED_FKS
"""The number of a connection that is 0 unless a foreign key is violated at the moment."""
SQLError = apsw.SQLError
"""A statement that SQLite cannot run."""

CACHE: Final = "PRAGMA cache_size = -16384"
# One reason per line; read back by a test.
PRAGMAS: Final = (
    "PRAGMA trusted_schema = OFF",  # the schema of a hostile file must not call functions
    "PRAGMA cell_size_check = ON",  # notice damaged pages early
    "PRAGMA foreign_keys = OFF",  # the writer's connection gets what the file's setting says
    "PRAGMA temp_store = MEMORY",  # no temporary files beside the database
    CACHE,  # 16 MiB: a million pending rows must not make the process large
)
LONGEST_PATH: Final = 504
"""Bytes of the longest path that SQLite opens: it appends up to 8 to it, within 512."""
CLOSED_ERRORS: Final = (apsw.ConnectionClosedError, apsw.CursorClosedError)
"""Errors of a connection that was closed, and of its cursors."""
STATEMENTS: Final = 512
"""
Prepared statements that a connection keeps; as many as apsw allows.

The cache is a ring that advances with each execution: with apsw's 100, the statements of a hundred
handlers would evict all others.
"""


def check_version(version: str = "") -> None:
    """Raise SqliteTooOld unless SQLite has the WAL-reset fix."""
    number = tuple(int(part) for part in (version or apsw.sqlite_lib_version()).split("."))
    if number < MIN_VERSION or number == WITHDRAWN_VERSIONS:
        raise SqliteTooOld(
            f"SQLite {'.'.join(map(str, number))} may damage WAL files:"
            " install apsw >= 3.53 (needs 3.51.3, not 3.52.0)"
        )


class Moves:
    """
    The files whose connections threads are opening or closing now.

    Their descriptors are ours, although apsw does not list such a connection.
    """

    def __init__(self) -> None:
        self.last: object = None
        """Another object after each change."""
        self.paths: dict[int, str] = {}
        """The files, by thread."""

    @contextmanager
    def of(self, path: str) -> Iterator[None]:
        """Record that this thread opens or closes a connection during a block."""
        self.paths[get_ident()] = path
        try:
            yield
        finally:
            self.last = object()  # before its file is removed: a look in between is repeated
            self.paths.pop(get_ident(), None)

    def touches(self, path: Path) -> bool:
        """Return whether a thread is opening or closing a connection to *path*."""
        return any(_is_same(name, path) for name in list(self.paths.values()))


moves: Final = Moves()
"""Those of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=moves.paths.clear)  # the child lacks their threads


def connect(
    path: Path,
    *,
    vfs: str | None = None,
    readonly: bool = False,
    immutable: bool = False,
    patience: Callable[[int], bool] | None = None,
    statements: int = STATEMENTS,
) -> apsw.Connection:
    """
    Open *path*, which exists, with our pragmas; the file is not changed.

    *immutable* takes no locks and reads no WAL: for a file that no process changes while it is
    read.

    *patience* decides how long every statement waits: even a pragma reads the schema, and after a
    crash another process may be recovering the WAL. *statements* is the number of prepared ones to
    keep.

    Raises:
        StoreError: mapped from SQLite's error.

    """
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    forks.refuse_if_stuck(path)
    if not readonly and (part := read_only_part(path)) is not None:
        _refuse_readonly(part)  # before SQLite creates side files with the same mode
    con = None
    try:
        with forks.opening_or_closing(), moves.of(str(path)):
            con = apsw.Connection(
                f"file:{quote(str(path))}{'?immutable=1' if immutable else ''}",
                flags | apsw.SQLITE_OPEN_URI,
                vfs=vfs,
                statementcachesize=statements,
            )
        forks.adopt(con, path)
        if not readonly and con.readonly("main"):
            _refuse_readonly(path)
        con.set_busy_handler(patience)
        con.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        con.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
        con.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        # Otherwise SQLite prepares again for each value that is bound to a LIMIT or a state.
        con.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for pragma in PRAGMAS:
            con.execute(pragma)
    except (apsw.Error, OncewardError) as error:
        close(con)
        raise_meant(translate_error(error, path), error)
        raise
    return con


def close(con: apsw.Connection | None) -> None:
    """Close a connection; ignore errors of the disk, because commits are in the WAL."""
    if con is not None:
        with suppress(apsw.Error), forks.opening_or_closing(), moves.of(con.filename):
            con.close(force=True)


def close_without_checkpoint(con: apsw.Connection | None) -> None:
    """Close a connection without a checkpoint: the file may have been replaced."""
    if con is not None:
        with suppress(apsw.Error):
            con.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        close(con)


def _refuse_readonly(path: Path | str) -> None:
    raise ReadOnlyStore(f"{path} is read-only: fix its permissions and those of its folder")


def enable_wal(
    con: apsw.Connection,
    *,
    full: bool,
    checkpoint_pages: int,
    patience: Callable[[int], bool] = lambda _: False,
) -> None:
    """Set journal mode, sync level and checkpointing as the durability class requires."""
    mode = _to_wal(con, patience)
    if mode != "wal":
        msg = f"journal mode is {mode}, not WAL: close other connections, or use a local disk"
        raise StoreError(msg)
    con.pragma("synchronous", "full" if full else "normal")
    if sys.platform == "darwin":
        con.pragma("fullfsync", 1)
        con.pragma("checkpoint_fullfsync", 1)
    con.wal_autocheckpoint(checkpoint_pages)


def _to_wal(con: apsw.Connection, patience: Callable[[int], bool]) -> str:
    """Switch to WAL, asking *patience*: SQLite calls no busy handler while it opens a new file."""
    calls = 0
    while True:
        try:
            return str(con.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if not patience(calls):
                raise
            calls += 1


JITTER: Final = random.Random()  # noqa: S311 - not a secret; one for all files, as its state is large


class BusyHandler:
    """
    A busy handler: waits random, growing times of at most about 20 ms, until one deadline.

    With SQLite's own timeout one of sixteen writers starves; with a random wait it does not.
    """

    LONGEST: Final = 0.02

    def __init__(self) -> None:
        self.deadline = 0.0

    def __call__(self, calls: int) -> bool:
        """Wait briefly and return True; return False once the deadline has passed."""
        left = self.deadline - monotonic()
        if left <= 0:
            return False
        time.sleep(
            min(left, (0.5 + JITTER.random()) * min(self.LONGEST, 0.0002 * 1.6 ** min(calls, 20)))
        )
        return True


def may_be_damage(error: BaseException) -> bool:
    """Return whether a damaged value of another type may have caused an error."""
    return isinstance(error, UNTYPED) and not isinstance(error, OncewardError)


def has_columns(cursor: apsw.Cursor) -> bool:
    """Return whether a statement reads; a comment after the last semicolon does not."""
    try:
        return bool(cursor.get_description())
    except apsw.ExecutionCompleteError:
        return False


def execute_reading(
    execute: Callable[..., T], sql: str, bindings: Any = None, *, within: float
) -> T:
    """
    Run a reading statement by *execute* of a connection, again while others change the schema.

    SQLite prepares a statement again by itself, and gives up after some changes. As other writers
    are what it waits for, *within* is the seconds for which it is repeated.
    """
    patience: BusyHandler | None = None
    calls = 0
    while True:
        try:
            return execute(sql, bindings)
        except apsw.SchemaChangeError:
            if patience is None:
                patience = BusyHandler()
                patience.deadline = monotonic() + within
            if not patience(calls):
                raise
            calls += 1


def translate_error(error: BaseException, path: Path | str = "") -> BaseException:
    """Return the error of ours for a foreign error; return other errors unchanged."""
    match error:
        case OncewardError():
            return error
        case apsw.BusyError() | apsw.LockedError() | apsw.SchemaChangeError():
            return _busy(error, path)
        case apsw.FullError():
            return DiskFull(
                f"{path}: disk or quota is full; nothing was written, free space and try again"
            )
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreCorrupt(
                f"{path}: {error}; the file was not changed: restore a backup or recover a copy"
            )
        case UnicodeDecodeError():
            return StoreCorrupt(
                f"{path}: text that is not UTF-8 ({error.reason}); recover a copy of the file"
            )
        case UnicodeEncodeError() if error.reason == SURROGATES:
            return InvalidArgument(
                f"text {quoted(error.object)} holds half a surrogate pair, which is not a "
                "character: nothing was written"
            )
        case (
            apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError()
        ):
            return _not_opened(error, path)
        case (
            apsw.IOError()
            | apsw.NoMemError()
            | apsw.ProtocolError()
            | apsw.ConnectionClosedError()
            | apsw.CursorClosedError()
        ):
            return StoreFault(f"{path}: {error}; nothing was written, check the disk and try again")
        case apsw.ConstraintError() if MARK in str(error):
            return _raised(str(error).partition(MARK)[2])
    return error


def _busy(error: apsw.Error, path: Path | str) -> Busy:
    """Return the error for a file that other writers hold, or whose schema they change."""
    did = "held the file for the whole deadline"
    if isinstance(error, apsw.SchemaChangeError):
        did = "kept changing the schema for the whole deadline"
    return Busy(f"{path}: other writers {did}; nothing was written, try again")


def _not_opened(error: apsw.Error, path: Path | str) -> OncewardError:
    """Return the error for a file that cannot be opened or written: a limit or permissions."""
    if isinstance(error, apsw.CantOpenError) and not descriptors_left():
        return StoreFault(
            f"{path}: this process has reached its limit of {files_limit()} open files:"
            " raise its limit (ulimit -n), or open fewer files; nothing was written"
        )
    if isinstance(error, apsw.CantOpenError) and len(os.fsencode(path)) > LONGEST_PATH:
        return InvalidArgument(
            f"{path}: the path has {len(os.fsencode(path))} bytes, and SQLite opens at most"
            f" {LONGEST_PATH}: use a shorter one, such as a folder nearer to the root"
        )
    if isinstance(error, apsw.CantOpenError) and path and not Path(path).exists():
        return StoreFault(
            f"{path} is no longer there; nothing was written. Move the file back, or restore a"
            " backup and restart this process"
        )
    return ReadOnlyStore(f"{path}: {error}; check permissions of the file and its folder")


def raise_meant(meant: BaseException, error: BaseException) -> None:
    """
    Raise the error of ours for a foreign one; do nothing if it is that error.

    As its own cause it would be an endless chain, which also keeps its frames.
    """
    if meant is not error:
        raise meant from error


def translate_own_error(error: BaseException, path: Path | str = "") -> BaseException:
    """Return the error for a failed statement of ours, which means that the schema is damaged."""
    if isinstance(error, apsw.SQLError):
        return StoreCorrupt(
            f"{path}: {error}; its schema was altered: restore a backup or recover a copy"
        )
    meant = translate_error(error, path)
    if not isinstance(meant, apsw.ConstraintError):
        return meant
    if "UNIQUE constraint failed: _onceward_" in str(meant):
        return _stored_before(meant)
    return schema_damage(meant)


def _stored_before(error: apsw.ConstraintError) -> OncewardError:
    """Return the error for a row of ours that already exists."""
    if any(column in str(error) for column in ENDED_ONCE):
        return LeaseLost(
            f"{error}: another worker has already ended the message; nothing was written"
        )
    return StoreError(
        f"{error}: another writer has already stored this row; nothing was written, read the "
        "stored row"
    )


def schema_damage(error: apsw.ConstraintError) -> BaseException:
    """Return StoreCorrupt if a constraint refuses a row of ours: the file is damaged."""
    if not any(text in str(error) for text in REFUSALS):
        return error
    return StoreCorrupt(
        f"{error}: a row or the schema was altered; the file was not changed: "
        "restore a backup or recover a copy"
    )


def _raised(code: str) -> OncewardError:
    if code == "taken_over":
        return TakenOver(f"{Hint.TAKEN_OVER}; nothing was written")
    if code == "paused":
        return Paused(f"the file is paused: {Hint.RESUME}; nothing was written")
    if code == "queue_full":
        return OutboxLimit(
            "max_pending messages already wait in the outbox; nothing was written, wait until some"
            " are delivered"
        )
    if code == "store_full":
        return FileLimit(
            "the file has reached its limit of active messages; nothing was written, wait until "
            "some are settled"
        )
    if code.endswith("_full"):
        return OutboxLimit(
            f"the limit of the {code.removesuffix('_full')} is reached; nothing was written,"
            " wait until some of it is settled"
        )
    return InvalidMessage(f"refused by the schema: {code}")


def is_connected_to(con: apsw.Connection, path: Path) -> bool:
    """Return whether *con*, a connection of this process, has *path* open."""
    while True:
        try:
            return _is_same(con.filename, path)
        except apsw.ThreadingViolationError:
            time.sleep(0.001)  # another thread is running a statement on it
        except apsw.ConnectionClosedError:
            return False


def _is_same(name: str, path: Path) -> bool:
    """Return whether SQLite's name of a file, whose links it has resolved, means *path*."""
    return Path(name).name == path.name and canonical(name) == path
