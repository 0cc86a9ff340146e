"""
Find messages that asked for no reply, with their results and progress, in the files of the home.

Both are in the file of the recipient, which the sender opens when it asks for them. A receipt
carries none, so a value that is not asked for costs no byte on the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from onceward.errors import InvalidArgument
from onceward.file.database import Database
from onceward.file.sql_parts import senders

FileOfAgent = Callable[[str], Database | None]
"""Returns the open file of an agent of the home, or None."""
SENT_TO: Final = """
SELECT recipient FROM _onceward_outbox WHERE id = :id
 UNION ALL
SELECT recipient FROM _onceward_pending_replies WHERE id = :id
 UNION ALL
SELECT peer FROM _onceward_dead_letters WHERE origin = 'outbox' AND id = :id
 LIMIT 1
"""
# Two senders may have chosen the same id: the message that was stored last counts.
CAME_FROM: Final = f"""{senders("_onceward_inbox")}
SELECT name, seq FROM senders JOIN _onceward_inbox ON sender = name AND id = :id
 UNION ALL
SELECT peer, 0 FROM _onceward_dead_letters WHERE origin = 'inbox' AND id = :id
 UNION ALL
SELECT sender, -1 FROM _onceward_results WHERE message_id = :id AND until_at >= :now
 ORDER BY 2 DESC LIMIT 1
"""
# A reply that was sent is the result of a request.
KEPT: Final = """
SELECT 0, media, result, NULL
  FROM _onceward_results
 WHERE message_id = :id AND sender = :sender AND until_at >= :now AND result IS NOT NULL
 UNION ALL
SELECT seq, NULL, NULL, frame FROM _onceward_outbox WHERE in_reply_to = :id
 ORDER BY 1 LIMIT 1
"""
PROGRESS: Final = """
SELECT progress
  FROM _onceward_results
 WHERE message_id = :id AND sender = :sender AND until_at >= :now
"""
OF_TICKET: Final = "SELECT progress FROM _onceward_pending_replies WHERE id = ?"
STATE_SENT: Final = """
SELECT state, reason FROM _onceward_outbox WHERE id = :id
 UNION ALL
SELECT 'dead', reason FROM _onceward_dead_letters WHERE origin = 'outbox' AND id = :id
 LIMIT 1
"""
STATE_RECEIVED: Final = """
SELECT state, reason, CASE WHEN run_seq IS NOT NULL THEN session END
  FROM _onceward_inbox
 WHERE sender = :sender AND id = :id
 UNION ALL
SELECT 'dead', reason, NULL
  FROM _onceward_dead_letters
 WHERE origin = 'inbox' AND peer = :sender AND id = :id
 LIMIT 1
"""


class Ends(NamedTuple):
    """A message, its agents, and the file of its recipient."""

    id: str
    sender: str
    recipient: str
    file: Database | None
    """None if that file is not in the home."""

    def named(self) -> dict[str, Any]:
        """Return the bindings of statements about the message."""
        now = 0 if self.file is None else self.file.now()
        return {"id": self.id, "sender": self.sender, "now": now}

    def read(self, statement: str) -> list[tuple[Any, ...]]:
        """Read about the message in the file of its recipient."""
        return [] if self.file is None else self.file.read(statement, self.named())

    def kept(self) -> list[tuple[str | None, str | None, str | None]]:
        """Return its result (media type, JSON), or the frame of its reply, if it has one."""
        return [(media, result, frame) for _, media, result, frame in self.read(KEPT)]

    def states(self, db: Database) -> tuple[list[Any], list[Any]]:
        """Return state, reason and session of its run: at its sender, and at its recipient."""
        sent = [(*each, None) for each in db.read(STATE_SENT, self.named())]
        return sent, self.read(STATE_RECEIVED)


def ends_of(db: Database, files: FileOfAgent, message_id: str) -> Ends:
    """
    Return the two ends of a message that was sent from a file or received in it.

    Raises:
        InvalidArgument: the file does not know it.

    """
    named = {"id": message_id, "now": db.now()}
    for (recipient,) in db.read(SENT_TO, named):
        return Ends(message_id, db.agent, recipient, files(recipient))
    for sender, _ in db.read(CAME_FROM, named):
        return Ends(message_id, sender, db.agent, db)
    raise InvalidArgument(
        f"no message {message_id} here: never sent from this file or received in it, or pruned"
    )


def progress(db: Database, files: FileOfAgent, message_id: str) -> Any:
    """
    Return the last progress of a message's handler; None before the first.

    Raises:
        InvalidArgument: the file does not know the message.

    """
    ends = ends_of(db, files, message_id)
    if ends.file is None and not db.read(OF_TICKET, (message_id,)):
        raise elsewhere(ends)
    return progress_at(db, ends)


def progress_at(db: Database, ends: Ends) -> Any:
    """Return the last progress of a message: as its recipient has it, or as its sender got it."""
    told = db.read(OF_TICKET, (ends.id,))
    texts = [text for (text,) in (*ends.read(PROGRESS), *told) if text is not None]
    return json.loads(texts[0]) if texts else None


def elsewhere(ends: Ends) -> InvalidArgument:
    """Return the error for a message whose recipient's file is not in the home."""
    return InvalidArgument(
        f"message {ends.id} was sent to {ends.recipient} without asking for a reply, and the file "
        f"of {ends.recipient} is not in this folder: send it with request(), or ask for its result "
        "there"
    )
