"""A file system on which one operation fails, once or from then on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import apsw
from tests.proof.power_cut.disk import Disk
from tests.proof.power_cut.recorder import RecordedFile, Recorder

Raised = tuple[type[apsw.Error], int]
KINDS: Final[dict[str, Raised]] = {
    "full": (apsw.FullError, apsw.SQLITE_FULL),
    "write": (apsw.IOError, apsw.SQLITE_IOERR_WRITE),
    "sync": (apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
    "read": (apsw.IOError, apsw.SQLITE_IOERR_READ),
    "truncate": (apsw.IOError, apsw.SQLITE_IOERR_TRUNCATE),
    "stat": (apsw.IOError, apsw.SQLITE_IOERR_FSTAT),
    "lock": (apsw.IOError, apsw.SQLITE_IOERR_LOCK),
    "open": (apsw.CantOpenError, apsw.SQLITE_CANTOPEN),
    "delete": (apsw.IOError, apsw.SQLITE_IOERR_DELETE),
    "busy": (apsw.BusyError, apsw.SQLITE_BUSY),
}
"""Ways in which a disk fails, and what SQLite is told then."""


@dataclass(slots=True)
class Fault:
    """Which operation of a kind fails, counted from one; 0 is none."""

    kind: str = ""
    number: int = 0
    sticky: bool = False
    seen: Counter[str] = field(default_factory=Counter)
    """How many operations of each kind there were."""
    fired: bool = False

    def meet(self, *kinds: str) -> None:
        """Count one operation that may fail in these ways, and fail if it is its turn."""
        for kind in kinds:
            self.seen[kind] += 1
            if kind == self.kind and (
                self.seen[kind] == self.number or (self.sticky and self.fired)
            ):
                self.fired = True
                raise failure(kind)


def failure(kind: str) -> apsw.Error:
    """Return the error of that kind, as SQLite's own file system reports it."""
    cls, code = KINDS[kind]
    error = cls(f"the disk fails by order: {kind}")
    error.extendedresult = code  # type: ignore[attr-defined]  # the stubs do not know it
    return error


class FailingDisk(Recorder):
    """
    The file system that remembers, and fails where it is told to.

    A failing write may have got half way.
    """

    def __init__(self, disk: Disk, seed: int, fault: Fault) -> None:
        self.fault = fault
        super().__init__(disk, seed)

    def xOpen(self, name: Any, flags: list[int]) -> RecordedFile:  # noqa: N802 - SQLite's name
        """Open a file whose operations may fail."""
        self.fault.meet("open")
        return _FailingFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - SQLite's name and order
        """Delete a file, or fail."""
        self.fault.meet("delete")
        super().xDelete(filename, syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802 - SQLite's name
        """Look for a file, or fail."""
        self.fault.meet("stat")
        return super().xAccess(pathname, flags)


class _FailingFile(RecordedFile):
    def __init__(self, disk: FailingDisk, name: Any, flags: list[int]) -> None:
        self._fault = disk.fault
        super().__init__(disk, name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's name
        """Read, or fail."""
        self._fault.meet("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's name
        """Write, or fail with half of it written."""
        try:
            self._fault.meet("full", "write")
        except apsw.Error:
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            raise
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        """Truncate, or fail."""
        self._fault.meet("truncate")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        """Sync, or fail."""
        self._fault.meet("sync")
        super().xSync(flags)

    def xFileSize(self) -> int:  # noqa: N802 - SQLite's name
        """Look at the size, or fail."""
        self._fault.meet("stat")
        return super().xFileSize()

    def xLock(self, level: int) -> None:  # noqa: N802 - SQLite's name
        """Lock, or fail."""
        self._fault.meet("lock", "busy")
        super().xLock(level)
