"""
Write parcels into the recipient's file, which stays open; the recipient need not be running.

If a sender cycles through more files than may be open, or warm, closing the least recently used one
would make every file cold. So a file is closed for another one only if that one was used again
before it; otherwise the new file is closed itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from threading import Condition, Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.deliver.transport import Accept, Features
from onceward.core.run.threads import engine_threads
from onceward.errors import (
    ForeignHandle,
    InvalidArgument,
    OncewardError,
    OutOfDescriptors,
    Refused,
    Unreachable,
    WrongAgent,
)
from onceward.file import foreign_library, forks, open_files
from onceward.file.file_checks import DESCRIPTORS, FileKey, descriptors_left, file_key, files_limit
from onceward.message.clock import monotonic
from onceward.message.error_text import error_text
from onceward.message.parcel import Answer, Parcel

if TYPE_CHECKING:
    from onceward.transports.worker_connections import WorkerConnections

OPEN_MAX: Final = 1024
"""Maximum files that are kept open for deliveries."""
SHARE: Final = 2
"""All such files together use at most this fraction (1/n) of RLIMIT_NOFILE."""
KEPT: Final = 128
"""Number of files that stay open even if idle."""
IDLE: Final = 60.0
"""Seconds after which an idle file is closed if more than those are open."""
WAIT: Final = 10.0
"""Maximum seconds to wait for an idle file."""

WARM: Final = 128
"""Number of files that keep their schema in memory; others free it after each delivery."""


class Opened(NamedTuple):
    """Functions that deliver a parcel to an open file, close it, and free its memory."""

    accept: Accept
    close: Callable[[], None]
    rest: Callable[[], None] = lambda: None


Key = tuple[object, str]
"""The transport that opened a file, and its path."""


@dataclass(slots=True, eq=False)
class Slot:
    """An open file, and how many deliveries use it."""

    opened: Opened
    users: int = 1
    uses: int = 1
    idle_since: float = 0.0
    """Time of the monotonic clock at which its last use ended."""
    stale: bool = False
    """Whether to close it once it is idle, because of an error or a move."""

    def retire(self) -> bool:
        """Mark it to be closed by its last user; return whether there is none."""
        self.stale = True
        return self.users == 0


class FileSlots:
    """The files that are open for deliveries, least recently used first; closed when needed."""

    def __init__(self) -> None:
        self._slots: OrderedDict[Key, Slot] = OrderedDict()
        self._warm: OrderedDict[Slot, None] = OrderedDict()
        """The files that keep their schema, most recently used last."""
        self._closed: OrderedDict[Key, float] = OrderedDict()
        """When the last ``OPEN_MAX`` evicted files were last used."""
        self._lock = Lock()
        self._changed, self._waiting = Condition(self._lock), 0
        self._count = 0
        """Number of files that are open or being opened, including stale ones."""

    def lend(self, key: Key, open_file: Callable[[], Opened]) -> Slot:
        """
        Return the file of *key*, opened if necessary; it stays open until it is released.

        Raises:
            OutOfDescriptors: this process has reached its limit of open files.

        """
        with self._lock:
            slot = self._slots.get(key)
            if slot is not None:
                slot.users += 1
                slot.uses += 1
                self._slots.move_to_end(key)
                return slot
        return self._add(key, open_file)

    def give_back(self, slot: Slot) -> None:
        """End the use of a file."""
        with self._lock:
            slot.users -= 1
            before, slot.idle_since = slot.idle_since, monotonic()
            close = slot.stale and slot.users == 0
            cold = None if slot.stale else self._cooled_by(slot, before)
            if self._waiting:
                self._changed.notify()
        if close:
            self._close(slot)
        if cold is not None:
            with suppress(OncewardError):  # the next delivery gets the error
                cold.opened.rest()

    def _cooled_by(self, slot: Slot, before: float) -> Slot | None:
        """Return the idle file that must free its schema after the use of *slot*, if any."""
        oldest = None
        if slot not in self._warm and len(self._warm) >= WARM:
            oldest = next(iter(self._warm))
            if before <= oldest.idle_since:
                return None if slot.users else slot  # freeing the most recent one is quickest
            del self._warm[oldest]
        self._warm[slot] = None
        self._warm.move_to_end(slot)
        return None if oldest is None or oldest.users or oldest.stale else oldest

    def paths(self, owner: object) -> list[str]:
        """Return the paths of the open files of one transport."""
        with self._lock:
            return [path for of, path in self._slots if of is owner]

    def forget(self, key: Key) -> None:
        """Close a file, or mark it to be closed by its last user."""
        with self._lock:
            slot = self._slots.pop(key, None)
            idle = slot is not None and slot.retire()
        if slot is not None and idle:
            self._close(slot)

    def leave(self, file: FileKey) -> None:
        """Close a file for all transports, or mark it to be closed by its last user."""
        with self._lock:
            keys = list(self._slots)
        for key in keys:
            if file_key(key[1]) == file:
                self.forget(key)

    def shed(self) -> None:
        """Close every idle file."""
        self._close_beyond(0, lambda _: True)

    def close_idle(self, now: float) -> int:
        """Close the files beyond ``KEPT`` that have been idle for ``IDLE`` seconds; count them."""
        return self._close_beyond(KEPT, lambda slot: now - slot.idle_since >= IDLE)

    def _close_beyond(self, kept: int, wanted: Callable[[Slot], bool]) -> int:
        """Close the *wanted* idle files, except the *kept* most recently used ones."""
        with self._lock:
            spare = islice(self._slots.items(), max(0, len(self._slots) - kept))
            keys = [key for key, slot in spare if not slot.users and wanted(slot)]
            idle = [self._slots.pop(key) for key in keys]
        for slot in idle:
            self._close(slot)
        return len(idle)

    def leave_to_the_parent(self) -> None:
        """Forget all files in a forked child, which must not close them."""
        self.__init__()  # type: ignore[misc]

    def _add(self, key: Key, open_file: Callable[[], Opened]) -> Slot:
        self._reserve(key)
        try:
            opened = self._open_or_shed(open_file)
        except BaseException:
            self._release()
            raise
        slot = Slot(opened)
        with self._lock:
            twin = self._slots.pop(key, None)  # another thread opened it at the same time
            idle = twin is not None and twin.retire()
            self._slots[key] = slot
        if twin is not None and idle:
            self._close(twin)
        return slot

    def _reserve(self, key: Key) -> None:
        """Count one more file, after closing an idle one if necessary."""
        deadline = monotonic() + WAIT
        while True:
            with self._lock:
                if self._count < files_allowed():
                    self._count += 1
                    return
            idle = self._least_wanted(key)
            if idle is not None:
                self._close(idle)
                continue
            if not self._wait(deadline - monotonic()):
                why = f"{self._count} files are open and in use"
                raise _out(why)

    def _wait(self, seconds: float) -> bool:
        """Wait until a file is idle or closed; return whether that happened in time."""
        with self._lock:
            if self._count < files_allowed() or any(not s.users for s in self._slots.values()):
                return True
            self._waiting += 1
            try:
                return self._changed.wait(max(0.0, seconds))
            finally:
                self._waiting -= 1

    def _least_wanted(self, wanted: Key) -> Slot | None:
        """
        Remove and return the idle file to close for *wanted*; None if all are in use.

        It is the one idle for longest if *wanted* was used since, or if all others were used more
        than once; otherwise the newest that was used once.
        """
        with self._lock:
            oldest = next((key for key, slot in self._slots.items() if not slot.users), None)
            if oldest is None:
                return None
            used_at = self._closed.pop(wanted, 0.0)
            if used_at <= self._slots[oldest].idle_since:
                slots = reversed(self._slots.items())
                once = (key for key, slot in slots if not slot.users and slot.uses == 1)
                oldest = next(once, oldest)
            slot = self._slots.pop(oldest)
            self._closed[oldest] = slot.idle_since
            if len(self._closed) > OPEN_MAX:
                self._closed.popitem(last=False)
            return slot

    def _open_or_shed(self, open_file: Callable[[], Opened]) -> Opened:
        try:
            return open_file()
        except (OncewardError, OSError):
            if descriptors_left():
                raise
        self.shed()
        try:
            return open_file()
        except (OncewardError, OSError) as error:
            if descriptors_left():
                raise
            raise _out(str(error)) from error

    def _close(self, slot: Slot) -> None:
        try:
            with suppress(OncewardError):
                slot.opened.close()
        finally:
            self._release(slot)

    def _release(self, slot: Slot | None = None) -> None:
        with self._lock:
            if slot is not None:
                self._warm.pop(slot, None)
            self._count -= 1
            self._changed.notify()


def files_allowed() -> int:
    """Return the maximum number of files that this process may have open for deliveries."""
    return max(1, min(OPEN_MAX, files_limit() // (SHARE * DESCRIPTORS)))


def _out(why: str) -> OutOfDescriptors:
    return OutOfDescriptors(
        f"this process cannot open another file ({why}): raise its limit (ulimit -n)"
    )


slots: Final = FileSlots()
"""The files of all file transports of this process."""
foreign_library.releasing.append(slots.leave)

forks.in_child(slots.leave_to_the_parent)

SCHEME: Final = "file:"


@cache
def worker_connections() -> WorkerConnections:
    """Return the connections to processes with workers, imported for the first parcel to one."""
    from onceward.transports.worker_connections import connections  # noqa: PLC0415 - as above

    return connections


class FileTransport:
    """
    Commits each parcel in one transaction of the recipient's file, which stays open.

    If another process runs a worker of that file, it commits a small parcel: see ``worker_socket``.

    The peer's file is opened with the peer's own durability and open barrier, so a receipt means
    the same from any process.
    """

    features = Features(schemes=frozenset({"file"}))

    def __init__(
        self,
        open_file: Callable[[Path, str], Opened],
        *,
        vfs: str = "",
        patience: float = WAIT,
    ) -> None:
        self._open_file, self._threads = open_file, engine_threads()
        self._vfs, self._patience = vfs, patience

    def check(self, url: str) -> None:
        """Raise InvalidArgument for a url without an absolute path."""
        path = url.removeprefix(SCHEME)
        if not Path(path).is_absolute() or "\0" in path:
            raise InvalidArgument(f"{url!r} has no absolute path: write file:/folder/agent.db")

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Commit the parcel into the file at *url*.

        Raises:
            Unreachable: there is no such file yet, or other processes hold its lock.
            Refused: the file belongs to another agent or cannot be used.
            OutOfDescriptors: this process has too many files open; the peer is not at fault.
            ForeignHandle: another library uses the file in this process.

        """
        path = url.removeprefix(SCHEME)
        key = file_key(path)
        if key is None:
            slots.forget((self, path))
            raise Unreachable(f"no file {path}: its agent has not been created yet")
        here = open_files.files.get((key, self._vfs))
        if here is None or not here.receivers:
            answer = worker_connections().push(key, parcel, self._patience)
            if answer is not None:
                return answer
        try:
            slot = slots.lend((self, path), partial(self._opened, path, parcel.recipient))
            try:
                self._threads.hold_wakes()  # a woken worker would compete with the end of this call
                return slot.opened.accept(parcel)
            finally:
                slots.give_back(slot)
                self._threads.wake_held()
        except (Refused, Unreachable, OutOfDescriptors):
            raise
        except ForeignHandle:
            if (key := file_key(path)) is not None and not foreign_library.has(path):
                until = monotonic() + foreign_library.SEEN_FOR
                foreign_library.note(path, key, until)
            raise
        except WrongAgent as error:
            raise Refused(str(error)) from error
        except OncewardError as error:
            slots.forget((self, path))
            if not descriptors_left():
                slots.shed()
                raise OutOfDescriptors(str(error)) from error
            raise Unreachable(error_text(error)) from error

    def _opened(self, path: str, agent: str) -> Opened:
        if open_files.finds(Path(path)):
            self._forget_moved()
        return self._open_file(Path(path), agent)

    def _forget_moved(self) -> None:
        """Close files whose paths no longer exist: one may be the same file under its old name."""
        for path in slots.paths(self):
            if file_key(path) is None:
                slots.forget((self, path))

    def close(self) -> None:
        """Close every file that was opened for deliveries, and connections that are idle."""
        if worker_connections.cache_info().currsize:
            worker_connections().close_idle()
        for path in slots.paths(self):
            slots.forget((self, path))
