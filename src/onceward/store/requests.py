"""Store requests that wait for a reply, so that waiting survives a restart of the asker."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceward.db.transaction import StoreTransaction
from onceward.model.clock import Millis
from onceward.model.vocabulary import RequestState

OPEN: Final = """
INSERT INTO _onceward_pending_replies (id, session, recipient, asked_at, deadline_at)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
LOOK: Final = """
SELECT t.state, t.reason, t.recipient, b.frame
  FROM _onceward_pending_replies AS t
  LEFT JOIN _onceward_inbox AS b ON b.id = t.reply_id AND b.sender = t.recipient
 WHERE t.id = ?
"""


class ReplyState(NamedTuple):
    """The state of a request: open, answered, late or failed; ``frame`` is the reply."""

    state: RequestState
    reason: str | None
    recipient: str
    frame: str | None


def open_ticket(
    tx: StoreTransaction,
    *,
    message_id: str,
    session: str,
    recipient: str,
    deadline_at: Millis | None,
) -> None:
    """Record that a reply is awaited, in the transaction of the request."""
    tx.run(OPEN, (message_id, session, recipient, tx.now, deadline_at))
