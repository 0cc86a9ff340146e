"""
Note which calls each process has in flight, in the file beside its database that ends in ``-run``.

A worker or a reader takes a record of that file before its first lease, and holds a lock on the
record's number while its process lives: the system ends the lock with the process. Before each call
a worker writes a note into its record, which names lane, token and message; the note is not
synced, so it survives the process and not a power cut. Notes are never removed: the lane's token in
the database tells whether a noted call was settled. A record whose lock is free and that still has
an owner is that of a dead process; the process that has ended its leases frees it.

A system without locks of open file descriptions has no records; then leases only run out.
"""

from __future__ import annotations

import os
import secrets
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple
from uuid import UUID
from weakref import WeakSet

from onceward.file import forks
from onceward.file.file_checks import PROCESS_ID_PARTS, boot_id, is_dead
from onceward.message.clock import Millis, monotonic

RECORDS: Final = 64
"""Maximum workers and readers of all processes that have records of one file."""
HEADER: Final = struct.Struct("<96s1s7xq")
"""Owner, kind, and milliseconds of its leases."""
NOTE: Final = struct.Struct("<qqqq16x")
"""Round, lane, token and message. A new round ends the notes of the round before."""
NOTE_OF_ARRIVAL: Final = struct.Struct("<qqqq16s")
"""The same with the id of a message that is not stored yet; all zeros: it is stored."""
NO_ID: Final = bytes(16)
NOTES: Final = 512
"""Maximum notes of one round."""
HEADERS: Final = RECORDS * HEADER.size
"""Bytes of the headers; ``last_seen`` has the next ``KEPT``."""
KEPT: Final = 128
FIRST: Final = HEADERS + KEPT
"""Where the notes of the first record begin."""
ALIVE_FOR: Final = 0.25
"""Seconds for which a process that lived and whose lock is held counts as alive."""
ALL_LEASED: Final = 0
"""Stands for a note's message: every message of that lease is in the call."""
RANGE: Final = struct.Struct("qqihh") if sys.platform == "darwin" else struct.Struct("hhqqi4x")
"""The layout of ``struct flock``."""
Kind = Literal["call", "run", "reader"]
"""The use of leases by their owner: noted calls, runs, or reads that are not noted."""
KINDS: Final[dict[Kind, bytes]] = {"call": b"c", "run": b"r", "reader": b"m"}
NAMES: Final = {mark: kind for kind, mark in KINDS.items()}


class NotedCall(NamedTuple):
    """A call that was begun."""

    lane_id: int
    token: int
    seq: int
    """Row of the inbox; ``ALL_LEASED``: all that the lease names."""
    id: str = ""
    """Id of a message that was not stored when its call began; empty for a stored one."""


class OwnerRecord(NamedTuple):
    """The record of one worker or reader, and the calls that it noted last."""

    number: int
    owner: str
    kind: Kind
    lease: Millis
    """Length of its leases, which a heartbeat prolongs; 0: nothing prolongs them."""
    lives: bool
    calls: tuple[NotedCall, ...]

    @property
    def process(self) -> str:
        """Return the number of the process, as the system knows it."""
        return process_of(self.owner)


def process_of(owner: str) -> str:
    """Return the number of an owner's process, as its system knows it."""
    parts = owner.partition("/")[0].split(".")
    return parts[2] if len(parts) == PROCESS_ID_PARTS else "(unknown)"


@dataclass(slots=True)
class CallNotes:
    """
    The record of one worker of this process, which writes its notes itself.

    A note is one write of ``NOTE`` at ``at``, plus the size of the notes before it in this round.
    """

    file: CallRecords
    at: int
    turn: int
    """The present round; the record's last owner had other numbers."""
    count: int = 0
    """Notes of this round."""


class CallRecords:
    """The records of one database: those of this process, and what others left or hold."""

    def __init__(self, path: Path | None) -> None:
        self._path = None if path is None else Path(f"{path}-run")
        self.handle, self._lock = -1, forks.new_lock()
        self._own: dict[int, tuple[str, Kind]] = {}
        self.busy = set[str]()
        """Workers of this process that claim or handle messages now."""
        self._ended = set[str]()
        """Dead owners whose leases are ended, but whose record another process holds."""
        self._known: dict[str, tuple[NotedCall, ...]] = {}
        """The notes of living owners that ``news`` has returned."""
        self._alive_until = dict[str, float]()
        """Until which time of the monotonic clock the process of an owner counts as alive."""
        self.alone = b""
        """The headers when no other process had a record."""
        files.add(self)

    # -- own records ------------------------------------------------------------------------

    def enter(self, owner: str, kind: Kind, lease: Millis) -> CallNotes | None:
        """Take a record for an owner of this process; return None if there is none."""
        header = HEADER.pack(owner.encode(), KINDS[kind], lease)
        with self._lock, suppress(OSError):
            if not self._is_open(create=True):
                return None
            text = os.pread(self.handle, HEADERS, 0).ljust(HEADERS, b"\0")
            for number in range(RECORDS):
                if text[number * HEADER.size] or number in self._own or not self._take(number):
                    continue
                if self._header(number):  # taken since, by a process that has died already
                    self._give_up(number)
                    continue
                os.pwrite(self.handle, header, number * HEADER.size)
                self._own[number] = owner, kind
                at = FIRST + number * NOTES * NOTE.size
                return CallNotes(self, at, secrets.randbits(62))
        return None

    def leave(self, owner: str) -> None:
        """Free the record of an owner of this process that has no lease left."""
        with self._lock, suppress(OSError):
            for number in [each for each, (name, _) in self._own.items() if name == owner]:
                self._clear(number)
                del self._own[number]
                self._give_up(number)

    def forsake(self, owner: str) -> None:
        """Leave the record of an owner as that of the dead: an error has ended its thread."""
        with self._lock, suppress(OSError):
            for number in [each for each, (name, _) in self._own.items() if name == owner]:
                del self._own[number]
                self.alone = b""
                self._give_up(number)

    def close(self) -> None:
        """
        Close the file; the leases of readers and of runs run out.

        Calls that still run can commit nothing more: their records are left as those of the dead.
        """
        for owner, kind in list(self._own.values()):
            if kind != "call":
                self.leave(owner)
        self.abandon()

    def abandon(self) -> None:
        """Close the file, and leave its records as they are."""
        with self._lock:
            handle, self.handle, self._own = self.handle, -1, {}
            if handle >= 0:
                os.close(handle)

    # -- records of others ------------------------------------------------------------------

    def find(self, owner: str) -> OwnerRecord | None:
        """Return the record of an owner, of this process or another; None if it has none."""
        return next((each for each in self._records(own=True) if each.owner == owner), None)

    def dead(self) -> list[OwnerRecord]:
        """Return the records of dead processes whose leases no process has ended yet."""
        return [each for each in self._records() if not each.lives]

    def dead_owners(self) -> set[str]:
        """Return the owners of ``dead``."""
        return {each.owner for each in self.dead()}

    def news(self) -> list[OwnerRecord]:
        """Return the records of other processes that died, or noted calls since ``known``."""
        return [
            each
            for each in self._records()
            if not each.lives or self._known.get(each.owner, ()) != each.calls
        ]

    def known(self, record: OwnerRecord) -> None:
        """Remember the notes of a living owner, which a commit has compared with the lanes."""
        self._known[record.owner] = record.calls

    def ended(self, record: OwnerRecord) -> None:
        """Free the record of a dead owner, whose leases were ended by a commit."""
        with self._lock, suppress(OSError):
            self._ended.add(record.owner)
            self._known.pop(record.owner, None)
            self._alive_until.pop(record.owner, None)
            if self.handle >= 0 and record.number not in self._own and self._take(record.number):
                if self._header(record.number) == record.owner:
                    self._clear(record.number)
                    self._ended.discard(record.owner)
                self._give_up(record.number)

    def _records(self, *, own: bool = False) -> list[OwnerRecord]:
        with self._lock, suppress(OSError):
            if self.handle >= 0:
                return list(self._read(own=own))
            if self._is_open():  # a process that leases nothing keeps no descriptor
                try:
                    return list(self._read(own=own))
                finally:
                    handle, self.handle = self.handle, -1
                    os.close(handle)
        return []

    def _read(self, *, own: bool) -> Iterable[OwnerRecord]:
        text, others = os.pread(self.handle, HEADERS, 0), False
        for at in range(0, len(text) - HEADER.size + 1, HEADER.size):
            number = at // HEADER.size
            if not text[at] or (number in self._own and not own):
                continue
            others |= number not in self._own
            name, kind, lease = HEADER.unpack_from(text, at)
            owner = name.rstrip(b"\0").decode("ascii", "replace")
            if owner in self._ended:
                continue
            lives = number in self._own or self._is_held(number, owner)
            calls = self._calls(number) if kind != KINDS["reader"] and _is_of_boot(owner) else ()
            yield OwnerRecord(number, owner, NAMES.get(kind, "reader"), lease, lives, calls)
        self.alone = b"" if others else text

    def _calls(self, number: int) -> tuple[NotedCall, ...]:
        text = os.pread(self.handle, NOTES * NOTE.size, FIRST + number * NOTES * NOTE.size)
        whole = len(text) - len(text) % NOTE.size
        calls, first = list[NotedCall](), 0
        for turn, lane_id, token, seq, arrived in NOTE_OF_ARRIVAL.iter_unpack(text[:whole]):
            first = first or turn
            if not turn or turn != first:
                break
            message_id = "" if arrived == NO_ID else str(UUID(bytes=arrived))
            calls.append(NotedCall(lane_id, token, seq, message_id))
        return tuple(calls)

    # -- the file ---------------------------------------------------------------------------

    def _is_open(self, *, create: bool = False) -> bool:
        if self._path is not None and self.handle < 0 and (create or self._path.exists()):
            import fcntl  # noqa: PLC0415 - not everywhere

            if hasattr(fcntl, "F_OFD_SETLK"):
                self.handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        return self.handle >= 0

    def _header(self, number: int) -> str:
        text = os.pread(self.handle, HEADER.size, number * HEADER.size)
        return text[:96].rstrip(b"\0").decode("ascii", "replace")

    def _clear(self, number: int) -> None:
        """Remove the owner of a record; its notes then count for nothing."""
        os.pwrite(self.handle, bytes(HEADER.size), number * HEADER.size)

    def _is_held(self, number: int, owner: str) -> bool:
        """
        Return whether the process of a record lives; a child of it may hold its lock longer.

        Asking the system takes 120 us, in each claim and for each process, while others wait.
        """
        import fcntl  # noqa: PLC0415 - not everywhere

        asked = _range(fcntl.F_WRLCK, number)
        told = fcntl.fcntl(self.handle, fcntl.F_OFD_GETLK, asked)
        if _kind_of(told) == fcntl.F_UNLCK:
            return False
        if monotonic() >= self._alive_until.get(owner, 0.0):
            if is_dead(owner):
                return False
            self._alive_until[owner] = monotonic() + ALIVE_FOR
        return True

    def _take(self, number: int) -> bool:
        import fcntl  # noqa: PLC0415 - not everywhere

        try:
            fcntl.fcntl(self.handle, fcntl.F_OFD_SETLK, _range(fcntl.F_WRLCK, number))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _give_up(self, number: int) -> None:
        import fcntl  # noqa: PLC0415 - not everywhere

        fcntl.fcntl(self.handle, fcntl.F_OFD_SETLK, _range(fcntl.F_UNLCK, number))


def _range(kind: int, number: int) -> bytes:
    if sys.platform == "darwin":
        return RANGE.pack(number, 1, 0, kind, os.SEEK_SET)
    return RANGE.pack(kind, os.SEEK_SET, number, 1, 0)


def _kind_of(told: bytes) -> int:
    return int(RANGE.unpack(told)[3 if sys.platform == "darwin" else 0])


def _is_of_boot(owner: str) -> bool:
    """Return whether an owner's process was of this boot: a power cut may lose its last notes."""
    return owner.startswith(f"{boot_id()[:8]}.") or not boot_id()


def has_died(path: Path, owner: str) -> bool:
    """Return whether the owner of a lease has died, by its process or by its lock beside *path*."""
    return is_dead(owner) or owner in CallRecords(path).dead_owners()


files: Final = WeakSet["CallRecords"]()
"""Those of this process: a child must leave their records alone."""


def _leave_to_parent() -> None:
    for each in list(files):
        each.abandon()
        each._path = None


forks.in_child(_leave_to_parent)
