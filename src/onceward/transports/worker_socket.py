"""
Accept the parcels of other processes for the files whose workers this process runs.

The process that calls the handlers also commits what arrives for them: its connection is warm, it
needs no notice, and parcels of several senders share a commit. The socket is a way, not a promise.
The order is: a whole parcel is read, accepted (which commits it), and answered. A process that is
killed, stopped or too busy at any step leaves the sender without an answer, as a lost answer does;
the sender then writes the same parcel into the file, where it is a duplicate if it was accepted.

A process has one such socket, in a folder that only its user can enter. The folder of each file's
listeners, see ``notify``, has a link to it. The waiting engine thread reads parcels and accepts
them itself; a file or a process that has too many at once refuses more, and waits for none.
"""

from __future__ import annotations

import atexit
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Condition, get_ident
from typing import Final
from weakref import WeakSet

from onceward.core.deliver.transport import Accept
from onceward.core.run.arrival import ANSWERED
from onceward.core.run.threads import engine_threads
from onceward.file import forks, open_files
from onceward.file.database import Database
from onceward.file.file_checks import FileKey, files_limit
from onceward.file.notify import HAS_UNIX, add_to, folder_of
from onceward.message.ids import new_token
from onceward.message.log import log
from onceward.message.parcel import Answer
from onceward.transports.worker_wire import (
    ACCEPTED,
    ANSWER,
    LINK,
    LONGEST,
    MARK,
    NOT_HERE,
    REFUSED,
    REQUEST,
    decode_parcel,
    encode_answer,
    refuse_others,
)

AT_ONCE: Final = 32
"""Maximum parcels that one process accepts at once: each needs a thread."""
AT_ONCE_PER_FILE: Final = 8
"""Maximum parcels for one file: one that is busy leaves threads for the others."""
CONNECTIONS: Final = 256
"""Maximum connections, if the limit of open files allows them."""
SHARE: Final = 8
"""Connections use at most this fraction (1/n) of RLIMIT_NOFILE."""
CLOSE_WITHIN: Final = 30.0
"""Maximum seconds to wait for running calls when a file is closed."""
OUT_OF_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE}


@dataclass(slots=True, eq=False)
class ServedFile:
    """An open file with workers in this process."""

    db: Database
    name: open_files.Name
    users: int = 0
    """Postboxes of this process that have workers for it."""
    calls: dict[SenderConnection, int] = field(default_factory=dict)
    """The thread of each parcel that is accepted for it; 0 before it begins."""


class SenderConnection:
    """
    A connection of a sender, which sends its next parcel after the answer to the last one.

    Its descriptor is closed under its lock, and by no other thread than the one that uses it: a
    late write would go to the file that has the number of the descriptor then.
    """

    def __init__(
        self, sock: socket.socket, take: Callable[[SenderConnection, bytes], None]
    ) -> None:
        self._socket, self._take = sock, take
        self._lock, self._read = forks.new_lock(), bytearray()
        self._answering = self.ended = False

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``hear`` is due."""
        return self._socket.fileno()

    def hear(self) -> bool:
        """
        Read what has arrived, and begin to accept a whole parcel; return that no notice is lost.

        Two threads may call it for the same bytes: the second one finds them read.
        """
        with self._lock:
            if self.ended or (self._answering and self._is_quiet()):
                return False
            if self._answering:  # the sender has given up, or does not wait for its answer
                self._end()
                return False
            whole = self._receive()
            if whole is None:
                self._end()
                self._socket.close()
            if not whole:
                return False
            self._answering, self._read = True, bytearray()
        self._take(self, whole)
        return False

    def _receive(self) -> bytes | None:
        """Return the request that has arrived, b"" for a part of one, and None at the end."""
        try:
            found = self._socket.recv(REQUEST.size + LONGEST)
        except BlockingIOError:
            return b""
        except OSError:
            return None
        self._read += found
        if not found or len(self._read) < REQUEST.size:
            return b"" if found else None
        mark, length, *_ = REQUEST.unpack_from(self._read)
        rest = REQUEST.size + length - len(self._read)
        if mark != MARK or length > LONGEST or rest < 0:
            return None
        return b"" if rest else bytes(self._read)

    def is_waited_for(self) -> bool:
        """Return whether the sender still waits for the answer: it may have used the file since."""
        with self._lock:
            return not self.ended and self._is_quiet()

    def _is_quiet(self) -> bool:
        """Return whether the connection is open, and nothing can be read."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def answer(self, text: bytes) -> None:
        """Send the answer to the parcel that was read last."""
        with self._lock:
            self._answering = False
            if not self.ended:
                try:
                    sent = self._socket.send(text)
                except OSError:
                    sent = 0
                if sent == len(text):
                    return
                self._end()
            self._socket.close()

    def _end(self) -> None:
        self.ended = True
        engine_threads().files.unpoll(self)

    def leave_to_the_parent(self) -> None:
        """Close the descriptor in a forked child, and answer nothing."""
        self.ended = True
        self._socket.close()


class ParcelSocket:
    """The socket of this process for parcels, and the files that it accepts them for."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}-{new_token()[:8]}{LINK}"
        self._served: dict[FileKey, ServedFile] = {}
        self._lock = forks.new_lock()
        self._ended = Condition(self._lock)
        self._calls = 0
        self._connections = WeakSet[SenderConnection]()
        self._spare = os.open(os.devnull, os.O_RDONLY)
        """Is closed to refuse a connection for which no descriptor is left."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            self._socket.bind(str(self.path))
            self._socket.listen()
        except OSError:
            self.close()
            raise
        engine_threads().poll(self)

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``hear`` is due."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket and its connections; its name stays."""
        self._socket.close()
        with suppress(OSError):
            os.close(self._spare)
        for each in list(self._connections):
            each.leave_to_the_parent()

    # -- files --------------------------------------------------------------------------------

    def serve(self, served: ServedFile) -> Callable[[], None]:
        """Accept parcels for a file; return the function that ends that and waits for calls."""
        key = served.name[0]
        with self._lock:
            served = self._served.setdefault(key, served)
            served.users += 1

        def stop() -> None:
            with self._ended:
                served.users -= 1
                if not served.users and self._served.get(key) is served:
                    del self._served[key]
                self._ended.wait_for(
                    lambda: set(served.calls.values()) <= {get_ident()}, CLOSE_WITHIN
                )

        return stop

    # -- connections --------------------------------------------------------------------------

    def hear(self) -> bool:
        """Accept the connections that wait; return that none is left."""
        with suppress(BlockingIOError):
            while True:
                try:
                    sock, _ = self._socket.accept()
                except ConnectionError:
                    continue
                except OSError as error:
                    if error.errno not in OUT_OF_DESCRIPTORS:
                        raise
                    self._refuse_one()
                    continue
                self._add(sock)
        return False

    def _refuse_one(self) -> None:
        """End a connection for which no descriptor is left: its sender uses the file."""
        os.close(self._spare)
        try:
            self._socket.accept()[0].close()
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _add(self, sock: socket.socket) -> None:
        most = max(1, min(CONNECTIONS, files_limit() // SHARE))
        try:
            refuse_others(sock)
        except OSError:
            most = 0
        if len(self._connections) >= most:
            sock.close()
            return
        sock.setblocking(False)  # noqa: FBT003 - as above
        connection = SenderConnection(sock, self._take)
        self._connections.add(connection)
        engine_threads().poll(connection)

    # -- parcels ------------------------------------------------------------------------------

    def _take(self, connection: SenderConnection, request: bytes) -> None:
        """Accept a parcel on a thread, if its file is served here and not too many are accepted."""
        _, _, number, *key = REQUEST.unpack_from(request)
        served, refusal = self._begin(connection, (key[0], key[1]))
        if served is None:
            connection.answer(ANSWER.pack(number, refusal, 0))
            return
        try:
            work = partial(self._accept, connection, served, request)
            engine_threads().run("onceward-parcel", work)
        except RuntimeError:  # the system starts no thread
            self._end(connection, served)
            connection.answer(ANSWER.pack(number, REFUSED, 0))

    def _begin(self, connection: SenderConnection, key: FileKey) -> tuple[ServedFile | None, int]:
        """Count one more parcel for a file; return the file, or why it is refused."""
        with self._lock:
            served = self._served.get(key)
            # a file that was replaced is open under its new key
            if served is None or open_files.files.get(served.name) is not served.db:
                return None, NOT_HERE
            if self._calls >= AT_ONCE or len(served.calls) >= AT_ONCE_PER_FILE:
                return None, REFUSED
            self._calls += 1
            served.calls[connection] = 0
            return served, REFUSED

    def _end(self, connection: SenderConnection, served: ServedFile) -> None:
        with self._lock:
            self._calls -= 1
            del served.calls[connection]
            self._ended.notify_all()

    def _accept(self, connection: SenderConnection, served: ServedFile, request: bytes) -> None:
        """
        Accept a parcel, then answer; every error leaves the parcel to its sender.

        This thread may also call the message's handler. If that takes long, the heartbeat answers.
        """
        number, first = REQUEST.unpack_from(request)[2], forks.new_lock()
        served.calls[connection] = get_ident()

        def reply(given: Answer | None) -> None:
            if first.acquire(blocking=False):
                self._end(connection, served)
                connection.answer(_encoded(number, given))

        ANSWERED.set(reply)
        engine_threads().hold_wakes()  # this thread runs a worker itself, after its answer
        answer: Answer | None = None
        try:
            parcel = decode_parcel(request[REQUEST.size :])
            if connection.is_waited_for():
                answer = accept_here(served.db)(parcel)
        except Exception as error:  # noqa: BLE001 - the sender meets it in the file, and reports it
            log.failure("debug", "a parcel is left to its sender", error, agent=served.db.agent)
        finally:
            reply(answer)


def _encoded(number: int, answer: Answer | None) -> bytes:
    """Return the bytes of an answer, or of a refusal: then the sender uses the file."""
    text = b"" if answer is None else encode_answer(answer)
    outcome = REFUSED if answer is None or len(text) > LONGEST else ACCEPTED
    text = text if outcome == ACCEPTED else b""
    return ANSWER.pack(number, outcome, len(text)) + text


def accept_here(db: Database) -> Accept:
    """Return the function that accepts parcels for an open file in this process."""
    return db.receivers[-1]


_sockets: Final[dict[Path, ParcelSocket]] = {}
"""The sockets of this process by folder."""


def serve(db: Database) -> Callable[[], None]:
    """
    Accept parcels of other processes for an open file; return the function that ends that.

    Without a socket, such as for want of descriptors, they write them into the file.
    """
    name = open_files.name_of(db)
    folder = folder_of(name[0]) if HAS_UNIX and name is not None else None
    if folder is None or name is None:
        return _do_nothing
    try:
        return _serve(db, name, folder)
    except OSError as error:
        log.failure("debug", "senders use the file", error, agent=db.agent)
        return _do_nothing


def _serve(db: Database, name: open_files.Name, folder: Path) -> Callable[[], None]:
    found = _sockets.get(folder.parent)
    if found is None or not found.path.exists():
        found = _sockets[folder.parent] = ParcelSocket(folder.parent)
        atexit.register(_remove, found)
    stop = found.serve(ServedFile(db, name))
    link = folder / f"{os.getpid()}-{new_token()[:8]}{LINK}"
    add_to(folder, partial(link.symlink_to, found.path))

    def end() -> None:
        link.unlink(missing_ok=True)
        stop()

    return end


def _do_nothing() -> None:
    """End nothing."""


def _remove(made: ParcelSocket) -> None:
    if made in _sockets.values():  # it is not that of a parent
        made.path.unlink(missing_ok=True)


def _leave_to_the_parent() -> None:
    """Close the descriptors in a forked child: senders must learn that the parent has ended."""
    for each in _sockets.values():
        each.close()
    _sockets.clear()


forks.in_child(_leave_to_the_parent)
