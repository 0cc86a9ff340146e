"""Store a stream's position in every file, beside its checkpoint."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceward.errors import OncewardError
from onceward.fleet.columns import InvalidOption
from onceward.fleet.durable import replace_file

INLINE_MAX: Final = 1000
"""Files up to which positions may stand in the offset itself."""
KEPT: Final = 150
"""Manifests that stay: Spark keeps the offsets of a hundred batches."""
ENDING: Final = ".positions"
Offset = dict[str, Any]


class ManifestMissing(OncewardError):
    """A manifest of the checkpoint is missing: restore its folder, or restart with new ones."""


class Anchor(NamedTuple):
    """Newest row that was left of those that were read: restoring a file brings another one."""

    seq: int
    id: str
    at: int
    """Newest moment at which it, or one of the rows before it, was written; in milliseconds."""


NO_ROW: Final = Anchor(0, "", 0)
UNKNOWN: Final = Anchor(-1, "", 0)
"""Stands for the anchor of a position that no look has confirmed."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position in one file."""

    file_id: str
    seq: int
    epoch: int = 0
    """How often the file was found restored or replaced, and read from its beginning again."""
    change: str = ""
    """The file's state when this was written: ``new``, ``restored``, ``replaced``, or empty."""
    anchor_seq: int = 0
    anchor_id: str = ""
    anchor_at: int = 0

    def at(self, anchor: Anchor) -> Position:
        """Return the position with this anchor."""
        return replace(self, anchor_seq=anchor.seq, anchor_id=anchor.id, anchor_at=anchor.at)

    def differs(self, now: Anchor) -> bool:
        """
        Return whether the newest row up to ``seq`` shows that the file was restored meanwhile.

        Where the anchor itself was pruned, or came back under its number, rows that were written
        after it tell: they have numbers that were read before. Where none of them is left either,
        nothing is lost that pruning has not taken.
        """
        if now.seq == self.anchor_seq and now.id != self.anchor_id:
            return True
        return now.seq > self.anchor_seq or now.at > self.anchor_at


VALUES: Final = attrgetter(*(field.name for field in fields(Position)))
Positions = Mapping[str, Position]
START: Final[Offset] = {"files": 0, "rows": 0}


def start() -> Offset:
    """Return where a new stream begins: nothing is read, and its manifests are its own."""
    return START | {"stream": uuid.uuid4().hex}


class Manifests:
    """
    Keeps positions as immutable files named by their content; an offset is such a name.

    A map in the offset would be written thrice for every micro-batch, and
    grows with the fleet. Without a folder it is, for small fleets. Each stream has a folder of
    its own in it, named in its offsets: streams may share the outer one.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder.removeprefix("file://")) if folder else None
        self._last: tuple[str, Positions] = ("", {})

    def offset(self, positions: Positions, start: Offset) -> Offset:
        """
        Store *positions* and return the offset that names them, in the stream of *start*.

        Raises:
            InvalidOption: there are too many files for an offset without a folder.

        """
        packed = _packed(positions)
        told = {
            "stream": start["stream"],
            "files": len(positions),
            "rows": sum(position.seq for position in positions.values()),
        }
        if self._folder is None:
            if len(positions) > INLINE_MAX:
                few = f"{len(positions)} files are too many for a stream without option manifests"
                raise InvalidOption(f"{few}: give a folder beside its checkpoint")
            return told | {"inline": base64.b64encode(packed).decode()}
        name = f"{start['stream']}/{hashlib.sha256(packed).hexdigest()[:32]}"
        replace_file(self._path(name), packed)  # the name stands for this content alone
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
            cure = "restore the folder with its checkpoint, or restart with new ones"
            raise ManifestMissing(f"no manifest {name} in {self._folder}: {cure}") from error

    def _path(self, name: str) -> Path:
        if self._folder is None:
            cure = "set the option manifests as when the stream was started"
            raise ManifestMissing(f"the checkpoint names manifest {name}: {cure}")
        return self._folder / f"{name}{ENDING}"

    def prune(self, offset: Offset) -> None:
        """Forget the stream's oldest manifests, never the one that *offset* names."""
        if self._folder is None or "manifest" not in offset:
            return
        needed = self._path(str(offset["manifest"]))
        for path in _oldest(needed.parent, {needed}):
            with suppress(OSError):
                path.unlink()


def _oldest(folder: Path, needed: Collection[Path]) -> list[Path]:
    found = sorted(folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime_ns)
    return [path for path in found[:-KEPT] if path not in needed]


def _packed(positions: Positions) -> bytes:
    listed = {path: VALUES(position) for path, position in sorted(positions.items())}
    return zlib.compress(json.dumps(listed, separators=(",", ":")).encode(), 1)


def _unpacked(packed: bytes) -> Positions:
    return {path: Position(*values) for path, values in json.loads(zlib.decompress(packed)).items()}
