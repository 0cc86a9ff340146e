"""Find new rows in a fleet since given positions, without Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, cast

from onceward.fleet import files
from onceward.fleet.columns import Part
from onceward.fleet.files import Found
from onceward.fleet.opening import Source, Unreadable, resting
from onceward.fleet.plan import Slice
from onceward.fleet.spark.options import Options
from onceward.fleet.spark.positions import NO_ROW, UNKNOWN, Anchor, Position, Positions
from onceward.message.clock import monotonic
from onceward.message.log import log

HIGH: Final = "SELECT seq FROM sqlite_sequence WHERE name = ?"
"""The highest number ever given, which pruning does not lower; one table under its own name."""
BELOW: Final = "SELECT seq, {id}, {at} FROM {table} WHERE seq <= ? ORDER BY seq DESC LIMIT 64"
"""Writers that share a commit may swap moments, never with rows this far away."""


class Rows(NamedTuple):
    """The table behind a view: reading it is faster, and ten thousand files are read."""

    table: str
    id: str
    at: str
    """When a row was written."""


COUNTED: Final = {
    "onceward_outbox": Rows("_onceward_outbox", "id", "created_at"),
    "onceward_inbox": Rows("_onceward_inbox", "id", "received_at"),
    "onceward_processed_messages": Rows(
        "_onceward_processed_messages", "message_id", "processed_at"
    ),
    "onceward_dead_letters": Rows("_onceward_dead_letters", "id", "dead_at"),
    # A message has many of them, and may have others after a restore.
    "onceward_transitions": Rows("_onceward_transitions", "id || to_state || at", "at"),
    "onceward_runs": Rows("_onceward_runs", "id", "started_at"),
    "onceward_failed_attempts": Rows("_onceward_failed_attempts", "message_id", "failed_at"),
    "onceward_drops": Rows("_onceward_drops", "id", "dropped_at"),
}
SETTLED_NS: Final = 2_000_000_000
"""A file that changed less than this ago is examined again: its times may not show a change."""
ROW_BYTES: Final = 512
MOST_TOLD: Final = 100
"""Agents that a report of the lag names."""
MOST_LOOKS: Final = 8
"""Looks after which each file of a fleet was examined, however slow its disk is."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest position in a file."""

    file_id: str
    high: int
    anchor: Anchor = NO_ROW
    """Newest row that is left."""
    forked: Position | None = None
    """A position that this file has never had, though its number was reached: it was restored."""
    agent: str = ""


class Follower:
    """Examines a fleet repeatedly; files that did not change are not opened again."""

    def __init__(self, options: Options) -> None:
        self._options = options
        [self._part] = options.chosen.parts
        self._heads: dict[str, tuple[Found, Head]] = {}
        self._told: dict[str, str] = {}
        self._left: list[Found] = []
        self._share = 0
        self._there: frozenset[str] = frozenset()
        self._seen: set[str] = set()
        self.behind = False
        """Whether there are files that were not examined yet: their turn comes next time."""

    def heads(self, known: Positions) -> Mapping[str, Head]:
        """
        Return how far each file was read, and report those that vanished or cannot be read.

        Some seconds of looking, or an eighth of the files if that takes longer, then the rest
        waits for the next call. Files are listed again once each of the last list had its turn.
        """
        if not self._left:
            self._list(known)
        began, before, looked = monotonic(), time.time_ns(), 0
        # In threads it was slower: SQLite parses each schema again.
        while self._left and (
            looked < self._share or monotonic() - began <= self._options.look_for
        ):
            one = self._left.pop()
            self._keep(one, self._stat(one, known.get(one.path)), before)
            looked += 1
        self.behind = not self._there <= self._seen
        return {path: head for path, (_, head) in self._heads.items()}

    def anchored(self, known: Positions, reached: Positions) -> Positions:
        """
        Return *reached* with an anchor in each file in whose middle a limit ends the batch.

        A file that was restored or left meanwhile stays where it is *known* to be.
        """
        if reached is known:
            return known
        made = dict(reached)
        for path in [path for path, one in reached.items() if one.anchor_seq < 0]:
            found = self._anchor(path, reached[path], known.get(path))
            if found is not None:
                made[path] = found
            elif path in known:
                made[path] = known[path]
            else:
                del made[path]
        return known if made == dict(known) else made

    def _anchor(self, path: str, reached: Position, known: Position | None) -> Position | None:
        head, row = self._look(path, known, reached.seq) or (None, NO_ROW)
        start = None if head is None else begin(known, head)
        if start is None or (start.file_id, start.epoch) != (reached.file_id, reached.epoch):
            self._heads.pop(path, None)  # it is examined again
            return None
        return reached.at(row)

    def _list(self, known: Positions) -> None:
        found = self._options.files()
        self._left = [one for one in reversed(found) if not self._fresh(one)]
        self._share = -(-len(self._left) // MOST_LOOKS)
        self._there = frozenset(one.path for one in found)
        self._seen &= self._there
        self._heads = {path: kept for path, kept in self._heads.items() if path in self._there}
        for path in known.keys() - self._there:
            self._tell(path, "vanished")

    def _keep(self, found: Found, head: Head | None, before: int) -> None:
        self._seen.add(found.path)
        if head is None:
            self._heads.pop(found.path, None)
            return
        settled = before - found.changed_ns > SETTLED_NS
        self._heads[found.path] = (found if settled else replace(found, mark=(0, 0, 0, 0, 0)), head)

    def _fresh(self, found: Found) -> bool:
        cached = self._heads.get(found.path)
        return cached is not None and cached[0].mark == found.mark

    def _stat(self, found: Found, known: Position | None) -> Head | None:
        if self._options.copy != "always" and _rests(found):
            with suppress(Unreadable), resting(found.path) as source:
                now = head(source, self._part, known)
                if files.stat(found.path) == found:
                    return now
        looked = self._look(found.path, known)
        return None if looked is None else looked[0]

    def _look(
        self, path: str, known: Position | None, seq: int | None = None
    ) -> tuple[Head, Anchor] | None:
        try:
            with self._options.opened(path) as source:
                now = head(source, self._part, known)
                return now, now.anchor if seq is None else below(
                    source, COUNTED[self._part.view], seq
                )
        except Unreadable as error:
            if not self._options.leaves_out(error.reason):
                raise
            self._tell(path, error.reason)
            return None

    def _tell(self, path: str, what: str) -> None:
        if self._told.get(path) != what:
            log.warning("file skipped", file=path, why=what)
            self._told[path] = what


def _rests(found: Found) -> bool:
    """Return whether all of a file is in the file itself, and a change would show in its times."""
    quiet = time.time_ns() - found.changed_ns > SETTLED_NS
    return quiet and not found.wal_size and files.stat(f"{found.path}-journal") is None


def head(source: Source, part: Part, known: Position | None) -> Head:
    """Return how far a file goes, and whether it still holds what was read of it."""
    rows = COUNTED[part.view]
    found = source.con.execute(HIGH, (rows.table,)).fetchall()
    high = cast("int", found[0][0]) if found else 0  # without a number there may be no table
    forked = (
        known
        if known is not None
        and (known.file_id, True) == (source.file_id, 0 < known.seq <= high)
        and known.differs(below(source, rows, known.seq))
        else None
    )
    newest = below(source, rows, high) if high else NO_ROW
    return Head(source.file_id, high, newest, forked, source.agent)


def below(source: Source, rows: Rows, seq: int) -> Anchor:
    """Return the newest row that is left of those up to *seq*."""
    sql = BELOW.format(**rows._asdict())
    found = cast("list[tuple[int, str, int]]", source.con.execute(sql, (seq,)).fetchall())
    return Anchor(found[0][0], found[0][1], max(at for _, _, at in found)) if found else NO_ROW


def begin(known: Position | None, now: Head) -> Position:
    """Return the position from which to continue reading a file."""
    if known is None:
        return Position(now.file_id, 0, change="new")
    if known.file_id != now.file_id:
        return Position(now.file_id, 0, known.epoch + 1, change="replaced")
    if now.high < known.seq or now.forked == known:
        return Position(now.file_id, 0, known.epoch + 1, change="restored")
    return replace(known, change="") if known.change else known


def _is_read(known: Position | None, now: Head) -> bool:
    return (
        known is not None
        and known.seq == now.high
        and known.file_id == now.file_id
        and now.forked is None
    )


def advance(known: Positions, heads: Mapping[str, Head], limit: int | None) -> Positions:
    """
    Return the positions after the next batch of about *limit* rows; *known* if nothing is new.

    Every file that has something gets its share first, so that one busy file
    does not keep the others waiting.
    """
    starts = {
        path: begin(known.get(path), now)
        for path, now in sorted(heads.items())
        if not _is_read(known.get(path), now)
    }
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
    return replace(start, seq=seq).at(now.anchor if seq == now.high else UNKNOWN)


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


def lag(reached: Positions, heads: Mapping[str, Head]) -> dict[str, Any]:
    """Return how many rows wait behind *reached*, in all and by agent, for those with most."""
    waiting: Counter[str] = Counter()
    for path, now in heads.items():
        if not _is_read(reached.get(path), now):
            waiting[now.agent] += now.high - begin(reached.get(path), now).seq
    rows = sum(now.high for now in heads.values())
    worst = {agent: count for agent, count in waiting.most_common(MOST_TOLD) if count}
    return {"files": len(heads), "rows": rows, "lag": waiting.total(), "lag_by_agent": worst}


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
