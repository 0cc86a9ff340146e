"""Answer for a message that came again; compare it with the one that came first, which stays."""

from __future__ import annotations

from typing import Final

from onceward.core.accept.judge import KnownMessage
from onceward.core.end import received
from onceward.core.rows import differing
from onceward.file.transaction import StoreTransaction
from onceward.message.frame import same_contents
from onceward.message.parcel import OTHER_CONTENTS, ParcelFrame, Receipt

KEPT_AS: Final = "SELECT frame FROM _onceward_inbox WHERE sender = ? AND id = ?"
TELLS: Final = ("processed", "duplicate")
"""States of receipts whose reason no row of the sender keeps."""


def present(known: KnownMessage) -> Receipt:
    """Return the receipt with the outcome of a message that came before."""
    return received.present(*known[:4])


def differs(tx: StoreTransaction, sender: str, carried: ParcelFrame, known: KnownMessage) -> bool:
    """Return whether a message came again with other contents; False if the first is pruned."""
    if known.digest is None or known.digest == carried.digest.hex():
        return False
    [(kept,)] = tx.rows(KEPT_AS, (sender, known.id))
    return not same_contents(kept, carried.text)


def noted(tx: StoreTransaction, sender: str, message_id: str) -> tuple[str, ...]:
    """Record a message that came with other contents; return it unless it was recorded."""
    return differing.note(tx, "inbox", sender, [message_id])


def told(receipt: Receipt) -> Receipt:
    """Return a receipt that also tells the sender that the first message has other contents."""
    if receipt.state not in TELLS:
        return receipt
    return receipt._replace(reason="; ".join(filter(None, (receipt.reason, OTHER_CONTENTS))))
