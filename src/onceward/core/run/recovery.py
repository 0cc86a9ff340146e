"""
Recover what processes left that died, or that answer no more: their leases, calls and claims.

Recovery is claiming: each claim looks first at leases that ran out (``wake_due``) and at the notes
of dead processes (``take_over``). While its transaction is open no other process has one, so a
noted call whose claim is not in the file was rolled back with it.

Order of the steps for each lease: find its owner's record, count the calls that were begun, make
their messages be claimed alone, free the lane, and let it rest so that suspects come last.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Final, cast

from onceward.core.rows import claimable, holders, inbox, lanes
from onceward.core.rows.holders import LaneRow
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.file.in_flight import ALL_LEASED, HEADERS, CallRecords, OwnerRecord, process_of
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.log import log

PATIENCE: Final = 10
"""Leases that a process gets beyond the end of one, while its lock shows that it lives."""
LAST_FOR: Final = 60_000
"""Milliseconds for which a message that may have killed its process is claimed after all others."""
LOOK: Final = 1.0
"""Seconds between two looks of a waiting reader at leases whose process may have died."""
DIED: Final = "its process {} died during the call"
DIED_EARLY: Final = "its process died during the call, before the message was stored"
NOT_SETTLED: Final = "it was not settled before its lease ran out"
STANDS: Final = (
    "its process {} lives but has not prolonged its lease for {:.0f} s: "
    "the process was stopped, or one call held its interpreter"
)
LATE: Final = "its process {} lives, but its handler has not returned within its timeout"


def next_wakeup(db: Database, left: float | None) -> float | None:
    """
    Return how long a reader may wait until a lane may be free again, at most *left* seconds.

    The process that leased one may die before that without a notification.
    """
    due_at = claimable.next_due(db.read)
    if due_at is None:
        return left
    wait = max(0.001, min(LOOK, (due_at - db.now()) / 1000))
    return wait if left is None else min(wait, left)


def wake_due(tx: StoreTransaction) -> None:
    """
    Free the lanes whose backoff or lease has run out: recovery is claiming.

    A lease whose owner's process lives gets more time first, because that process may only be slow.
    """
    over = [
        lane.lane_id
        for lane in holders.due(tx)
        if lane.owner is None or _is_over(tx, lane, find_record(tx, lane.owner))
    ]
    if over:
        lanes.free(tx, over)


def _is_over(tx: StoreTransaction, lane: LaneRow, record: OwnerRecord | None) -> bool:
    """Count the calls of an expired lease; give a process that lives more time first."""
    if record is None or record.kind == "reader" or (record.lives and not record.lease):
        _blame(tx, lane, record, NOT_SETTLED)
    elif not record.lives:
        _blame(tx, lane, record, DIED.format(record.process))
    elif lane.late_at is None and lane.seqs:
        lanes.extend(tx, lane, until=tx.now + PATIENCE * record.lease, late_at=tx.now)
        return False
    elif lane.late_at:
        seconds = (tx.now - lane.late_at + record.lease) / 1000
        _blame(tx, lane, record, STANDS.format(record.process, seconds))
    else:
        _blame(tx, lane, record, LATE.format(record.process))
    return True


def _blame(tx: StoreTransaction, lane: LaneRow, record: OwnerRecord | None, seen: str) -> bool:
    """
    Count the calls of a lease that will never be settled; return whether there was one.

    Those messages are then claimed alone. Without notes a single message counts as called; of
    several, which may all have been called, each is claimed alone and counted beforehand.
    """
    seqs = lane.seqs
    if record is not None and record.kind == "call":
        begun = {each.seq for each in record.calls if each[:2] == (lane.lane_id, lane.token)}
        seqs = seqs if ALL_LEASED in begun else [seq for seq in seqs if seq in begun]
        calls = 1
    elif record is not None and record.kind == "run":  # its beginning has counted them
        noted = any(each[:2] == (lane.lane_id, lane.token) for each in record.calls)
        calls = 0 if noted else -1
    else:
        calls = int(len(seqs) == 1 and seqs[0] > lane.careful_to)
    if calls < 0:
        for seq in seqs:
            inbox.count_attempts(tx, seq, calls)
        return False
    for seq in seqs:
        inbox.count_unended(tx, seq, calls, seen)
    if seqs:
        lanes.isolate(tx, lane.lane_id, max(seqs))
        fields = {"lane": lane.lane_id, "messages": len(seqs), "owner": lane.owner}
        tx.after_commit(partial(log.write, "warning", f"lease taken over: {seen}", fields))
    return bool(seqs)


def find_record(tx: StoreTransaction, owner: str) -> OwnerRecord | None:
    """Return the record beside the file of an owner of leases; None if it has none."""
    return None if tx.in_flight is None else tx.in_flight.find(owner)


def take_over(tx: StoreTransaction) -> None:
    """
    Count the calls of other processes that nothing settles any more, and end dead owners' leases.

    While this transaction is open no other process has one, so a noted call whose claim is not in
    the file was rolled back with it.
    """
    if tx.in_flight is None or tx.in_flight.handle < 0:  # this process has no record
        return
    with suppress(OSError):
        if os.pread(tx.in_flight.handle, HEADERS, 0) == tx.in_flight.alone:
            return
    news = tx.in_flight.news()
    if dead := [each.owner for each in news if not each.lives]:
        end_dead_worker(tx, *dead)
    for record in news:
        if record.lives:
            _count_undone(tx, record)
            tx.after_commit(partial(tx.in_flight.known, record))


def _count_undone(tx: StoreTransaction, record: OwnerRecord) -> None:
    """
    Count noted calls whose claim was rolled back, and claim their messages last.

    The lane counts the call of a message that is not stored yet; see ``count_called``.
    """
    undone = dict[tuple[int, int, str], list[int | None]]()
    for *claim, seq in holders.undone(tx, record.calls) if record.calls else ():
        undone.setdefault(cast("tuple[int, int, str]", tuple(claim)), []).append(seq)
    for (lane_id, token, arriving), found in undone.items():
        if not (seqs := [seq for seq in found if seq is not None]):
            counted = lanes.note_called(tx, lane_id, token, arriving)
        elif counted := lanes.pass_token(tx, lane_id, token, isolate=max(seqs)):
            seen = DIED_EARLY if arriving else DIED.format(record.process)
            for seq in seqs:
                inbox.count_unended(tx, seq, 1, seen)
        if counted:
            lanes.rest(tx, lane_id, tx.now + LAST_FOR, suspect=True)


def count_called(tx: StoreTransaction, lane_id: int) -> None:
    """Count calls that a message's process has not survived; the message is stored by now."""
    for seq, calls in lanes.take_called(tx, lane_id):
        inbox.count_unended(tx, seq, calls, DIED_EARLY)
        lanes.isolate(tx, lane_id, seq)


def end_dead_worker(tx: StoreTransaction, *owners: str) -> None:
    """
    End the leases of owners whose process has died; messages that they had called come last.

    All leases end before undone claims are counted: one owner may have taken over the lease of
    another, or one that had run out, in a claim that was rolled back.
    """
    records = {owner: find_record(tx, owner) for owner in owners}
    for owner, record in records.items():
        _end_leases(tx, owner, record)
    wake_due(tx)
    for record in filter(None, records.values()):
        _count_undone(tx, record)
        tx.after_commit(partial(cast("CallRecords", tx.in_flight).ended, record))


def _end_leases(tx: StoreTransaction, owner: str, record: OwnerRecord | None) -> None:
    """
    End the leases of a dead owner.

    If it noted no calls and a message with an uncommitted claim may have killed it, the next
    messages of every lane are claimed alone, each counted before it is handled.
    """
    seen = DIED.format(process_of(owner))
    for lane in holders.held_by(tx, owner):
        called = _blame(tx, lane, record, seen)
        lanes.free(tx, [lane.lane_id])
        if called:
            lanes.rest(tx, lane.lane_id, tx.now + LAST_FOR, suspect=True)
    if holders.unregister(tx, owner) and (record is None or record.kind != "call"):
        lanes.isolate_heads(tx)


def release_own(tx: StoreTransaction, owner: str) -> None:
    """Release the lanes that an error left leased to *owner*; their messages are claimed alone."""
    held = holders.held_by(tx, owner)
    for lane in held:
        lanes.isolate(tx, lane.lane_id, max(lane.seqs, default=0))
    lanes.free(tx, [lane.lane_id for lane in held])


def end_workers(tx: StoreTransaction) -> None:
    """
    End the owners of leases that have died; the caller knows that no process has the file open.

    A registered worker is one; so is an owner of another machine or container, which cannot be
    asked whether it lives. The lease of a reader whose process lives runs out.
    """
    workers, found = holders.workers(tx.rows), holders.owners(tx.rows)
    end_dead_worker(tx, *(each for each in found if each in workers or file_checks.is_gone(each)))
    take_over(tx)


def rests_until(tx: StoreTransaction, lane_id: int) -> Millis | None:
    """Return until when a lane's messages come last; None if they have killed no process."""
    return tx.now + LAST_FOR if claimable.is_suspect(tx, lane_id) else None
