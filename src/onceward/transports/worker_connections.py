"""
Push parcels to the process that runs a worker of the recipient's file; else the file is used.

``push`` returns no answer if there is no such process, or it does not answer in time. The parcel
may have been accepted then: the same parcel in the file is a duplicate, which is answered with the
present states. A sender that gives up closes the connection, so that a process that was stopped
does not accept the parcel later.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from itertools import count
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
    REQUEST,
    decode_answer,
    encode_parcel,
    refuse_others,
)

FEW: Final = 8
"""Maximum messages and receipts: for more, a commit in the file costs less than the other way."""
LOOK_EVERY: Final = 0.25
"""Seconds between two looks for a process that runs a worker of a file."""
STEP: Final = 0.02
"""Seconds without an answer after which to look whether the process is stopped."""
PATIENCE: Final = 1.0
"""Maximum seconds to wait for the answer of a process that is not stopped."""
REST: Final = 10.0
"""A process that did not answer gets no parcel for this many times as long as it was waited for."""
FILES: Final = 1024
"""Maximum files that are remembered."""
KEPT: Final = 64
"""Maximum idle connections, if the limit of open files allows them."""
SHARE: Final = 16
"""Idle connections use at most this fraction (1/n) of RLIMIT_NOFILE."""
UNKNOWN: Final[tuple[str, float]] = ("", 0.0)


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
            OSError: there is no answer, or none in time; the connection cannot be used again.

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
            raise ConnectionResetError
        return outcome, found[ANSWER.size :]

    def _read(self, size: int) -> bytes:
        """Read what has arrived of the answer, after at most ``STEP`` seconds."""
        found = self._socket.recv(size)
        if not found:
            raise ConnectionResetError
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
        raise ConnectionResetError
    return int(ANSWER.size + length - len(found))


class WorkerConnections:
    """The connections of this process, and the address that serves each file."""

    def __init__(self) -> None:
        self._known: dict[FileKey, tuple[str, float]] = {}
        """The address of a file's worker; if empty, when to look for one."""
        self._idle: dict[str, list[WorkerConnection]] = {}
        self._all = WeakSet[WorkerConnection]()

    def push(self, key: FileKey, parcel: Parcel, patience: float) -> Answer | None:
        """
        Return the answer of the process that runs a worker of a file; None: use the file.

        It ends within *patience* seconds, or ``PATIENCE`` if that is less.
        """
        address, look_at = self._known.get(key, UNKNOWN)
        if len(parcel.frames) + len(parcel.receipts) > FEW or (not address and _before(look_at)):
            return None
        address = address or self._look(key)
        return self._push(key, address, parcel, patience) if address else None

    def _push(self, key: FileKey, address: str, parcel: Parcel, patience: float) -> Answer | None:
        began = monotonic()
        try:
            text = encode_parcel(parcel)
            if len(text) > LONGEST:
                return None
            connection = self._connect(address)
            try:
                outcome, told = connection.ask(key, text, min(patience, PATIENCE))
            except BaseException:  # an answer may follow: it is not for the next parcel
                connection.close()
                raise
            self._keep(connection)
            if outcome == NOT_HERE:
                self._known[key] = "", monotonic() + LOOK_EVERY
            return decode_answer(told) if outcome == ACCEPTED else None
        except (OSError, ValueError, TypeError) as error:
            log.failure(
                "debug", "the file is used", error, agent=parcel.sender, peer=parcel.recipient
            )
            self._known[key] = "", monotonic() + REST * (monotonic() - began)
            self._drop(address)
            return None

    def _look(self, key: FileKey) -> str:
        """Find the address of a process that runs a worker of a file; empty if there is none."""
        if len(self._known) >= FILES:
            self._known = {}
        address, folder = "", folder_of(key)
        if folder is not None:
            with suppress(OSError):
                links = [each for each in folder.iterdir() if each.suffix == LINK]
                address = next(filter(None, map(self._reach, links)), "")
        self._known[key] = address, monotonic() + LOOK_EVERY
        return address

    def _reach(self, link: Path) -> str:
        """Connect to the socket behind a link, and return its address; remove a dead one."""
        address = link.parent.parent / link.readlink().name
        try:
            self._keep(self._connect(str(address)))
        except (ConnectionRefusedError, FileNotFoundError):
            for dead in (address, link):
                dead.unlink(missing_ok=True)
            return ""
        except (OSError, ValueError):
            return ""
        return str(address)

    def _connect(self, address: str) -> WorkerConnection:
        with suppress(IndexError, KeyError):
            return self._idle[address].pop()
        made = WorkerConnection(address)
        self._all.add(made)
        return made

    def _keep(self, connection: WorkerConnection) -> None:
        """Keep a connection for the next parcel, unless there are too many."""
        if len(self._all) > max(1, min(KEPT, files_limit() // SHARE)):
            self.close_idle()
        self._idle.setdefault(connection.address, []).append(connection)

    def _drop(self, address: str) -> None:
        for each in self._idle.pop(address, []):
            each.close()

    def close_idle(self) -> None:
        """Close the connections that no thread uses."""
        for address in list(self._idle):
            self._drop(address)

    def leave_to_the_parent(self) -> None:
        """Close the descriptors in a forked child, and forget them."""
        for each in list(self._all):
            each.close()
        self.__init__()  # type: ignore[misc]


connections: Final = WorkerConnections()
"""Those of all file transports of this process."""
forks.in_child(connections.leave_to_the_parent)


def _before(moment: float) -> bool:
    return moment > 0.0 and monotonic() < moment
