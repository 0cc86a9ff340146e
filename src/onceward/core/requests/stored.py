"""Store requests that wait for a reply, so that waiting survives a restart of the asker."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceward.file.transaction import StoreTransaction
from onceward.message.body import encode
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.vocabulary import RequestState

OPEN: Final = """
INSERT INTO _onceward_pending_replies (id, session, recipient, asked_at, deadline_at,
                                       asker_seq, asker_index, asker_digest)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
# A limit may have dropped the request in the same transaction: no reply will come.
END_DROPPED: Final = """
UPDATE _onceward_pending_replies
   SET state = 'failed', ended_at = :now,
       reason = 'dropped: ' || (SELECT reason FROM _onceward_outbox WHERE id = :id)
 WHERE id = :id AND state = 'open'
   AND EXISTS (SELECT 1 FROM _onceward_outbox WHERE id = :id AND state = 'dropped')
"""
STATE: Final = "SELECT state, deadline_at FROM _onceward_pending_replies WHERE id = ?"
PROGRESS: Final = "onceward.progress"
"""Kind and type of a message that tells how far the handler of a request is."""
NOTE_PROGRESS: Final = """
UPDATE _onceward_pending_replies
   SET progress = :body, progress_at = :now
 WHERE id = :id AND recipient = :sender AND state = 'open'
"""
QUESTION: Final = "onceward.question"
"""Kind of a request that a handler makes: the message of its handler waits for the reply."""
GET_PROGRESS: Final = "SELECT progress FROM _onceward_pending_replies WHERE id = ?"
OF_HANDLER: Final = """
SELECT asker_index, id, recipient, asker_digest
  FROM _onceward_pending_replies
 WHERE asker_seq = ?
"""
ADOPT: Final = "UPDATE _onceward_pending_replies SET asker_index = ? WHERE id = ?"
LOOK: Final = """
SELECT t.state, t.reason, t.recipient, b.frame
  FROM _onceward_pending_replies AS t
  LEFT JOIN _onceward_inbox AS b ON b.id = t.reply_id AND b.sender = t.recipient
 WHERE t.id = ?
"""


LOOK_WITH_DEADLINE: Final = LOOK.replace("b.frame\n", "b.frame, t.deadline_at, t.ended_at\n", 1)


class Asker(NamedTuple):
    """The handler of a message that made a request: which one in its order, and its contents."""

    seq: int
    number: int
    digest: bytes


class HandlerRequest(NamedTuple):
    """A request that an earlier call of a handler made."""

    id: str
    recipient: str
    digest: bytes


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
    asker: Asker | None = None,
) -> None:
    """Record that a reply is awaited, in the transaction of the request."""
    named = (None, None, None) if asker is None else asker
    tx.run(OPEN, (message_id, session, recipient, tx.now, deadline_at, *named))


def before_replay(number: int) -> int:
    """Return the number of a handler's request once its message died and was replayed."""
    return -1 - number


def adopt(tx: StoreTransaction, number: int, message_id: str) -> None:
    """Make a request from before a replay the one of that number."""
    tx.run(ADOPT, (number, message_id))


def end_dropped(tx: StoreTransaction, message_id: str) -> None:
    """End the wait for the reply to a request that a limit has just dropped."""
    tx.run(END_DROPPED, {"id": message_id, "now": tx.now})


def note_progress(tx: StoreTransaction, sender: str, frame: Frame) -> bool:
    """Keep what a handler tells of its progress, for the request that it was sent for; say True."""
    data = frame.data if frame.data_base64 is None else frame.data_base64
    named = {"id": frame.causationid, "sender": sender, "body": encode(data).text, "now": tx.now}
    tx.run(NOTE_PROGRESS, named)
    return True
