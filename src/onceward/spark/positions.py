"""How far a stream has come in every file, and how that is written down beside its checkpoint."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

from onceward.errors import OncewardError
from onceward.fleet.columns import InvalidOption

INLINE_MAX: Final = 1000
"""Files up to which positions may stand in the offset itself."""
KEPT: Final = 150
"""Manifests that stay: Spark keeps the offsets of a hundred batches."""
ENDING: Final = ".positions"
Offset = dict[str, Any]


class ManifestMissing(OncewardError):
    """A manifest of the checkpoint is missing: restore the folder with it, or begin both anew."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one file was read."""

    file_id: str
    seq: int
    epoch: int = 0
    """How often the file was found restored or replaced, and read from its beginning again."""
    anchor: str = ""
    """Id in the row of that sequence: another one means that the file was restored meanwhile."""
    change: str = ""
    """The file's state when this was written: ``new``, ``restored``, ``replaced``, or empty."""


Positions = Mapping[str, Position]
START: Final[Offset] = {"files": 0, "rows": 0}


class Manifests:
    """
    Keeps positions as immutable files named by their content; an offset is such a name.

    A map in the offset would be written thrice for every micro-batch, and
    grows with the fleet. Without a folder it is, for small fleets.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder.removeprefix("file://")) if folder else None
        self._last: tuple[str, Positions] = ("", {})

    def offset(self, positions: Positions) -> Offset:
        """
        Store *positions* and return the offset that names them.

        Raises:
            InvalidOption: there are too many files for an offset without a folder.

        """
        packed = _packed(positions)
        told = {
            "files": len(positions),
            "rows": sum(position.seq for position in positions.values()),
        }
        if self._folder is None:
            if len(positions) > INLINE_MAX:
                few = f"{len(positions)} files are too many for a stream without option manifests"
                msg = f"{few}: name a folder beside its checkpoint"
                raise InvalidOption(msg)
            return told | {"inline": base64.b64encode(packed).decode()}
        name = hashlib.sha256(packed).hexdigest()[:32]
        self._store(self._folder, name, packed)
        self._last = (name, positions)
        return told | {"manifest": name}

    def positions(self, offset: Offset) -> Positions:
        """
        Return the positions that *offset* names.

        Raises:
            ManifestMissing: see there.

        """
        if "inline" in offset:
            return _unpacked(base64.b64decode(offset["inline"]))
        name = str(offset.get("manifest", ""))
        if name and name != self._last[0]:
            self._last = (name, _unpacked(self._load(name)))
        return self._last[1] if name else {}

    def _load(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except OSError as error:
            cure = "restore the folder with its checkpoint, or begin both anew"
            msg = f"no manifest {name} in {self._folder}: {cure}"
            raise ManifestMissing(msg) from error

    def _path(self, name: str) -> Path:
        if self._folder is None:
            cure = "give the option manifests that the stream was started with"
            msg = f"the checkpoint names manifest {name}: {cure}"
            raise ManifestMissing(msg)
        return self._folder / f"{name}{ENDING}"

    def _store(self, folder: Path, name: str, packed: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{name}.{os.getpid()}"
        with fresh.open("wb") as file:
            file.write(packed)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(
            self._path(name)
        )  # a name stands for one content: a second writer replaces it by the same

    def prune(self, offset: Offset) -> None:
        """Forget the oldest manifests, never the one that *offset* names."""
        if self._folder is None or not self._folder.is_dir():
            return
        for path in _oldest(self._folder, {str(offset.get("manifest", ""))}):
            with suppress(OSError):
                path.unlink()


def _oldest(folder: Path, needed: Collection[str]) -> list[Path]:
    found = sorted(folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime_ns)
    return [path for path in found[:-KEPT] if path.stem not in needed]


def _packed(positions: Positions) -> bytes:
    listed = {path: astuple(position) for path, position in sorted(positions.items())}
    return zlib.compress(json.dumps(listed, separators=(",", ":")).encode(), 6)


def _unpacked(packed: bytes) -> Positions:
    return {path: Position(*values) for path, values in json.loads(zlib.decompress(packed)).items()}
