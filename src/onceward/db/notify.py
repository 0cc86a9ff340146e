"""
Notifies engines and readers of a commit.

Three ways, each slower than the one before: a callback inside the process, a
datagram on a Unix socket across processes, and ``PRAGMA data_version`` should a
datagram get lost. A notification is never needed for correctness.
"""

from __future__ import annotations

import os
import selectors
import socket
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Final, Literal

from onceward.db.file_checks import file_key
from onceward.model.ids import new_token

Direction = Literal["out", "in"]
"""Listeners of a notification: ``out`` the dispatcher, ``in`` workers and waiting readers."""

HAS_UNIX: Final = hasattr(socket, "AF_UNIX")
WAKEUP: Final[dict[Direction, bytes]] = {"out": b"o", "in": b"i"}


class Notifier:
    """The listeners of one file in this process, and the sockets of the other processes."""

    def __init__(self, path: Path) -> None:
        self._listeners: dict[Direction, tuple[Callable[[], None], ...]] = {"out": (), "in": ()}
        self._lock = Lock()
        self._folder = _folder(path)
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(
                    mode=0o700, exist_ok=True
                )  # a look at what is there costs less than at what is not
        self._where = str(self._folder)  # looked at after every commit without a listener here
        self._seen: tuple[int, tuple[str, ...]] = (0, ())
        self._own: str | None = None
        self.on_remote_out: Callable[[], None] = lambda: None
        """Called before the listeners when another process has something for the dispatcher."""

    def notify(self, side: Direction) -> None:
        """Notify the listeners of *side* in all processes; never blocks, never raises."""
        local = self._listeners[side]
        for tell in local:
            tell()
        if side == "in" or not local:
            self._send_wakeup(side)

    def notify_local(self, sides: Iterable[Direction] = ("out", "in")) -> None:
        """Notify the listeners of *sides* in this process."""
        for side in sides:
            for tell in self._listeners[side]:
                tell()

    def listen(
        self, side: Direction, tell: Callable[[], None], *, version: Callable[[], int], poll: float
    ) -> Callable[[], None]:
        """Call *tell* whenever *side* may have something new; returns the call that ends it."""
        with self._lock:
            self._listeners[side] = (*self._listeners[side], tell)
        watcher().add(self, version, poll)

        def stop() -> None:
            with self._lock:
                self._listeners[side] = tuple(
                    known for known in self._listeners[side] if known is not tell
                )
                idle = not any(self._listeners.values())
            if idle:
                watcher().remove(self)

        return stop

    def bind(self) -> socket.socket | None:
        """Bind this process's socket and return it; None where the platform has none."""
        if self._folder is None:
            return None
        sock = _datagram()
        if sock is None:
            return None
        self._own = name = str(
            self._folder / f"{os.getpid()}-{new_token()[:8]}"
        )  # known before any listing can contain it
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sock.bind(name)
        except OSError:
            self._own = None
            sock.close()
            return None
        return sock

    def unbind(self) -> None:
        """Remove this process's socket."""
        name, self._own = self._own, None
        if name is not None:
            with suppress(OSError):
                os.unlink(name)

    def close(self) -> None:
        """Stop listening altogether."""
        watcher().remove(self)
        self._listeners = {"out": (), "in": ()}

    def _send_wakeup(self, side: Direction) -> None:
        """Send a datagram to every other process that has the file open; unlink dead sockets."""
        if self._folder is None:
            return
        try:
            changed = os.stat(self._where).st_mtime_ns
        except OSError:
            return
        if changed != self._seen[0]:
            self._list_others(changed)
        if self._seen[1]:
            self._send(WAKEUP[side])

    def _send(self, wakeup: bytes) -> None:
        sender = _sender()
        if sender is None:
            return
        for name in self._seen[1]:
            try:
                sender.sendto(wakeup, name)
            except (BlockingIOError, InterruptedError):
                continue  # its queue is full: it will look anyway
            except OSError:
                with suppress(OSError):
                    os.unlink(name)

    def _list_others(self, changed: int) -> None:
        """Remember the sockets of the other processes, as the folder lists them now."""
        with suppress(OSError):
            names = (f"{self._where}/{name}" for name in os.listdir(self._where))
            self._seen = (changed, tuple(name for name in names if name != self._own))


_senders: dict[int, socket.socket] = {}


def _sender() -> socket.socket | None:
    """Return the socket from which this process notifies others, for all files; None without."""
    found = _senders.get(os.getpid())
    if found is None:
        with suppress(OSError):  # no descriptor is left: pollers look by themselves
            made = _datagram()
            if made is not None:
                found = _senders.setdefault(os.getpid(), made)
    return found


def _datagram() -> socket.socket | None:
    if not HAS_UNIX:
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    return made


def _folder(path: Path) -> Path | None:
    key = file_key(path)
    if not HAS_UNIX or key is None:
        return None
    base = (
        Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"onceward-{os.getuid()}"
    )
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


class NotifierThread:
    """One thread per process that reads all sockets and polls all data versions."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = Lock()
        self._selector = selectors.DefaultSelector()
        self._notifiers: dict[Notifier, tuple[Callable[[], int], float]] = {}
        self._sockets: dict[Notifier, socket.socket | None] = {}
        self._versions: dict[Notifier, int] = {}
        self._wakeup_in, self._wakeup_out = socket.socketpair()
        self._wakeup_in.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        self._selector.register(self._wakeup_in, selectors.EVENT_READ, None)
        self._thread = Thread(target=self._run, name="onceward-watcher", daemon=True)
        self._thread.start()

    def add(self, notifier: Notifier, version: Callable[[], int], poll: float) -> None:
        """Watch *notifier*; a second call only shortens its polling."""
        with self._lock:
            known = self._notifiers.get(notifier)
            every = poll if known is None else _shorter(known[1], poll)
            self._notifiers[notifier] = (version, every)
            if known is None:
                self._sockets[notifier] = sock = notifier.bind()
                if sock is not None:
                    self._selector.register(sock, selectors.EVENT_READ, notifier)
        if known is None or every != known[1]:  # a needless look would wake every listener
            self._wake()

    def remove(self, notifier: Notifier) -> None:
        """Watch *notifier* no longer."""
        with self._lock:
            self._notifiers.pop(notifier, None)
            self._versions.pop(notifier, None)
            sock = self._sockets.pop(notifier, None)
            if sock is not None:
                self._selector.unregister(sock)
                sock.close()
                notifier.unbind()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            self._wakeup_out.send(b"!")

    def _run(self) -> None:
        while True:
            with self._lock:
                poll = min(
                    (every for _, every in self._notifiers.values() if every > 0), default=None
                )
            for key, _ in self._selector.select(poll):
                heard = _heard(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
                if key.data is not None:
                    if WAKEUP["out"] in heard:
                        key.data.on_remote_out()
                    key.data.notify_local(side for side in WAKEUP if WAKEUP[side] in heard)
            self._look()

    def _look(self) -> None:
        with self._lock:
            due = [
                (notifier, version)
                for notifier, (version, every) in self._notifiers.items()
                if every > 0
            ]
        for notifier, version in due:
            with suppress(Exception):  # one file's trouble must not deafen the others
                number = version()
                if self._versions.get(notifier, number) != number:
                    notifier.notify_local()
                self._versions[notifier] = number


def _heard(sock: socket.socket) -> bytes:
    found = b""
    with suppress(OSError):
        while said := sock.recv(64):
            found += said[:1]
    return found


def _shorter(one: float, other: float) -> float:
    return min(one, other) if one > 0 and other > 0 else max(one, other)


_watcher: NotifierThread | None = None
_watcher_lock = Lock()


def watcher() -> NotifierThread:
    """Return this process's watcher; a forked child gets one of its own."""
    global _watcher  # noqa: PLW0603 - one thread per process, made on first use
    with _watcher_lock:
        if _watcher is None or _watcher.pid != os.getpid():
            _watcher = NotifierThread()
        return _watcher
