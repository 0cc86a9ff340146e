"""Look up messages by their ids for the events that name them: session, type, error, time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pydantic_core import to_json

from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

NAMES: Final = """
SELECT id, session, type, '', created_at FROM _onceward_outbox
 WHERE id IN (SELECT value FROM json_each(:ids)) AND recipient = :peer
 UNION ALL
SELECT id, session, type, '', received_at FROM _onceward_inbox
 WHERE sender = :peer AND id IN (SELECT value FROM json_each(:ids))
 UNION ALL
SELECT id, session, type, coalesce(last_error, ''), created_at FROM _onceward_dead_letters
 WHERE id IN (SELECT value FROM json_each(:ids)) AND peer = :peer
"""


class MessageNames(NamedTuple):
    """Session, type, last error and time of a message."""

    session: str
    type: str
    error: str
    """Last error of a dead letter, else empty."""
    at: Millis
    """When it was committed into the outbox or the inbox."""


def find_names(
    tx: StoreTransaction, peer: str, message_ids: Iterable[str]
) -> dict[str, MessageNames]:
    """Return names by id of messages to or from *peer*; pruned ones are left out."""
    rows = tx.rows(NAMES, {"ids": to_json(list(message_ids)).decode(), "peer": peer})
    return {message_id: MessageNames(*names) for message_id, *names in rows}
