"""Find what is new in a fleet since given positions; knows files, and nothing of Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from onceward.fleet import files
from onceward.fleet.columns import Part
from onceward.fleet.files import Found
from onceward.fleet.opening import Source, Unreadable, opened
from onceward.fleet.plan import Slice
from onceward.model.log import log
from onceward.spark.options import Options
from onceward.spark.positions import Position, Positions

HIGH: Final = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = ?), 0)"
"""The highest number ever given, which pruning does not lower; one table under its own name."""
COUNTED: Final = {
    "onceward_outbox": "_onceward_outbox",
    "onceward_inbox": "_onceward_inbox",
    "onceward_processed_messages": "_onceward_processed_messages",
    "onceward_dead_letters": "_onceward_dead_letters",
    "onceward_transitions": "_onceward_transitions",
    "onceward_runs": "_onceward_runs",
}
AT: Final = "SELECT id FROM {view} WHERE seq = ?"
SETTLED_NS: Final = 2_000_000_000
"""A file that changed less than this ago is examined again: its times may not show a change."""
ROW_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Head:
    """How far a file goes now."""

    file_id: str
    high: int
    anchor: str
    """Id in the row of sequence *high*."""
    forked: Position | None = None
    """A position that this file has never had, though its number was reached: it was restored."""


class Follower:
    """Looks at a fleet again and again; files that did not change are not opened again."""

    def __init__(self, options: Options) -> None:
        self._options = options
        [self._part] = options.chosen.parts
        self._heads: dict[str, tuple[Found, Head]] = {}
        self._told: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        self._turn = 0
        self.behind = False
        """Whether there are files that were not examined yet: their turn comes next time."""

    def heads(self, known: Positions) -> Mapping[str, Head]:
        """
        Return how far each file was read, and report those that vanished or cannot be read.

        After some seconds the rest waits for the next call. The file that was not
        looked at for longest comes first, so that no file waits for ever.
        """
        found = files.find(self._options.path)
        self._turn += 1
        stale = sorted(
            (one for one in found if not self._fresh(one)),
            key=lambda one: self._turns.get(one.path, 0),
        )
        began, before = time.monotonic(), time.time_ns()
        for one in stale:  # in threads it was slower: SQLite parses each schema anew
            self._keep(one, self._stat(one, known.get(one.path)), before)
            if time.monotonic() - began > self._options.look_for:
                break
        there = {one.path for one in found}
        self.behind = not there <= self._turns.keys()
        self._heads = {path: head for path, head in self._heads.items() if path in there}
        self._turns = {path: turn for path, turn in self._turns.items() if path in there}
        for path in known.keys() - there:
            self._tell(path, "vanished")
        return {path: head for path, (_, head) in self._heads.items()}

    def _keep(self, found: Found, head: Head | None, before: int) -> None:
        self._turns[found.path] = self._turn
        if head is None:
            self._heads.pop(found.path, None)
            return
        settled = before - max(found.mark[2], found.mark[4]) > SETTLED_NS
        self._heads[found.path] = (found if settled else replace(found, mark=(0, 0, 0, 0, 0)), head)

    def _fresh(self, found: Found) -> bool:
        cached = self._heads.get(found.path)
        return cached is not None and cached[0].mark == found.mark

    def _stat(self, found: Found, known: Position | None) -> Head | None:
        try:
            with opened(
                found.path, copy=self._options.copy, busy_timeout=self._options.busy_timeout
            ) as source:
                return head(source, self._part, known)
        except Unreadable as error:
            if self._options.mode == "FAILFAST":
                raise
            self._tell(found.path, error.reason)
            return None

    def _tell(self, path: str, what: str) -> None:
        if self._told.get(path) != what:
            log.warning("file skipped", file=path, why=what)
            self._told[path] = what


def head(source: Source, part: Part, known: Position | None) -> Head:
    """Return how far a file goes, and whether it still holds what was read of it."""
    if not source.columns(part.view):
        return Head(source.file_id, 0, "")
    [(high,)] = source.con.execute(HIGH, (COUNTED[part.view],)).fetchall()
    reached = cast("int", high)
    forked = None
    if (
        known is not None
        and known.file_id == source.file_id
        and known.anchor
        and known.seq <= reached
    ):
        forked = known if _id_at(source, part, known.seq) not in {"", known.anchor} else None
    return Head(source.file_id, reached, _id_at(source, part, reached), forked)


def _id_at(source: Source, part: Part, seq: int) -> str:
    found = source.con.execute(AT.format(view=part.view), (seq,)).fetchall()
    return str(found[0][0]) if found else ""


def begin(known: Position | None, now: Head) -> Position:
    """Return from where a file is to be read on."""
    if known is None:
        return Position(now.file_id, 0, change="new")
    if known.file_id != now.file_id:
        return Position(now.file_id, 0, known.epoch + 1, change="replaced")
    if now.high < known.seq or now.forked == known:
        return Position(now.file_id, 0, known.epoch + 1, change="restored")
    return replace(known, change="")


def advance(known: Positions, heads: Mapping[str, Head], limit: int | None) -> Positions:
    """
    Return the positions after the next batch of about *limit* rows; *known* if nothing is new.

    Every file that has something gets its share first, so that one busy file
    does not keep the others waiting.
    """
    starts = {path: begin(known.get(path), now) for path, now in sorted(heads.items())}
    waiting = {
        path: heads[path].high - start.seq
        for path, start in starts.items()
        if heads[path].high > start.seq
    }
    granted = (
        waiting
        if limit is None
        else _shared(waiting, max(1, limit), sum(position.seq for position in known.values()))
    )
    if not granted:
        return known
    reached = {path: _reached(starts[path], heads[path], rows) for path, rows in granted.items()}
    return {**known, **reached}


def _reached(start: Position, now: Head, rows: int) -> Position:
    seq = start.seq + rows
    return replace(start, seq=seq, anchor=now.anchor if seq == now.high else "")


def _shared(waiting: Mapping[str, int], limit: int, turn: int) -> dict[str, int]:
    paths = list(waiting)
    first = turn % len(paths) if paths else 0
    order = (
        paths[first:] + paths[:first]
    )  # where there are more files than rows, others are first next time
    share = max(1, limit // len(order)) if order else 0
    granted: dict[str, int] = {}
    for most in (share, limit):
        for path in order:
            rows = min(waiting[path] - granted.get(path, 0), most, limit)
            if rows > 0:
                granted[path] = granted.get(path, 0) + rows
                limit -= rows
    return granted


def slices(start: Positions, end: Positions, target: int) -> Iterator[tuple[int, Slice]]:
    """Yield the slices between two positions, with sizes in bytes, none much over *target*."""
    for path, reached in end.items():
        known = start.get(path)
        if known == reached:
            continue
        goes_on = known is not None and (known.file_id, known.epoch) == (
            reached.file_id,
            reached.epoch,
        )
        after = known.seq if known is not None and goes_on else 0
        for low, high in _steps(after, reached.seq, max(1, target // ROW_BYTES)):
            yield (high - low) * ROW_BYTES, Slice(path, low, high, reached.file_id, reached.epoch)


def _steps(after: int, to: int, rows: int) -> Iterable[tuple[int, int]]:
    return ((low, min(low + rows, to)) for low in range(after, to, rows))
