"""Append to the log what changed in files: read, write segments, commit; again after a conflict."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from onceward.errors import InvalidArgument, OncewardError
from onceward.fleet import files as finding
from onceward.fleet.files import Found
from onceward.fleet.opening import Source, Unreadable, opened
from onceward.fleet.rows import snapshot
from onceward.fleet.ship import manifest as manifests
from onceward.fleet.ship.agreement import LogContended
from onceward.fleet.ship.changes import Changes, Limit, Present, changes
from onceward.fleet.ship.compaction import compacted
from onceward.fleet.ship.lineage import Found as Recognised
from onceward.fleet.ship.lineage import History, recognised
from onceward.fleet.ship.log import LoggedFile, ShippedLog
from onceward.fleet.ship.manifest import Epoch, Manifest, Segment
from onceward.fleet.ship.objects import LogUnreadable, LogUnwritable, Objects
from onceward.fleet.ship.segments import Writer
from onceward.fleet.ship.tables import Known
from onceward.message.clock import monotonic

if TYPE_CHECKING:
    from pyarrow import fs

TRIES: Final = 16
"""Conflicts with other processes after which a file is left for the next time."""
SETTLED_NS: Final = 2_000_000_000
"""A file that changed less than this ago is examined again: its times may not show a change."""
LEVEL_S: Final = 900.0
"""Seconds after which an unchanged file is examined again, to note in the log that it is level."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of a file is read at once, and how fast it is shipped."""

    limit: Limit = field(default_factory=Limit)
    rows_per_second: float | None = None
    sleep: Callable[[float], object] = time.sleep
    """Called between commits, while no snapshot of a file is held; what it raises ends the work."""

    def __post_init__(self) -> None:
        """Refuse a rate at which nothing could be shipped."""
        if self.rows_per_second is not None and not self.rows_per_second > 0:
            msg = f"a rate must be more than 0 rows per second, not {self.rows_per_second:g}"
            raise InvalidArgument(msg)

    def wait(self, rows: int, began: float) -> None:
        """Wait until the pace allows this many rows since *began*."""
        spent = monotonic() - began
        self.sleep(max(0.0, rows / (self.rows_per_second or math.inf) - spent))


@dataclass(frozen=True, slots=True)
class FileShipped:
    """The outcome for one file."""

    path: str
    file_id: str = ""
    agent: str = ""
    number: int = 0
    """The newest commit of its log."""
    epoch: int = 0
    rows: int = 0
    commits: int = 0
    history: History = "same"
    error: str = ""
    """Why nothing or not everything was shipped; empty if the log is up to date."""


def files(
    paths: Sequence[str],
    to: str,
    *,
    pace: Pace | None = None,
    filesystem: fs.FileSystem | None = None,
) -> list[FileShipped]:
    """
    Append to the log at *to* what changed in the files that *paths* name; return a line for each.

    Files are only read. One that is damaged or locked, or whose log is damaged, is returned with
    its error and is tried again the next time; no half of a reading is ever committed. Killed at
    any moment, or run twice at once, this leaves a log in which each version of a row is once.

    Args:
        paths: Files, folders (all their ``*.db``) or globs.
        to: A folder, or a URI with ``s3://``, ``gs://`` or ``abfs://``.
        pace: Maximum rate; by default there is none.
        filesystem: A filesystem of pyarrow in which *to* is a path.

    Raises:
        LogUnwritable, LogUnreadable: the log's place refused an object, or cannot be reached; what
            was committed before stays.
        InvalidArgument: *to* is not a place for a log.
        NamesNoFile: a path names no file; nothing is shipped.

    """
    finding.of_each(paths)
    return Shipper(paths, to, pace=pace, filesystem=filesystem).once()


class Shipper:
    """Ships the same files again and again; one that did not change is not opened again."""

    def __init__(
        self,
        paths: Sequence[str],
        to: str,
        *,
        pace: Pace | None = None,
        filesystem: fs.FileSystem | None = None,
    ) -> None:
        self._paths, self._pace = paths, pace or Pace()
        self._log = ShippedLog(to, filesystem=filesystem)
        self._level: dict[str, tuple[object, FileShipped, float]] = {}

    def once(self) -> list[FileShipped]:
        """Ship what changed since the last time; see ``files``."""
        found = finding.find(self._paths)
        done = [self._one(each) for each in found]
        begun = {each.file_id for each in done if each.history == "restored" and each.commits}
        return [
            self._confirmed(one, each) if each.file_id in begun else each
            for one, each in zip(found, done, strict=True)
        ]

    def _confirmed(self, found: Found, done: FileShipped) -> FileShipped:
        """Record in the log whether another file with the same id is in use."""
        self._level.pop(found.path, None)
        again = self._one(found)
        return replace(
            again,
            rows=done.rows + again.rows,
            commits=done.commits + again.commits,
            history=done.history if done.commits else again.history,
        )

    def _one(self, found: Found) -> FileShipped:
        known = self._level.get(found.path)
        if known is not None and known[0] == found.mark and monotonic() - known[2] < LEVEL_S:
            return replace(known[1], rows=0, commits=0)
        before = time.time_ns()
        try:
            with opened(found.path) as source:
                done = _shipped(source, self._log, self._pace)
        except (LogUnreadable, LogUnwritable):
            raise
        except OncewardError as error:
            return FileShipped(found.path, error=str(error))
        if before - max(found.mark[2], found.mark[4]) > SETTLED_NS:
            self._level[found.path] = (found.mark, done, monotonic())
        return done


@dataclass(frozen=True, slots=True)
class _Reading:
    """The changes in a file since one manifest of its log."""

    at: int
    """When the reading began, by the clock of this machine."""
    base: Manifest
    present: Present
    found: Recognised
    changed: Changes

    @property
    def worth(self) -> bool:
        """Whether there are changes to commit, not counting an advanced clock."""
        same = replace(self.changed.epoch, clock=self.found.epoch.clock) == self.found.epoch
        level = self.base.complete and self.base.lives(self.found.epoch)
        return bool(self.changed.count) or not same or not level


def _shipped(source: Source, log: ShippedLog, pace: Pace) -> FileShipped:
    """Commit the changes in pieces until the log is up to date with the file."""
    done, tries, began = FileShipped(source.path, source.file_id, source.agent), 0, monotonic()
    while True:
        reading = _read(source, log, pace.limit)
        if not reading.worth:
            if reading.base.path == _place(source):
                manifests.note_level(log.objects, reading.base, reading.at)
            return replace(done, number=reading.base.number, epoch=reading.found.epoch.number)
        written = _commit(source, log.objects, reading)
        if written is None:
            tries += 1
            if tries > TRIES:
                msg = f"{source.path}: other processes are shipping the same file; ship again later"
                raise LogContended(msg)
            continue
        done = replace(
            done,
            number=written.number,
            epoch=written.epoch,
            rows=done.rows + reading.changed.count,
            commits=done.commits + 1,
            history=done.history if done.commits else reading.found.history,
        )
        if reading.changed.complete:
            compacted(log.objects, written)
            return done
        pace.wait(done.rows, began)


def _read(source: Source, log: ShippedLog, limit: Limit) -> _Reading:
    """Read what changed since the newest manifest, in a snapshot that is younger than it."""
    at, base = time.time_ns() // 1_000_000, manifests.newest(log.objects, source.file_id)

    def shipped(epoch: Epoch, table: str) -> dict[int, Known]:
        return log.known(LoggedFile(base), epoch, table)

    with snapshot(source):
        present = Present.of(source)
        found = recognised(source, present, base, shipped)
        changed = changes(source, present, found.epoch, limit, shipped)
        return _Reading(at, base, present, found, changed)


def _commit(source: Source, objects: Objects, reading: _Reading) -> Manifest | None:
    """Write the segments and the manifest that names them; return None if another was first."""
    base, changed = reading.base, reading.changed
    epoch = replace(changed.epoch, latest=base.number + 1)
    writer = Writer(
        objects,
        file_id=source.file_id,
        agent=source.agent,
        epoch=epoch.number,
        number=epoch.latest,
    )
    added: list[Segment] = []
    for name, rows in changed.rows.items():
        try:
            added += writer.rows(reading.present.shapes[name], rows)
        except pa.ArrowException as error:  # a column of a newer version has another type
            raise Unreadable(source.path, "newer", f"{name}: {error}") from error
    manifests.checked(added, objects)
    others = (each for each in base.epochs if each.number != epoch.number)
    manifest = base.next(
        agent=source.agent,
        complete=changed.complete,
        epoch=epoch.number,
        epochs=tuple(sorted((*others, epoch), key=lambda each: each.number)),
        segments=(*base.segments, *added),
        shipped_at=reading.at,
        path=_place(source),
    )
    if manifests.commit(objects, manifest):
        if not base.number:  # a reader of the log always finds one
            manifests.note_level(objects, manifest, reading.at)
        return manifest
    _dropped(objects, source.file_id, added)
    return None


def _place(source: Source) -> str:
    return os.path.realpath(source.path)


def _dropped(objects: Objects, file_id: str, added: Iterable[Segment]) -> None:
    """Remove segments that no commit names: this one was not made."""
    named = {segment.path for segment in manifests.newest(objects, file_id).segments}
    for segment in added:
        if segment.path not in named:
            objects.remove(segment.path)
