"""One socket by which a process hears of the commits of others, to all files of its engines."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from onceward.message.ids import new_token

FULL: Final = 8
"""Datagrams read at once from which some may be lost: systems queue ten of them or more."""


class ProcessSocket:
    """A bound socket; links in the folders of files lead to it, and a datagram names its link."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}-{new_token()[:8]}"
        self._links: dict[str, Callable[[], None]] = {}
        self._socket = datagram()
        try:
            self._socket.bind(str(self.path))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``hear`` is due."""
        return self._socket.fileno()

    def link(self, link: Path, tell: Callable[[], None]) -> None:
        """Make a link; call *tell* for what is sent to it."""
        self._links[link.name] = tell
        link.symlink_to(self.path)

    def forget(self, name: str) -> None:
        """Call nothing any more for a link of this name."""
        self._links.pop(name, None)

    def hear(self) -> bool:
        """Read what was sent and tell each link once; return whether more may have been lost."""
        named: list[str] = []
        with suppress(OSError):
            while found := self._socket.recv(64):
                named.append(found.decode(errors="replace"))
        for name in dict.fromkeys(named):
            tell = self._links.get(name)
            if tell is not None:
                tell()
        return len(named) >= FULL


def datagram() -> socket.socket:
    """Return a socket for datagrams on this machine that waits for nothing."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    return made


_sockets: dict[tuple[int, Path], list[ProcessSocket]] = {}
"""By process and folder: its sockets, all but the last of which were cleaned away."""


def process_socket(folder: Path) -> ProcessSocket | None:
    """Return the socket of this process in a folder; None where there can be none."""
    found = _sockets.setdefault((os.getpid(), folder), [])
    if not (found and found[-1].path.exists()):
        try:
            found.append(ProcessSocket(folder))
        except OSError:  # no descriptor is left, or no place
            return None
        atexit.register(_remove, os.getpid(), found[-1].path)
    return found[-1]


def forget_link(name: str) -> None:
    """Call nothing any more for a link, to whichever socket of this process it leads."""
    for each in chain.from_iterable(list(_sockets.values())):
        each.forget(name)


def _remove(owner: int, path: Path) -> None:
    if owner == os.getpid():
        with suppress(OSError):
            path.unlink()
