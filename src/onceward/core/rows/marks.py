"""Write the dedup records: a message with one never takes effect again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from onceward.file.transaction import StoreTransaction, listed
from onceward.message.vocabulary import Outcome

# Records of messages of the inbox.
MARK: Final = """
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
SELECT sender, id, session, :outcome, :now
  FROM _onceward_inbox
 WHERE seq IN (SELECT value FROM json_each(:seqs))
"""
MARK_ONE: Final = """
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
VALUES (?, ?, ?, ?, ?)
"""


def add(tx: StoreTransaction, seqs: Sequence[int], outcome: Outcome | Literal["dead"]) -> None:
    """Record how messages of the inbox ended, so that none of them is accepted again."""
    statement, bound = listed(seqs, MARK)
    tx.run(statement, {"outcome": outcome, "now": tx.now, "seqs": bound})


def add_one(
    tx: StoreTransaction,
    sender: str,
    message_id: str,
    session: str,
    outcome: Outcome | Literal["dead"],
) -> None:
    """Record the end of a message, also of one that may still come: it is then refused."""
    tx.run(MARK_ONE, (sender, message_id, session, outcome, tx.now))
