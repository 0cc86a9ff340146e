"""
Push parcels to the process that runs a worker of the recipient's file; else the file is used.

``push`` returns no answer if there is no such process, or it does not answer in time. The parcel
may have been accepted then: the same parcel in the file is a duplicate, which is answered with the
present states. A sender that gives up closes the connection, so that a process that was stopped
does not accept the parcel later.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Final
from weakref import WeakSet

from onceward.file import forks
from onceward.file.file_checks import FileKey, files_limit, is_stopped
from onceward.file.notify import folder_of
from onceward.message.clock import monotonic
from onceward.message.log import log
from onceward.message.parcel import Answer, Parcel
from onceward.transports.worker_wire import (
    ACCEPTED,
    ANSWER,
    LINK,
    LONGEST,
    MARK,
    NOT_HERE,
    REFUSED,
    REQUEST,
    decode_answer,
    encode_parcel,
    refuse_others,
)

FEW: Final = 8
"""Maximum messages and receipts: for more, a commit in the file costs less than the other way."""
REDELIVERED: Final = attrgetter("redelivered")
"""
Whether a frame asks for the outcome of its message, which is answered by the file.

A process that commits without a sync can only give the outcome of its own class, which does not end
a message of a sender that syncs.
"""
LOOK_EVERY: Final = 0.25
"""Seconds between two looks for a process that runs a worker of a file."""
STEP: Final = 0.02
"""Seconds without an answer after which to look whether the process is stopped."""
PATIENCE: Final = 1.0
"""Maximum seconds to wait for the answer of a process that is not stopped."""
REST: Final = 10.0
"""A process that did not answer gets no parcel for this many times as long as it was waited for."""
AT_ONCE: Final = 8
"""Maximum parcels that wait for one process: one that hangs leaves carriers for the others."""
FILES: Final = 1024
"""Maximum files that are remembered."""
KEPT: Final = 64
"""Maximum idle connections, if the limit of open files allows them."""
SHARE: Final = 16
"""Idle connections use at most this fraction (1/n) of RLIMIT_NOFILE."""
UNKNOWN: Final = (None, 0.0)


class WorkerConnection:
    """A connection to the socket of a process, for one parcel at a time."""

    def __init__(self, address: str) -> None:
        self.address, self._numbers = address, count(1)
        self._pid = int(Path(address).name.partition("-")[0])
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(STEP)
            self._socket.connect(address)
            refuse_others(self._socket, self._pid)
        except BaseException:
            self.close()
            raise

    def ask(self, key: FileKey, parcel: bytes, patience: float) -> tuple[int, bytes]:
        """
        Send a parcel and return the outcome and the text of the answer.

        Raises:
            OSError: the process did not answer in time; the connection cannot be used again.

        """
        number = next(self._numbers)
        self._socket.sendall(REQUEST.pack(MARK, len(parcel), number, *key) + parcel)
        deadline, found = monotonic() + patience, b""
        while (missing := _missing(found)) > 0:
            try:
                found += self._read(missing)
            except TimeoutError:
                if monotonic() >= deadline or is_stopped(self._pid):
                    raise
        answered, outcome, _ = ANSWER.unpack_from(found)
        if answered != number:
            raise ConnectionResetError(f"request {number} got the answer to {answered}")
        return outcome, found[ANSWER.size :]

    def _read(self, size: int) -> bytes:
        """Read what has arrived of the answer, after at most ``STEP`` seconds."""
        found = self._socket.recv(size)
        if not found:
            raise ConnectionResetError("the process has ended the connection")
        return found

    def close(self) -> None:
        """Close the descriptor."""
        self._socket.close()


def _missing(found: bytes) -> int:
    """Return how many bytes of an answer may be read; raise ConnectionResetError if it is long."""
    if len(found) < ANSWER.size:
        return ANSWER.size + LONGEST
    length = ANSWER.unpack_from(found)[2]
    if length > LONGEST:
        raise ConnectionResetError("its answer is too long")
    return int(ANSWER.size + length - len(found))


class WorkerProcess:
    """A process that has workers, and the connections to it."""

    def __init__(self, address: str) -> None:
        self.address, self.rests_until = address, 0.0
        self.idle: list[WorkerConnection] = []
        self._lock, self._asked = forks.new_lock(), 0

    def ask(self, key: FileKey, parcel: bytes, patience: float) -> tuple[int, bytes]:
        """
        Send a parcel for a file; return the outcome and the text of the answer.

        Raises:
            OSError: the process did not answer in time; it gets no parcel for a while.

        """
        began = monotonic()
        if not self._begin(began):
            return REFUSED, b""
        try:
            connection = self.connect()
            try:
                answer = connection.ask(key, parcel, patience)
            except BaseException:  # an answer may follow: it is not for the next parcel
                connection.close()
                raise
            self.idle.append(connection)
        except OSError:
            now = monotonic()
            self.rests_until = now + REST * (now - began)
            raise
        finally:
            with self._lock:
                self._asked -= 1
        return answer

    def _begin(self, now: float) -> bool:
        """Count one more parcel; return False if the process rests, or has too many."""
        with self._lock:
            if now < self.rests_until or self._asked >= AT_ONCE:
                return False
            self._asked += 1
            return True

    def connect(self) -> WorkerConnection:
        """Return a connection that no other thread uses."""
        with suppress(IndexError):
            return self.idle.pop()
        made = WorkerConnection(self.address)
        _all.add(made)
        return made

    def close_idle(self) -> None:
        """Close the connections that no thread uses."""
        with suppress(IndexError):
            while True:
                self.idle.pop().close()


class WorkerConnections:
    """The processes that this one pushes to, by the files of their workers."""

    def __init__(self) -> None:
        self._known: dict[FileKey, tuple[WorkerProcess | None, float]] = {}
        """The process with a worker of a file; without one, when to look for it."""
        self._processes: dict[str, WorkerProcess] = {}
        """The processes by the addresses of their sockets."""

    def push(self, key: FileKey, parcel: Parcel, patience: float) -> Answer | None:
        """
        Return the answer of the process that runs a worker of a file; None: use the file.

        It ends within *patience* seconds, or ``PATIENCE`` if that is less.
        """
        process, look_at = self._known.get(key, UNKNOWN)
        if parcel.greeting or len(parcel.frames) + len(parcel.receipts) > FEW:
            return None
        if any(map(REDELIVERED, parcel.frames)):
            return None
        if process is None:
            process = self._look(key) if monotonic() >= look_at else None
        return None if process is None else self._push(key, process, parcel, patience)

    def _push(
        self, key: FileKey, process: WorkerProcess, parcel: Parcel, patience: float
    ) -> Answer | None:
        try:
            text = encode_parcel(parcel)
            if len(text) > LONGEST:
                return None
            outcome, told = process.ask(key, text, min(patience, PATIENCE))
            if outcome == NOT_HERE:
                self._known[key] = None, monotonic() + LOOK_EVERY
            return decode_answer(told) if outcome == ACCEPTED else None
        except (OSError, ValueError, TypeError) as error:
            to = parcel.recipient
            log.failure("debug", "the file is used", error, agent=parcel.sender, peer=to)
            self._known[key] = None, process.rests_until
            process.close_idle()
            return None

    def _look(self, key: FileKey) -> WorkerProcess | None:
        """Find a process that runs a worker of a file; another sender may find another one."""
        if len(self._known) >= FILES or len(self._processes) >= KEPT:
            self.close_idle()
            self._known, self._processes = {}, {}
        process, folder = None, folder_of(key)
        if folder is not None:
            with suppress(OSError):
                links = sorted(each for each in folder.iterdir() if each.suffix == LINK)
                first = os.getpid() % max(1, len(links))
                reached = map(self._reach, links[first:] + links[:first])
                process = next((each for each in reached if each is not None), None)
        self._known[key] = process, monotonic() + LOOK_EVERY
        return process

    def _reach(self, link: Path) -> WorkerProcess | None:
        """Return the process behind a link once it is connected; remove the link of a dead one."""
        address = link.parent.parent / link.readlink().name
        process = self._processes.setdefault(str(address), WorkerProcess(str(address)))
        try:
            process.idle.append(process.connect())
        except (ConnectionRefusedError, FileNotFoundError):
            self._processes.pop(process.address, None)
            for dead in (address, link):
                dead.unlink(missing_ok=True)
            return None
        except (OSError, ValueError):
            self._processes.pop(process.address, None)
            return None
        if len(_all) > max(1, min(KEPT, files_limit() // SHARE)):
            self.close_idle()
        return process

    def close_idle(self) -> None:
        """Close the connections that no thread uses."""
        for each in list(self._processes.values()):
            each.close_idle()

    def leave_to_the_parent(self) -> None:
        """Close the descriptors in a forked child, and forget them."""
        for each in list(_all):
            each.close()
        self.__init__()  # type: ignore[misc]


_all: Final = WeakSet[WorkerConnection]()
"""The connections of this process."""
connections: Final = WorkerConnections()
"""Those of all file transports of this process."""
forks.in_child(connections.leave_to_the_parent)
