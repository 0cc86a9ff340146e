"""
Notify engines and readers of a commit.

There are three ways, each slower than the previous one: a callback inside the process, a datagram
on a Unix socket across processes, and ``PRAGMA data_version`` if a datagram is lost. Correctness
never depends on a notification.
"""

from __future__ import annotations

import json
import math
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from onceward.file import forks, open_files
from onceward.file.file_checks import FileKey, file_key
from onceward.file.process_socket import ProcessSocket, datagram, forget_link, process_socket
from onceward.message.clock import monotonic
from onceward.message.ids import new_token

T = TypeVar("T")
Direction = Literal["out", "in"]
"""Listeners of a notification: ``out`` the dispatcher, ``in`` workers and waiting readers."""

OWED: Final = ".owed"
"""End of the name of a note in the folder of a file, see ``Notifier.ask_to_collect``."""
HAS_UNIX: Final = hasattr(socket, "AF_UNIX")
LOOKS: Final = 10
"""Number of files that are checked at the caller's interval; more are checked less often."""
LONGEST_TURN: Final = 1.0
"""Maximum seconds between two checks of a waiter, however many there are: the others may leave."""
ATTEMPTS: Final = 3
"""Times that a folder is created for a name: each of them may meet a process that closes."""
SETTLED: Final = 2_000_000_000
"""Nanoseconds after which no second change of a folder can have the same time."""


class Notifier:
    """
    The listeners of one file in this process, and the sockets of the other processes.

    The engines of a process listen for all their files on one socket, which has a link in the
    folder of each file. A thread or task that waits for one file elsewhere uses a socket of that
    file, one per direction, and reads it itself: the first one reads, and notifies the others.
    """

    def __init__(self, path: Path) -> None:
        self._listeners: dict[Direction, tuple[Callable[[], None], ...]] = {"out": (), "in": ()}
        self._lock = forks.new_lock()
        self._folder = folder_of(file_key(path))
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(
                    mode=0o700, exist_ok=True
                )  # a stat of an existing name costs less than of a missing one
        # checked after every commit without a listener in this process
        self._where = str(self._folder)
        self._seen: tuple[int, dict[Direction, tuple[str, ...]]] = (0, {"out": (), "in": ()})
        self._names: dict[Direction, str] = {}
        self._sockets: dict[Direction, socket.socket] = {}
        self._links: dict[Direction, str] = {}
        self._closed = False
        self._poll_at, self._looked_at = 0.0, -math.inf
        self._version: int | None = None
        self.arrivals = 0
        """Number of commits of this process that stored messages in the inbox."""
        self.remote_out = 0
        """Number of notices from other processes of new work for the dispatcher."""
        self.on_remote_out: Callable[[], None] = lambda: None
        """Called before the listeners when another process has new work for the dispatcher."""

    def notify(self, side: Direction) -> None:
        """Notify the listeners of *side* in all processes; never blocks, never raises."""
        local = self._listeners[side]
        for tell in local:
            tell()
        if side == "in" or not local:
            self.notify_others(side)

    def notify_arrival(self) -> None:
        """Notify readers and workers of a commit that stored messages in the inbox."""
        self.arrivals += 1
        for tell in self._listeners["in"]:
            tell()
        self.notify_others("in")

    def notify_others(self, side: Direction) -> None:
        """Notify the listeners of *side* in all other processes; never blocks, never raises."""
        if self._folder is None:
            return
        try:
            changed = os.stat(self._where).st_mtime_ns
        except OSError:
            return
        if changed != self._seen[0]:
            self._list_others(changed)
        if names := self._seen[1][side]:
            _send(names)

    def ask_to_collect(self, path: Path, agent: str) -> None:
        """Have a process of this file's agent collect what *agent*, in *path*, has for it."""
        with suppress(OSError):
            if self._folder is not None and (key := file_key(path)) is not None:
                note = self._folder / f"{key[0]:x}-{key[1]:x}{OWED}"
                add_to(self._folder, partial(_write, note, json.dumps([agent, str(path)])))
        self.notify_others("out")

    def to_collect(self) -> list[Owed]:
        """Return what other agents have for this file's agent and cannot deliver."""
        found = list[Owed]()
        if self._folder is not None:
            with suppress(OSError):
                for name in os.listdir(self._where):
                    if name.endswith(OWED):
                        found += _owed(self._folder / name)
        return found

    def is_heard(self, side: Direction) -> bool:
        """Return whether a listener of *side* waits in this process or another."""
        if self._listeners[side]:
            return True
        if self._folder is None:
            return False
        with suppress(OSError):  # as notify_others, which makes no call more than it must
            changed = os.stat(self._where).st_mtime_ns
            if changed != self._seen[0]:
                self._list_others(changed)
        return bool(self._seen[1][side])

    def notify_local(self, sides: Iterable[Direction] = ("out", "in")) -> None:
        """Notify the listeners of *sides* in this process."""
        for side in sides:
            for tell in self._listeners[side]:
                tell()

    def listen(self, side: Direction, tell: Callable[[], None]) -> Callable[[], None]:
        """Call *tell* whenever *side* may have something new; return the function that ends it."""
        with self._lock:
            self._listeners[side] = (*self._listeners[side], tell)
            if not (side in self._sockets or side in self._links or self._closed):
                self._bind(side)

        def stop() -> None:
            with self._lock:
                self._listeners[side] = tuple(
                    known for known in self._listeners[side] if known is not tell
                )

        return stop

    def share(self, side: Direction) -> ProcessSocket | None:
        """
        Listen for *side* on the socket of this process until the file is closed.

        Return that socket, or None: then only polling finds the commits of other processes.
        """
        with self._lock:
            if self._folder is None or self._closed:
                return None
            found = process_socket(self._folder.parent)
            if found is not None and side not in self._links:
                name = self._links[side] = self._name(side)
                with suppress(OSError):  # no space: polling finds the commits
                    heard = partial(self._heard, side)
                    add_to(self._folder, partial(found.link, Path(name), heard))
            return found

    def fileno(self, side: Direction) -> int:
        """Return the descriptor of the file's own socket, readable when ``hear`` is due; or -1."""
        sock = self._sockets.get(side)
        return -1 if sock is None else sock.fileno()

    def hear(self, side: Direction) -> None:
        """
        Read the notices of other processes, and notify the listeners in this one.

        If several threads see the same datagram, the one that reads it notifies all.
        """
        heard = False
        with suppress(OSError, KeyError):
            while self._sockets[side].recv(64):
                heard = True
        if heard:
            self._heard(side)

    def _heard(self, side: Direction) -> None:
        if side == "out":
            self.remote_out += 1
            self.on_remote_out()
        self.notify_local((side,))

    def next_poll(self, every: float) -> float:
        """
        Return when the caller must ``look`` next, so that all callers look in turn.

        Each look wakes a thread, so a process with more than ``LOOKS`` files checks each of them
        less often: once in ``LONGEST_TURN`` seconds or in *every*, whichever is longer.
        """
        every = max(every, min(every * len(open_files.files) / LOOKS, LONGEST_TURN))
        with self._lock:
            now, count = monotonic(), sum(map(len, self._listeners.values()))
            most = max(every, min(every * count, LONGEST_TURN))
            self._poll_at = min(max(now, self._poll_at) + every, now + most)
            return self._poll_at

    def is_due(self, every: float) -> bool:
        """Return whether to check the file now: not if another waiter has just checked it."""
        with self._lock:
            now = monotonic()
            due = now - self._looked_at >= every / 2
            if due:
                self._looked_at = now
            return due

    def begin(self, version: Callable[[], int]) -> None:
        """Note the file's version if none is known, for a listener that has read nothing yet."""
        if self._version is None:
            with suppress(Exception):  # users of the file get its error
                self._version = version()

    def look(self, version: Callable[[], int]) -> None:
        """
        Notify this process's listeners if the file has changed since the last look.

        The first look notifies them too: they may have read the file before a commit that the
        version already counts.
        """
        with suppress(Exception):  # users of the file get its error
            number = version()
            known, self._version = self._version, number
            if known != number:
                self.notify_local()

    def renumber(self, before: int, now: int) -> None:
        """Give the version that was seen the number by which another connection counts it."""
        if self._version == before:
            self._version = now

    def close(self) -> None:
        """
        Notify all listeners a last time, and remove this process's sockets and links.

        The last process to close the file removes the folder, too.
        """
        self.notify_local()
        with self._lock:
            self._closed, self._listeners = True, {"out": (), "in": ()}
            for sock in self._sockets.values():
                sock.close()
            names = [*self._names.values(), *self._links.values()]
            self._names, self._links, self._sockets = {}, {}, {}
        for name in names:
            forget_link(os.path.basename(name))
            with suppress(OSError):
                os.unlink(name)
        if self._folder is not None:
            with suppress(OSError):  # others listen, or have left a note
                self._folder.rmdir()

    def leave_to_the_parent(self) -> None:
        """Close the sockets in a forked child: notices to a parent that has ended must fail."""
        for sock in self._sockets.values():
            sock.close()
        self._closed, self._folder = True, None
        self._listeners, self._sockets, self._links = {"out": (), "in": ()}, {}, {}

    def _bind(self, side: Direction) -> None:
        """Bind this process's socket of *side*, if the platform has one."""
        if self._folder is None:
            return
        name = self._names[side] = self._name(side)  # remembered before any listing can contain it
        with suppress(OSError):  # no descriptor or no space is left: pollers check by themselves
            self._sockets[side] = add_to(self._folder, partial(datagram, name))

    def _name(self, side: Direction) -> str:
        return f"{self._where}/{os.getpid()}-{new_token()[:8]}.{side}"

    def _list_others(self, changed: int) -> None:
        """Remember the sockets of the other processes, as the folder lists them now."""
        with suppress(OSError):
            own = {*self._names.values(), *self._links.values()}
            names = [f"{self._where}/{name}" for name in os.listdir(self._where)]
            others = [name for name in names if name not in own]
            settled = time.time_ns() - changed > SETTLED
            self._seen = (changed if settled else 0, {
                side: tuple(name for name in others if name.endswith(f".{side}"))
                for side in self._listeners
            })  # fmt: skip


class Owed(NamedTuple):
    """A note that an agent has something for this file, and may not open it."""

    agent: str
    path: Path
    """File of the agent."""
    note: Path
    written_at: int

    def done(self) -> None:
        """Remove the note, unless it was written again: there is more since."""
        with suppress(OSError):
            if self.note.stat().st_mtime_ns == self.written_at:
                self.note.unlink()


def _owed(note: Path) -> list[Owed]:
    """Read a note; return nothing for one that has been removed or is not ours."""
    try:
        written_at = note.stat().st_mtime_ns
        agent, path = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return []
    return [Owed(str(agent), Path(str(path)), note, written_at)]


def _send(names: Iterable[str]) -> None:
    """Send to each socket; unlink those of dead processes, and links to them."""
    sender = _sender()
    if sender is None:
        return
    for name in names:
        try:
            sender.sendto(os.path.basename(name).encode(), name)
        except (ConnectionRefusedError, FileNotFoundError):
            for dead in {os.path.realpath(name), name}:
                with suppress(OSError):
                    os.unlink(dead)
        except OSError:
            continue  # its queue is full, or the system is short of memory: it polls anyway


_senders: list[socket.socket] = []


def _sender() -> socket.socket | None:
    """Return the socket from which this process notifies others, for all files, or None."""
    if not _senders:
        with suppress(OSError):  # no descriptor is left: pollers check by themselves
            _senders.append(datagram())
    return _senders[0] if _senders else None


def add_to(folder: Path, add: Callable[[], T]) -> T:
    """
    Call *add*, which adds a name to the folder of a file; create the folder if need be.

    Another process that closes the file may remove the empty folder in between: then once more.
    """
    for _ in range(ATTEMPTS):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return add()
    raise FileNotFoundError(f"{folder} is removed again and again")


def _write(note: Path, text: str) -> None:
    """Write a note whole or not at all."""
    begun = note.with_name(new_token())
    begun.write_text(text, encoding="utf-8")
    begun.replace(note)


def folder_of(key: FileKey | None) -> Path | None:
    """Return the folder that lists the listeners of a file; None if there can be none."""
    if not HAS_UNIX or key is None:
        return None
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or _temporary()) / f"onceward-{os.getuid()}"
    with suppress(OSError):
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
        if (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.getuid()
            and not found.st_mode & 0o077
        ):
            return base / f"{key[0]:x}-{key[1]:x}"
    return None


def _temporary() -> str:
    import tempfile  # noqa: PLC0415 - it loads all compression libraries

    return tempfile.gettempdir()
