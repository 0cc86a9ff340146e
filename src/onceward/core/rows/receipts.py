"""Store receipts: written with the dedup record, deleted once a parcel delivered them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pydantic_core import from_json, to_json

from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis
from onceward.message.parcel import Receipt

ENQUEUE: Final = "INSERT INTO _onceward_receipts (peer, receipts, created_at) VALUES (?, ?, ?)"
PENDING: Final = """
SELECT r.seq, r.receipts, s.epoch, s.number
  FROM _onceward_receipts AS r
  LEFT JOIN _onceward_sender_streams AS s ON s.sender = r.peer
 WHERE r.peer = ? ORDER BY r.seq LIMIT ?
"""
SHORTEN: Final = "UPDATE _onceward_receipts SET receipts = :first WHERE seq = :seq"
REST: Final = """
INSERT INTO _onceward_receipts (peer, receipts, created_at)
SELECT peer, :rest, created_at FROM _onceward_receipts WHERE seq = :seq
"""
DELIVERED: Final = "DELETE FROM _onceward_receipts WHERE peer = ? AND seq <= ?"
DUE: Final = """
SELECT EXISTS (SELECT 1
                 FROM _onceward_receipts AS r LEFT JOIN _onceward_peers AS p ON p.name = r.peer
                WHERE coalesce(p.due_at, 0) <= ?1
                  AND coalesce(substr(p.url, 1, instr(p.url, ':') - 1), '') NOT IN
                      (SELECT value FROM json_each(?2))
                  AND ':' || r.peer NOT IN (SELECT value FROM json_each(?2)))
"""
PRUNE: Final = "DELETE FROM _onceward_receipts WHERE created_at < ?"


def enqueue(tx: StoreTransaction, outcomes: Iterable[tuple[str, Receipt]]) -> None:
    """Store receipts for senders, one row per sender and commit; apply those to oneself at once."""
    by_peer: dict[str, list[Receipt]] = {}
    for peer, receipt in outcomes:
        if tx.take_receipt is not None and tx.take_receipt(peer, receipt):
            continue
        by_peer.setdefault(peer, []).append(receipt)
    rows: list[tuple[str, str, Millis]] = []
    own = tx.own
    for peer, listed in by_peer.items():
        if own is not None and peer == own.agent:
            own.settle(tx, listed)
            continue
        tx.outgoing[peer] = None
        rows.append((peer, to_json(listed).decode(), tx.now))
    if rows:
        tx.many(ENQUEUE, rows)


class PendingReceipts(NamedTuple):
    """The next receipts for a peer."""

    upto: int = 0
    """Sequence of its last row."""
    receipts: tuple[Receipt, ...] = ()
    stream_position: tuple[str, int] | None = None
    """Position of the peer's stream to us when the receipts were produced."""


NONE: Final = PendingReceipts()


def pending(tx: StoreTransaction, peer: str, limit: int) -> PendingReceipts:
    """Return the next receipts for *peer*."""
    rows = tx.rows(PENDING, (peer, limit))
    if not rows:
        return NONE
    upto, _, epoch, number = rows[-1]
    listed = [Receipt(*entry) for _, text, *_ in rows for entry in from_json(text)]
    return PendingReceipts(upto, tuple(listed), None if epoch is None else (epoch, number))


def first(
    tx: StoreTransaction, owed: PendingReceipts, peer: str, *, count: int, limit: int
) -> PendingReceipts:
    """
    Return the first *count* of the next receipts for a peer; the others come later.

    The row in which they end is split in two. *limit* is that of ``pending``.
    """
    taken, upto = 0, 0
    for seq, text, *_ in tx.rows(PENDING, (peer, limit)):
        listed = from_json(text)
        if taken + len(listed) > count:
            if taken < count:
                here = {"first": to_json(listed[: count - taken]).decode(), "seq": seq}
                tx.run(REST, {"rest": to_json(listed[count - taken :]).decode(), "seq": seq})
                tx.run(SHORTEN, here)
                upto = seq
            break
        taken, upto = taken + len(listed), seq
    return owed._replace(upto=upto, receipts=owed.receipts[:count])


def any_due(rows: Rows, now: Millis, elsewhere: str) -> bool:
    """Return whether receipts wait for a peer; *elsewhere*: schemes and :peers of others."""
    return bool(rows(DUE, (now, elsewhere))[0][0])


def delivered(tx: StoreTransaction, peer: str, upto: int) -> None:
    """Delete the receipts that *peer* got."""
    if upto:
        tx.run(DELIVERED, (peer, upto))


def prune(tx: StoreTransaction, *, before: Millis) -> int:
    """Delete receipts that were long undeliverable; the sender's next query repeats them."""
    return tx.run(PRUNE, (before,))
