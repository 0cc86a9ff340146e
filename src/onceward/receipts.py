"""Outcomes on their way back: written with the processed mark, carried by the next parcel, gone once delivered."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from onceward.clock import Millis
from onceward.parcel import Receipt
from onceward.tx import Tx

OWE: Final = "INSERT INTO receipts (peer, receipts, created_at) VALUES (?, ?, ?)"
OWED: Final = "SELECT seq, receipts FROM receipts WHERE peer = ? ORDER BY seq LIMIT ?"
PAID: Final = "DELETE FROM receipts WHERE peer = ? AND seq <= ?"
FORGIVE: Final = "DELETE FROM receipts WHERE created_at < ?"


def owe(tx: Tx, outcomes: Iterable[tuple[str, Receipt]]) -> None:
    """Note what senders are to be told; one row per sender and commit."""
    by_peer: dict[str, list[tuple[str, str, str | None]]] = {}
    for peer, receipt in outcomes:
        by_peer.setdefault(peer, []).append((receipt.id, receipt.state, receipt.reason))
    tx.many(OWE, [(peer, json.dumps(listed), tx.now) for peer, listed in by_peer.items()])


def owed(tx: Tx, peer: str, limit: int) -> tuple[int, tuple[Receipt, ...]]:
    """Return what *peer* is to be told next, and the mark up to which that goes."""
    rows = tx.rows(OWED, (peer, limit))
    listed = [Receipt(*entry) for _, text in rows for entry in json.loads(text)]
    return (rows[-1][0] if rows else 0), tuple(listed)


def paid(tx: Tx, peer: str, upto: int) -> None:
    """Forget what *peer* was told."""
    if upto:
        tx.run(PAID, (peer, upto))


def forgive(tx: Tx, *, before: Millis) -> int:
    """Forget what could not be told for long: the sender's next question gets the answer anyway."""
    return tx.run(FORGIVE, (before,))
