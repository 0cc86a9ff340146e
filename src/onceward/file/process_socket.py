"""Listen on one socket for other processes' commits to all files of this process's engines."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from onceward.file import forks
from onceward.message.ids import new_token

FULL: Final = 8
"""Number of datagrams read at once from which some may be lost: systems queue ten or more."""


class ProcessSocket:
    """A bound socket; the folders of files have links to it, and a datagram names its link."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}-{new_token()[:8]}"
        self._links: dict[str, Callable[[], None]] = {}
        self._socket = datagram(str(self.path))

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``hear`` is due."""
        return self._socket.fileno()

    def link(self, link: Path, tell: Callable[[], None]) -> None:
        """Create a link; call *tell* for each datagram to it."""
        self._links[link.name] = tell
        link.symlink_to(self.path)

    def forget(self, name: str) -> None:
        """Stop calling for a link of this name."""
        self._links.pop(name, None)

    def close(self) -> None:
        """Close the socket; its name stays."""
        self._socket.close()

    def hear(self) -> bool:
        """Read the datagrams and call each link once; return whether some may have been lost."""
        named: list[str] = []
        with suppress(OSError):
            while found := self._socket.recv(64):
                named.append(found.decode(errors="replace"))
        for name in dict.fromkeys(named):
            tell = self._links.get(name)
            if tell is not None:
                tell()
        return len(named) >= FULL


def datagram(name: str = "") -> socket.socket:
    """Return a non-blocking socket for datagrams on this machine; bind it to a given name."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    try:
        if name:
            made.bind(name)
    except BaseException:
        made.close()
        raise
    return made


_sockets: dict[Path, list[ProcessSocket]] = {}
"""The sockets of this process by folder; the files of all but the last one were removed."""


def process_socket(folder: Path) -> ProcessSocket | None:
    """Return the socket of this process in a folder; None if it cannot have one."""
    found = _sockets.setdefault(folder, [])
    if not (found and found[-1].path.exists()):
        try:
            found.append(ProcessSocket(folder))
        except OSError:  # no descriptor or no space is left
            return None
        atexit.register(_remove, found[-1])
    return found[-1]


def forget_link(name: str) -> None:
    """Stop calling for a link, to any socket of this process."""
    for each in chain.from_iterable(list(_sockets.values())):
        each.forget(name)


def _remove(made: ProcessSocket) -> None:
    if any(made in found for found in _sockets.values()):  # it is not that of a parent
        with suppress(OSError):
            made.path.unlink()


def _leave_to_the_parent() -> None:
    """Close the sockets in a forked child: notices to a parent that has ended must fail."""
    for each in chain.from_iterable(_sockets.values()):
        each.close()
    _sockets.clear()


forks.in_child(_leave_to_the_parent)
