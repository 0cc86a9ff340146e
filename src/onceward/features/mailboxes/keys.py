"""Keep only the newest message of each key in mailboxes with that option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceward.core.accept.policy import Endings
from onceward.core.rows import inbox
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.frame import Frame

RETURNED: Final = """
SELECT b.frame ->> '$.mailboxkey',
       EXISTS (SELECT 1
                 FROM _onceward_inbox AS n
                WHERE n.mailbox = b.mailbox
                  AND n.mailbox_key = b.frame ->> '$.mailboxkey'
                  AND n.state = 'pending')
  FROM _onceward_inbox AS b
 WHERE b.sender = ? AND b.id = ? AND json_valid(b.frame)
"""


def supersede(endings: Endings, tx: StoreTransaction, sender: str, frames: Sequence[Frame]) -> None:
    """
    End the previous message of each key, in the commit that stores the new ones.

    Each new message, in order, ends at most one, so the work is bounded.
    """
    del endings
    ended = 0
    for each in frames:
        key = str(each.mailboxkey)
        ended += inbox.supersede(tx, str(each.mailbox), key)
        inbox.name_key(tx, key, sender, each.id)
    bump(tx, dropped=ended, ended=ended)


def readmit(tx: StoreTransaction, sender: str, message_id: str) -> None:
    """Restore the key of a returning message, or end the message if a newer one has its key."""
    [(key, superseded)] = tx.rows(RETURNED, (sender, message_id)) or [(None, False)]
    if superseded:
        ended = inbox.supersede_one(tx, sender, message_id)
        bump(tx, dropped=ended, ended=ended)
    elif key is not None:
        inbox.name_key(tx, key, sender, message_id)
