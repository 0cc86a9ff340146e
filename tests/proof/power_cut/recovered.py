"""Read what SQLite recovers after a cut, to tell states with the same databases."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apsw
from tests.proof.power_cut.disk import Image
from tests.proof.power_cut.track import print_of

Parts = tuple[bytes, bytes]


class Recovered:
    """Asks SQLite itself, by its own file system, and leaves the files as they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Parts, bytes] = {}

    def of(self, image: Image) -> bytes | None:
        """Return a digest of the databases of *image*, laid out already; None if unreadable."""
        seen = hashlib.blake2b(digest_size=12)
        for name in sorted(image):
            if "/" in name:
                seen.update(name.encode() + print_of(image[name]))
            if name.endswith("-journal") or (name.endswith(".db") and not image[name]):
                return None  # looking at it would change it
            if name.endswith(".db"):
                found = self._content(
                    name, (print_of(image[name]), print_of(image.get(f"{name}-wal", b"")))
                )
                if found is None:
                    return None
                seen.update(name.encode() + found)
        return seen.digest()

    def _content(self, name: str, parts: Parts) -> bytes | None:
        if parts not in self._known:
            try:
                self._known[parts] = print_of(_read(self._folder / name))
            except apsw.Error:
                return None
        return self._known[parts]


def _read(path: Path) -> bytes:
    con = apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE)
    try:
        con.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return con.serialize("main")
    finally:
        con.close()
