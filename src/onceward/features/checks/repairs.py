"""
Find and repair leases and positions that no process repairs automatically.

A lease is shortened, never taken over: its token still fences a late writer, and the message is
claimed again as after any expired lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from onceward.core.contract import Change, LeaseTable, PositionTable
from onceward.core.rows import lanes, peers
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis, iso

RepairKind = Literal["lease", "position"]
FAR: Final[Millis] = 30 * 86_400_000
"""No lease should last this long; one that does came from a wrong clock or a damaged file."""


def _shorten_lane(tx: StoreTransaction, named: dict[str, Any]) -> bool:
    return lanes.shorten(tx, named["key"], until=named["until"])


LEASES: Final = (
    LeaseTable(
        "lane",
        """
        SELECT lane_id, 0, coalesce(sender || '/', '') || name, owner, due_at
          FROM _onceward_lanes
         WHERE owner IS NOT NULL AND due_at > :now
        """,
        _shorten_lane,
    ),
    LeaseTable(
        "peer",
        """
        SELECT name, 0, name, owner, lease_at
          FROM _onceward_peers
         WHERE owner IS NOT NULL AND lease_at > :now
        """,
        peers.shorten,
    ),
)
NEWEST: Final = (
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)"
)


def repairs() -> Sequence[LeaseTable]:
    """Return the leases of lanes and peers."""
    return LEASES


Died = Callable[[str], bool]
"""Returns whether the owner of a lease has died."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A fault of a file that no process repairs automatically, and its repair."""

    kind: RepairKind
    subject: str
    """The lane, peer, session or reader."""
    found: str
    change: str


class _Step(NamedTuple):
    repair: Repair
    change: Change
    named: dict[str, Any]


Tables = Sequence[LeaseTable | PositionTable]


def find(rows: Rows, now: Millis, lease_for: Millis, died: Died, tables: Tables) -> list[Repair]:
    """Return the faults to repair in *tables*, without changes."""
    return [step.repair for step in _steps(rows, now, lease_for, died, tables)]


def mend(tx: StoreTransaction, lease_for: Millis, died: Died, tables: Tables) -> list[Repair]:
    """Repair leases and positions of *tables*; return each change of this transaction."""
    steps = list(_steps(tx.rows, tx.now, lease_for, died, tables))
    return [step.repair for step in steps if step.change(tx, step.named)]


def _steps(
    rows: Rows, now: Millis, lease_for: Millis, died: Died, tables: Tables
) -> Iterator[_Step]:
    for table in tables:
        if isinstance(table, LeaseTable):
            yield from _leases(table, rows(table.find, {"now": now}), now, lease_for, died)
    [(newest,)] = rows(NEWEST, None)
    for table in tables:
        if isinstance(table, PositionTable):
            yield from _positions(table, rows(table.find, {"newest": newest}), newest)


def _positions(
    table: PositionTable, found: Iterable[tuple[Any, ...]], newest: int
) -> Iterator[_Step]:
    for key, name, seq, to in found:
        past = f"{table.said.format(name)} is at {seq}, past the last message {newest}"
        change = f"set to {to}, {table.where}"
        repair = Repair("position", f"{table.what} {name}", past, change)
        yield _Step(repair, table.change, {"to": to, "key": key, "from": seq})


def _leases(
    table: LeaseTable,
    found: Iterable[tuple[Any, ...]],
    now: Millis,
    lease_for: Millis,
    died: Died,
) -> Iterator[_Step]:
    for key, row, name, owner, ends in found:
        gone = died(owner)
        if not gone and ends - now <= FAR:
            continue
        why = "by a process that has ended" if gone else "longer than any lease should last"
        until = now if gone else now + lease_for
        change = "ends now" if gone else f"ends in {lease_for / 1000:g} s, unless it is prolonged"
        said = f"{table.what} {name} is leased until {iso(ends)}, {why}"
        repair = Repair("lease", f"{table.what} {name}", said, change)
        named = {"until": until, "key": key, "row": row, "owner": owner, "ends": ends}
        yield _Step(repair, table.change, named)
