"""
Keep the state of one file's log in numbered manifests; the newest one alone says what counts.

A manifest lists all segments of the file's log and, for each epoch, how far the file was read.
Number n + 1 is created only once, whatever happens (``Objects.create``), and only by a process
that read the file after it had seen number n: so the versions of a row are in order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from pydantic import TypeAdapter

from onceward.fleet.opening import LogTrouble
from onceward.fleet.ship.objects import Objects

FORMAT: Final = 1
KEPT: Final = 32
"""Manifests that stay; older ones are removed after a commit."""
RETIRED_FOR: Final = 64
"""Manifests that pass before a segment is removed that compaction has replaced."""
REMEMBERED: Final = 64
"""Commits that a manifest names, by which a slow process finds out whether its own counts."""
LEVEL: Final = "level.json"
"""Name of the object, overwritten each time, that says when a file was found unchanged."""
LENGTH: Final = 256
"""Its bytes, always: see ``agreement.LENGTH``."""
PLAIN_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


class LogDamaged(LogTrouble):
    """An object of the log is missing or was altered: restore it from a copy."""


class LogTooNew(LogTrouble):
    """The log was written by a newer version: upgrade onceward."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One Parquet object of the log."""

    path: str
    table: str
    epoch: int
    number: int
    """The manifest that added its newest rows: of two versions of a row the higher one counts."""
    rows: int
    first_seq: int
    last_seq: int
    day: int
    """The day on which its first row began; a merged segment has rows of later days, too."""
    bytes: int
    sha256: str
    again: bool = False
    """Whether it holds rows of which an older segment has an earlier version."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far one table of a file was read."""

    high: int = 0
    """The highest sequence that was ever given when it was read."""
    columns: tuple[str, ...] = ()
    open: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """Digest and day of the rows that may still change, by sequence."""
    last: Mapping[int, str] = field(default_factory=dict)
    """Ids of the last rows, by sequence: a file that has others there is another branch."""
    ended: Mapping[int, str] = field(default_factory=dict)
    """Digests of the rows that ended last: one that differs means the same."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One unbroken history of a file; a restored or copied file that is used begins another."""

    number: int
    opened: int = 0
    opened_at: int = 0
    clock: int = 0
    """The latest moment that the file knew, by its own clock."""
    changes: int = 0
    """How far the record of late changes was read."""
    places: Mapping[str, Place] = field(default_factory=dict)
    horizons: Mapping[str, str] = field(default_factory=dict)
    """Message ids up to which dedup records may have been pruned, by sender."""
    outbox_pruned_at: int | None = None
    """The moment before which ended messages may have been pruned from the outbox."""
    parent: int = 0
    """The epoch that it branched from; 0: none."""
    inherited: Mapping[str, int] = field(default_factory=dict)
    """Sequences up to which the rows of the parent are its own, by table."""
    first: int = 0
    """The manifest that began it."""
    latest: int = 0
    """The last manifest that added to it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The valid content of one file's log."""

    file_id: str
    agent: str = ""
    number: int = 0
    commit: str = ""
    complete: bool = True
    """Whether the log was up to date with the file; a large backlog takes several commits."""
    epoch: int = 0
    """The epoch that was added to last."""
    epochs: tuple[Epoch, ...] = ()
    segments: tuple[Segment, ...] = ()
    retired: tuple[tuple[str, int], ...] = ()
    """Paths of segments that were replaced, and the manifest that replaced them."""
    recent: tuple[tuple[int, str], ...] = ()
    shipped_at: int = 0
    """When the file was read, by the clock of the machine that shipped."""
    path: str = ""
    """Where the file was that was read: an unchanged copy elsewhere says nothing of it."""

    @property
    def folder(self) -> str:
        """The folder of the file's manifests."""
        return folder_of(self.file_id)

    def of(self, number: int) -> Epoch:
        """Return an epoch by its number."""
        return next(each for each in self.epochs if each.number == number)

    def lives(self, epoch: Epoch) -> bool:
        """Return whether a file used an epoch since the last one began."""
        later = [each.first for each in self.epochs if each.number > epoch.number]
        return epoch.number == self.epoch or epoch.latest > max(later, default=0)

    def next(self, **changed: Any) -> Manifest:
        """Return the manifest that follows, with a mark of its own."""
        recent = ((self.number, self.commit), *self.recent)[:REMEMBERED] if self.number else ()
        return replace(self, number=self.number + 1, commit=uuid4().hex, recent=recent, **changed)


MANIFEST: Final = TypeAdapter(Manifest)


def folder_of(file_id: str) -> str:
    """Return the folder of a file's manifests; an id that is not a plain word is hashed."""
    plain = file_id if PLAIN_ID.fullmatch(file_id) else "x" + _sha256(file_id.encode())[:40]
    return f"files/{plain}"


def newest(objects: Objects, file_id: str) -> Manifest:
    """
    Return the newest manifest of a file's log, or an empty one of number 0.

    Raises:
        LogDamaged: the manifest cannot be read.
        LogTooNew: it was written by a newer version.

    """
    return of_folder(objects, folder_of(file_id)) or Manifest(file_id)


def of_folder(objects: Objects, folder: str) -> Manifest | None:
    """Return the newest manifest in a folder; see ``newest``."""
    names = _numbered(objects.names(f"{folder}/manifests"))
    while names:
        try:
            return decoded(objects.get(f"{folder}/manifests/{names[-1]}"))
        except FileNotFoundError:  # it was removed in between: there are newer ones
            names = _numbered(objects.names(f"{folder}/manifests"))
    return None


def note_level(objects: Objects, manifest: Manifest, at: int) -> None:
    """Note that the file was read *at* a moment, and was as its newest manifest has it."""
    said = {"number": manifest.number, "commit": manifest.commit, "at": at}
    objects.put(f"{manifest.folder}/{LEVEL}", json.dumps(said).ljust(LENGTH).encode())


def level_at(objects: Objects, manifest: Manifest) -> int:
    """Return when the file was found as this manifest has it; 0: not since, or it is unreadable."""
    try:
        said = json.loads(objects.get(f"{manifest.folder}/{LEVEL}"))
        same = (said["number"], said["commit"]) == (manifest.number, manifest.commit)
        return int(said["at"]) if same else 0
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0


def folders(objects: Objects) -> list[str]:
    """Return the folders of all files of the log."""
    return [f"files/{name}" for name in objects.names("files")]


def commit(objects: Objects, manifest: Manifest) -> bool:
    """
    Make a manifest count; return False if another process was first: then nothing of it counts.

    All its segments must be there already. A process that is killed before this has added nothing.
    """
    path = f"{manifest.folder}/manifests/{manifest.number:020d}.json"
    if not objects.create(path, encoded(manifest)):
        return False
    present = newest(objects, manifest.file_id)
    mark = (manifest.number, manifest.commit)
    if mark not in {(present.number, present.commit), *present.recent}:
        return False  # this process slept until others had removed the number
    remove_old(objects, manifest)
    return True


def remove_old(objects: Objects, manifest: Manifest) -> None:
    """Remove manifests and votes that no process needs any more."""
    for kind, remove in (("manifests", objects.remove), ("manifests.votes", objects.remove_folder)):
        folder = f"{manifest.folder}/{kind}"
        for name in objects.names(folder):
            if _number(name) < manifest.number - KEPT:
                remove(f"{folder}/{name}")


def checked(segments: Iterable[Segment], objects: Objects) -> None:
    """Raise LogDamaged unless all segments are there in full length."""
    for segment in segments:
        if objects.size(segment.path) != segment.bytes:
            raise LogDamaged(f"{segment.path} is missing or incomplete: ship again")


def encoded(manifest: Manifest) -> bytes:
    """Return a manifest as JSON, with the digest of all else in it."""
    said = {"format": FORMAT, **asdict(manifest)}
    return json.dumps({"sha256": _digest(said), **said}).encode()


def decoded(data: bytes) -> Manifest:
    """Return the manifest of a JSON text."""
    try:
        said = json.loads(data)
        if said["format"] > FORMAT:
            raise LogTooNew("the log was written by a newer version: upgrade onceward")
        if said.pop("sha256") != _digest(said):
            raise LogDamaged("a manifest of the log was altered: restore it from a copy")
        del said["format"]
        return MANIFEST.validate_python(said)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"a manifest of the log cannot be read ({error}): restore it from a copy"
        raise LogDamaged(msg) from error


def _numbered(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".json"))


def _number(name: str) -> int:
    digits = name.partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _digest(said: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(said).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
