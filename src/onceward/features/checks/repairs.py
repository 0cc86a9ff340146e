"""
Find and repair leases and positions that no process repairs automatically.

A lease is shortened, never taken over: its token still fences a late writer, and the message is
claimed again as after any expired lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from onceward.core.rows import lanes
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis, iso

RepairKind = Literal["lease", "position"]
FAR: Final[Millis] = 30 * 86_400_000
"""No lease should last this long; one that does came from a wrong clock or a damaged file."""


Change = Callable[[StoreTransaction, dict[str, Any]], object]
"""Changes a row; returns whether it was still as it was found."""


class LeaseTable(NamedTuple):
    """One kind of lease: the query that finds it, and the change that shortens it."""

    what: str
    find: str
    cut: Change


def _run(sql: str) -> Change:
    return lambda tx, named: tx.run(sql, named)


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
        _run(
            """
            UPDATE _onceward_peers
               SET lease_at = :until
             WHERE name = :key AND owner = :owner AND lease_at = :ends
            """
        ),
    ),
    LeaseTable(
        "mailbox reader",
        """
        SELECT h.reader_id, h.seq, r.name, h.owner, h.due_at
          FROM _onceward_mailbox_leases AS h
          JOIN _onceward_mailbox_readers AS r ON r.reader_id = h.reader_id
         WHERE h.owner IS NOT NULL AND h.due_at > :now
        """,
        _run(
            """
            UPDATE _onceward_mailbox_leases
               SET due_at = :until
             WHERE reader_id = :key AND seq = :row AND owner = :owner AND due_at = :ends
            """
        ),
    ),
)
NEWEST: Final = (
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)"
)
POLLS: Final = """
SELECT c.session, c.seq,
       min(:newest, coalesce((SELECT min(b.seq) - 1
                                FROM _onceward_inbox AS b
                               WHERE b.session = c.session AND b.state = 'pending'
                                 AND b.mailbox IS NULL), :newest))
  FROM _onceward_poll_cursors AS c
 WHERE c.seq > :newest
"""
SET_POLL: Final = "UPDATE _onceward_poll_cursors SET seq = :to WHERE session = :key AND seq = :from"
READERS: Final = """
SELECT reader_id, name, max(critical, urgent, normal, low, background)
  FROM _onceward_mailbox_readers
 WHERE max(critical, urgent, normal, low, background) > :newest
"""
SET_READER: Final = """
UPDATE _onceward_mailbox_readers
   SET critical = min(critical, :to), urgent = min(urgent, :to), normal = min(normal, :to),
       low = min(low, :to), background = min(background, :to)
 WHERE reader_id = :key
"""


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


def find(rows: Rows, now: Millis, lease_for: Millis, died: Died) -> list[Repair]:
    """Return the faults to repair, without changes."""
    return [step.repair for step in _steps(rows, now, lease_for, died)]


def mend(tx: StoreTransaction, lease_for: Millis, died: Died) -> list[Repair]:
    """Repair leases and positions; return each change of this transaction."""
    steps = list(_steps(tx.rows, tx.now, lease_for, died))
    return [step.repair for step in steps if step.change(tx, step.named)]


def _steps(rows: Rows, now: Millis, lease_for: Millis, died: Died) -> Iterator[_Step]:
    for table in LEASES:
        yield from _leases(table, rows(table.find, {"now": now}), now, lease_for, died)
    [(newest,)] = rows(NEWEST, None)
    for session, seq, to in rows(POLLS, {"newest": newest}):
        past = f"the cursor of session {session} is at {seq}, past the last message {newest}"
        change = f"set to {to}, before the oldest message that was not read"
        repair = Repair("position", f"session {session}", past, change)
        yield _Step(repair, _run(SET_POLL), {"to": to, "key": session, "from": seq})
    for reader_id, name, seq in rows(READERS, {"newest": newest}):
        past = f"the mailbox reader {name} is at {seq}, past the last message {newest}"
        repair = Repair("position", f"mailbox reader {name}", past, f"set to {newest}, the end")
        yield _Step(repair, _run(SET_READER), {"to": newest, "key": reader_id})


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
        yield _Step(repair, table.cut, named)
