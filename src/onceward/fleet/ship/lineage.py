"""
Recognise which history a file continues: a restored or copied file has another one.

A file continues an epoch if none of its counters is behind what was seen of it, and its rows that
were seen last are the same, as far as they are still there. A file that continues none begins a
new epoch: all that it holds is shipped again under the new number, and nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from onceward.fleet.opening import Source, Unreadable, opened
from onceward.fleet.rows import snapshot
from onceward.fleet.ship.changes import LATE, Present, late_changes
from onceward.fleet.ship.manifest import Epoch, Manifest, Place
from onceward.fleet.ship.tables import Known, Shape

History = Literal["same", "new", "restored", "copied"]
"""How a file relates to its log: ``restored``: it continues no epoch that was seen, as it is older
than its log, or has other rows; ``copied``: it continues an epoch that is not the latest one, so
two files with its id are in use."""
IDS: Final = "SELECT seq, id FROM {view} WHERE seq <= ?"


@dataclass(frozen=True, slots=True)
class Found:
    """The epoch that a file continues, and how that was found."""

    epoch: Epoch
    history: History


def recognised(
    source: Source,
    present: Present,
    manifest: Manifest,
    shipped: Callable[[Epoch, str], Mapping[int, Known]],
) -> Found:
    """
    Return the epoch that the file continues, or a new one.

    *shipped* returns the log's rows of an epoch's table by sequence: a new epoch asks
    for them, to find how far the two histories are the same.
    """
    if not manifest.epochs:
        return Found(Epoch(1, first=1), "new")
    for epoch in sorted(manifest.epochs, key=_progress, reverse=True):
        if continues(source, present, epoch):
            latest = epoch.number == manifest.epoch
            return Found(epoch, "same" if latest else "copied")
    number = max(epoch.number for epoch in manifest.epochs) + 1
    branches = [
        Epoch(
            number,
            parent=parent.number,
            inherited={
                name: _common(
                    source, shape, parent.places.get(name, Place()), shipped(parent, name)
                )
                for name, shape in present.shapes.items()
            },
            first=manifest.number + 1,
        )
        for parent in filter(manifest.lives, manifest.epochs)
    ]
    return Found(max(branches, key=lambda each: sum(each.inherited.values())), "restored")


def continues(source: Source, present: Present, epoch: Epoch) -> bool:
    """Return whether the file is consistent with its earlier state in an epoch."""
    if _behind(present, epoch):
        return False
    late = late_changes(source.con, epoch.changes)
    for name, place in epoch.places.items():
        shape = present.shapes[name]
        if not _same_ids(source, shape, place):
            return False
        changed = None if late is None else {each.seq for each in late if each.box == name}
        if changed is not None and not _same_rows(source, shape, place, changed):
            return False
    return True


def going_on(path: str, epochs: Iterable[Epoch]) -> Present | None:
    """Return the facts of the file at a path if it continues one of the epochs, and is readable."""
    try:
        with opened(path) as source, snapshot(source):
            present = Present.of(source)
            goes_on = any(continues(source, present, epoch) for epoch in epochs)
            return present if goes_on else None
    except Unreadable:
        return None


def _progress(epoch: Epoch) -> tuple[int, ...]:
    """Return how far an epoch is: a file continues the furthest one, not a backup's of itself."""
    highs = sum(place.high for place in epoch.places.values())
    return epoch.opened, highs, epoch.changes, epoch.clock, epoch.latest


def _behind(present: Present, epoch: Epoch) -> bool:
    """Return whether a counter of the file, which never goes back, is behind."""
    reopened = present.opened == epoch.opened and present.opened_at != epoch.opened_at
    return (
        reopened
        or present.opened < epoch.opened
        or present.clock < epoch.clock
        or present.high[LATE] < epoch.changes
        or any(present.high[name] < place.high for name, place in epoch.places.items())
    )


def _same_ids(source: Source, shape: Shape, place: Place) -> bool:
    rows = shape.named(source.con, place.last)
    return all(str(shape.value(row, "id")) == place.last[row.seq] for row in rows)


def _same_rows(source: Source, shape: Shape, place: Place, changed: set[int]) -> bool:
    if place.columns != tuple(shape.columns):
        return True  # the schema was upgraded: digests of old rows may differ
    rows = shape.named(source.con, place.ended.keys() - changed)
    return all(row.digest == place.ended[row.seq] for row in rows)


def _common(source: Source, shape: Shape, place: Place, shipped: Mapping[int, Known]) -> int:
    """Return the last sequence up to which the rows of file and log have the same ids."""
    present: Iterable[tuple[object, ...]] = source.con.execute(
        IDS.format(view=shape.table.view), (place.high,)
    )
    both = sorted((int(seq), str(id_)) for seq, id_ in present)  # type: ignore[call-overload]
    common = 0
    for seq, id_ in both:
        if seq not in shipped:
            continue
        if shipped[seq].id != id_:
            break
        common = seq
    return common
