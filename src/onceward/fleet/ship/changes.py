"""
Find the changes in one file since its log was last up to date, in one snapshot.

A row has changed if its sequence is above the last one that was seen (it is new), if it could
still change when it was shipped (it is compared by its digest, or it is gone), or if the file's
record of late changes names it: a trigger writes there what happens to rows that had ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import apsw

from onceward.fleet.opening import Source, lacking
from onceward.fleet.ship.manifest import Epoch, Place
from onceward.fleet.ship.tables import TABLES, Known, Row, Shape, day_of

INFO: Final = "SELECT opened, opened_at, clock_at, outbox_pruned_at FROM _onceward_file_info"
COUNTED: Final = "SELECT name, seq FROM sqlite_sequence WHERE name GLOB '_onceward_*'"
HORIZONS: Final = "SELECT sender, horizon_id FROM onceward_streams WHERE horizon_id <> ''"
LATE: Final = "_onceward_late_changes"
LATE_FIRST: Final = "SELECT seq FROM _onceward_late_changes ORDER BY seq LIMIT 1"
LATE_CHANGES: Final = """
SELECT box, row_seq, row_at, peer, id FROM _onceward_late_changes WHERE seq > ? ORDER BY seq
"""
TAIL: Final = 8
"""Rows of each kind by which a file is recognised."""


class Late(NamedTuple):
    """A change of a row that had ended."""

    box: str
    seq: int
    at: int
    peer: str
    id: str


@dataclass(frozen=True, slots=True)
class Present:
    """Facts of a file at one moment that are read before its rows."""

    opened: int
    opened_at: int
    clock: int
    outbox_pruned_at: int | None
    high: Mapping[str, int]
    """The highest sequence ever given, by table; also of the record of late changes."""
    horizons: Mapping[str, str]
    shapes: Mapping[str, Shape]

    @classmethod
    def of(cls, source: Source) -> Present:
        """Read the facts; raise Unreadable if the file's schema lacks shipped columns."""
        shapes = {name: Shape.of(source, table) for name, table in TABLES.items()}
        if not source.columns(LATE):
            raise lacking(source, LATE)
        [(opened, opened_at, clock, pruned)] = source.con.execute(INFO).fetchall()
        given = {str(name): int(seq) for name, seq in source.con.execute(COUNTED)}
        high = {name: given.get(table.counter, 0) for name, table in TABLES.items()}
        horizons = {str(sender): str(id_) for sender, id_ in source.con.execute(HORIZONS)}
        return cls(
            int(opened),  # type: ignore[arg-type]  # strict columns
            int(opened_at),  # type: ignore[arg-type]
            int(clock),  # type: ignore[arg-type]
            None if pruned is None else int(pruned),
            high | {LATE: given.get(LATE, 0)},
            horizons,
            shapes,
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that is read of one file in one snapshot; what may still change comes last."""

    rows: int = 50_000
    bytes: int = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed rows, and the state of the epoch once they are shipped."""

    rows: Mapping[str, tuple[Row, ...]]
    epoch: Epoch
    complete: bool

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(len(rows) for rows in self.rows.values())


@dataclass(slots=True)
class Budget:
    """The rest of a limit."""

    rows: int
    bytes: int

    def spend(self, row: Row) -> None:
        """Take a row, which may be larger than what is left."""
        self.rows -= 1
        self.bytes -= sum(len(value) for value in row.values if isinstance(value, str))

    @property
    def left(self) -> bool:
        """Whether another row may be read."""
        return self.rows > 0 and self.bytes > 0


def late_changes(con: apsw.Connection, after: int) -> list[Late] | None:
    """Return the late changes above a sequence; None if the file has pruned some of them."""
    first = con.execute(LATE_FIRST).fetchall()
    found = [Late(*row) for row in con.execute(LATE_CHANGES, (after,))]
    given = max((int(seq) for _, seq in con.execute(COUNTED) if _ == LATE), default=0)
    oldest = int(first[0][0]) if first else given + 1  # type: ignore[arg-type]
    return found if given <= after or oldest <= after + 1 else None


def changes(
    source: Source,
    present: Present,
    epoch: Epoch,
    limit: Limit,
    shipped: Callable[[Epoch, str], Mapping[int, Known]],
) -> Changes:
    """Return what changed in a file since *epoch*, within the limit; in the caller's snapshot."""
    reading = _Reading(source, present, epoch, shipped)
    budget = Budget(limit.rows, limit.bytes)
    fresh = {name: reading.fresh(name, budget) for name in present.shapes}
    late = {name: reading.late(name) for name in present.shapes}
    complete = all(high == present.high[name] for name, (_, high) in fresh.items())
    if complete:
        late = {
            name: [*found, *reading.open(name, {row.seq for row in found})]
            for name, found in late.items()
        }
    rows = {name: (*late[name], *fresh[name][0]) for name in present.shapes}
    places = {
        name: _after(replace(reading.place(name), high=fresh[name][1]), shape, rows[name])
        for name, shape in present.shapes.items()
    }
    return Changes(rows, _advanced(epoch, present, places), complete)


def _advanced(epoch: Epoch, present: Present, places: Mapping[str, Place]) -> Epoch:
    return replace(
        epoch,
        opened=present.opened,
        opened_at=present.opened_at,
        clock=max(epoch.clock, present.clock),
        changes=present.high[LATE],
        places=places,
        horizons=present.horizons,
        outbox_pruned_at=present.outbox_pruned_at,
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """One snapshot of a file, and its earlier state."""

    source: Source
    present: Present
    epoch: Epoch
    shipped: Callable[[Epoch, str], Mapping[int, Known]]

    def place(self, name: str) -> Place:
        return self.epoch.places.get(name, Place())

    def fresh(self, name: str, budget: Budget) -> tuple[list[Row], int]:
        """Return new rows within the budget, and the sequence up to which they are complete."""
        found, before, high = [], self.place(name).high, self.present.high[name]
        if not budget.left:
            return [], before
        for row in self.present.shapes[name].rows(self.source.con, before, high):
            found.append(row)
            budget.spend(row)
            if not budget.left:
                return found, row.seq
        return found, high

    def late(self, name: str) -> list[Row]:
        """Return rows that changed after they had ended."""
        told, shape = late_changes(self.source.con, self.epoch.changes), self.present.shapes[name]
        if told is None:
            return self._compared(name)
        high = self.place(name).high
        changed = {each.seq: each for each in told if each.box == name and each.seq <= high}
        there = {row.seq: row for row in shape.named(self.source.con, changed)} if changed else {}
        gone = (
            Row(seq, day_of(late.at), again=True)
            for seq, late in sorted(changed.items())
            if seq not in there and _gone(late, self.present.horizons)
        )
        return [*(replace(row, again=True) for row in there.values()), *gone]

    def _compared(self, name: str) -> list[Row]:
        """Return all rows again, and the dead letters that the log has and the file has not."""
        high, shape = self.place(name).high, self.present.shapes[name]
        rows = [replace(row, again=True) for row in shape.rows(self.source.con, 0, high)]
        if name != "dead_letters":
            return rows
        there = {row.seq for row in rows}
        known = self.shipped(self.epoch, name)
        gone = (Row(seq, known[seq].day, again=True) for seq in sorted(known.keys() - there))
        return [*rows, *gone]

    def open(self, name: str, seen: set[int]) -> list[Row]:
        """Return those of the rows that could still change that did."""
        place, shape = self.place(name), self.present.shapes[name]
        seqs = place.open.keys() - seen
        there = {row.seq: row for row in shape.named(self.source.con, seqs)} if seqs else {}
        same = place.columns in {(), tuple(shape.columns)}
        found = []
        for seq in sorted(seqs):
            digest, day = place.open[seq]
            if seq not in there:
                found.append(Row(seq, day, again=True))
            elif there[seq].digest != digest or not same:
                found.append(replace(there[seq], again=True))
        return found


def _gone(late: Late, horizons: Mapping[str, str]) -> bool:
    """Return whether a missing row was removed, not pruned by age."""
    if late.box == "processed":
        return late.id > horizons.get(late.peer, "")
    return late.box == "dead_letters"


def _after(place: Place, shape: Shape, rows: Iterable[Row]) -> Place:
    """Return the state of a table once these rows are shipped."""
    opened, last, ended = dict(place.open), dict(place.last), dict(place.ended)
    columns = tuple(shape.columns)
    for row in rows:
        opened.pop(row.seq, None)
        ended.pop(row.seq, None)
        if row.gone:
            last.pop(row.seq, None)
        elif shape.open(row):
            opened[row.seq] = (row.digest, row.day)
        elif shape.table.ended:
            ended[row.seq] = row.digest
        if not row.gone and not row.again:
            last[row.seq] = str(shape.value(row, "id"))
    return replace(
        place,
        columns=columns,
        open=opened,
        last=dict(sorted(last.items())[-TAIL:]),
        ended=dict(list(ended.items())[-TAIL:]),
    )
