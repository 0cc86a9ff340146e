"""
Take from a forked child what belongs to its parent: connections, transactions, locks, sockets.

POSIX locks belong to a process, but SQLite's memory is copied: a connection of the child believes
that it has the locks of its parent. So the child closes all of them, without a checkpoint, before
it runs other code; then it may open files as any process. Two kinds of connection cannot be closed.
A write transaction would be rolled back in memory that the parent shares: its file cannot be opened
in the child. And a thread that the child lacks may be inside SQLite, with mutexes that stay locked:
such a child can open no file. Both are rare, because threads leave SQLite before a fork, for at
most ``PATIENCE``. A fork waits as long for a thread that imports a module, or builds or uses a
model of pydantic: the child would wait for that thread when it does the same.

Nothing here runs while a program does not fork.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock, current_thread, get_ident
from threading import enumerate as running_threads
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakKeyDictionary, ref

import apsw

from onceward.errors import ForkedProcess
from onceward.message.clock import monotonic
from onceward.message.validating import validating

PATIENCE: Final = 2.0
"""Maximum seconds that a fork waits for threads to leave SQLite."""
LOOK: Final = 0.001
"""Seconds between two looks whether they have."""
FORKED: Final = (
    "this postbox was opened before fork(): "
    "open it in processes started by spawn, or fork before opening"
)
INSIDE: Final = (
    "{}: a thread of the parent process used SQLite during fork(), so this child can open no "
    "file: start processes by spawn or forkserver, or fork before threads are started"
)
L = TypeVar("L", Lock, RLock)
Later = Callable[[Callable[[], object]], object]
"""Takes a call that the parent makes after a fork."""

count = 0
"""Number of forks between the first process and this one: it changes in the child."""
lost: Final = set[tuple[int, int]]()
"""Device and inode of each file of the parent that this process cannot open."""
_connections: Final = WeakKeyDictionary[apsw.Connection, Path]()
"""The connections that this process has opened."""
_inside: Final = list[int]()
"""The threads that now open or close a connection."""
_stuck = False
"""Whether a thread was inside SQLite at a fork that led to this process."""
_holders: Final = set[int]()
"""The threads about to fork that keep others from building models of pydantic."""
_locks: Final = set[ref[Any]]()
_before: Final = list[Callable[[float, Later], object]]()
_in_child: Final = list[Callable[[], object]]()
_after: Final = dict[int, list[Callable[[], object]]]()
"""For each thread that is about to fork, the calls to make afterwards."""
forking: Final = _after.keys()
"""The threads that are about to fork; others ``pause`` before they use SQLite."""


def new_lock() -> Lock:
    """Return a lock that is free in a forked child."""
    return _free_in_child(Lock())


def new_rlock() -> RLock:
    """Return a reentrant lock that is free in a forked child, unless the forking thread has it."""
    return _free_in_child(RLock())


def _free_in_child(lock: L) -> L:
    _locks.add(ref(lock, _locks.discard))
    return lock


def before(hold: Callable[[float, Later], object]) -> None:
    """
    Call *hold* before each fork, to keep other threads from using SQLite.

    Its arguments are the time at which it must give up, and a function that takes what it must undo
    in the parent afterwards.
    """
    _before.append(hold)


def in_child(leave: Callable[[], object]) -> None:
    """Call *leave* in each forked child, after its connections were closed."""
    _in_child.append(leave)


def adopt(con: apsw.Connection, path: Path) -> None:
    """Close a connection in forked children."""
    _connections[con] = path


@contextmanager
def opening_or_closing() -> Iterator[None]:
    """Mark this thread as inside SQLite for a block: no connection shows that it is."""
    if forking:
        pause()
    _inside.append(get_ident())
    try:
        yield
    finally:
        _inside.remove(get_ident())


def pause() -> None:
    """Let another thread fork before this one uses SQLite; for at most ``PATIENCE``."""
    until = monotonic() + PATIENCE
    while forking and get_ident() not in forking and monotonic() < until:
        time.sleep(LOOK)


def refuse_if_stuck(path: Path) -> None:
    """Raise ForkedProcess if SQLite cannot be used in this process: a call might never return."""
    if _stuck:
        raise ForkedProcess(INSIDE.format(path))


def leave_if_forked(since: int, error: BaseException) -> None:
    """End this process as ``leave`` does if it was forked since the count was *since*."""
    if count != since:
        leave(error)


def leave(error: BaseException | None = None) -> NoReturn:
    """
    End a child that returns, or raises *error*, to code which runs for its parent.

    It ends as a program does: with the code of a SystemExit, or after a traceback with 1, once its
    own threads have ended. Exit functions were registered by the parent, and are not called.
    """
    said = error.code if isinstance(error, SystemExit) else error
    status = said if isinstance(said, int) else int(said is not None)
    try:
        if error is said and error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        elif status != said and said is not None:
            print(said, file=sys.stderr)  # noqa: T201 - as the interpreter does
        for thread in running_threads():
            if not (thread.daemon or thread is current_thread()):
                thread.join()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def _is_quiet() -> bool:
    """Return whether no other thread is inside SQLite, through any connection of this process."""
    return all(each == get_ident() for each in _inside) and all(map(_is_idle, apsw.connections()))


def _is_idle(con: apsw.Connection) -> bool:
    try:
        con.in_transaction  # noqa: B018 - asked for its error
    except apsw.ThreadingViolationError:
        return False
    except apsw.Error:  # it is closed
        pass
    return True


def _wait() -> None:
    """Wait until no thread is inside SQLite, and keep them outside."""
    if not _connections:
        return
    deadline, later = monotonic() + PATIENCE, _after.setdefault(get_ident(), [])
    for hold in (_hold_builds, *_before):
        hold(deadline - PATIENCE / 5, later.append)
    while not (_is_quiet() and _imports_alone() and _validates_alone()) and monotonic() < deadline:
        time.sleep(LOOK)


def _imports_alone() -> bool:
    """Return whether no other thread imports a module, or this one does."""
    modules: dict[str, Any] = getattr(importlib._bootstrap, "_module_locks", {})
    owners = {getattr(made(), "owner", None) for made in list(modules.values())} - {None}
    return not owners or get_ident() in owners


def _validates_alone() -> bool:
    """Return whether no other thread validates with pydantic."""
    return all(each == get_ident() for each in validating)


def _hold_builds(until: float, later: Later) -> None:
    """
    Wait until no thread builds a model of pydantic, such as that of the first frame it reads.

    The child would lack that thread, and the parts of pydantic that it was using stay locked.
    """
    lock = _builds_lock()
    if lock is None or lock._is_owned():
        return
    later(_let_build)
    if lock.acquire(timeout=max(0, until - monotonic())):
        _holders.add(get_ident())


def _let_build() -> None:
    """Let other threads build models again; a second call does nothing."""
    lock = _builds_lock()
    if get_ident() in _holders and lock._is_owned():
        lock.release()
    _holders.discard(get_ident())


def _builds_lock() -> Any:
    """Return the lock under which pydantic builds models, None if it has no such lock."""
    return getattr(sys.modules.get("pydantic.main"), "_rebuild_lock", None)


def _go_on() -> None:
    """Let the threads of the parent go on."""
    with ExitStack() as calls:
        for undo in _after.pop(get_ident(), []):
            calls.callback(undo)
            calls.callback(undo)  # the first call may be interrupted


def _leave_to_the_parent() -> None:
    """Take from a child what it inherited; end a child that keeps any of it."""
    try:
        with ExitStack() as calls:
            for each in reversed(_in_child):
                calls.callback(each)
            _take_connections()
    except BaseException as error:  # noqa: BLE001 - such as an interrupt
        leave(error)


def _take_connections() -> None:
    """Free the locks of other threads, and close all connections."""
    global count, _stuck  # noqa: PLW0603 - of the process
    count += 1
    _after.clear()
    _let_build()
    _holders.clear()
    for lock in (_builds_lock(), *(made() for made in list(_locks))):
        if lock is not None and not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()
    _stuck = _stuck or not _is_quiet()
    _inside.clear()
    validating[:] = [each for each in validating if each == get_ident()]
    for con, path in list(_connections.items()):
        if _stuck or not _let_go(con):
            _leave_open(con, path)
    _connections.clear()


def _leave_open(con: apsw.Connection, path: Path) -> None:
    """Never close an inherited connection, not even as the interpreter ends."""
    import ctypes  # noqa: PLC0415 - rarely needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(con))
    with suppress(OSError):
        found = path.stat()
        lost.add((found.st_dev, found.st_ino))


def _let_go(con: apsw.Connection) -> bool:
    """Close an inherited connection without any effect on its file; return whether that is so."""
    try:
        if con.txn_state() >= apsw.SQLITE_TXN_WRITE:
            return False
        con.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        con.close(force=True)
    except apsw.Error:
        return False
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_leave_to_the_parent)
