"""Read how far a message and the requests of its handler are, in the files of the home."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from onceward.features.requests.results import Ends, FileOfAgent, ends_of, progress_at
from onceward.file.database import Database
from onceward.message.record import Status
from onceward.message.vocabulary import StatusState

CHILDREN_MAX: Final = 100
"""Maximum children of a message that its status has; the first ones."""
DEPTH_MAX: Final = 8
"""Maximum depth of children."""
RECEIVED: Final = """
SELECT state, waits_for, reason, attempts, seq, NULL
  FROM onceward_inbox WHERE sender = :sender AND id = :id
"""
DIED_THERE: Final = """
SELECT 'dead', NULL, reason, attempts, coalesce(inbox_seq, 0), last_error
  FROM _onceward_dead_letters
 WHERE origin = 'inbox' AND peer = :sender AND id = :id
 ORDER BY seq DESC LIMIT 1
"""
SENT: Final = "SELECT state, NULL, reason, 0, 0, NULL FROM onceward_outbox WHERE id = :id"
DIED_HERE: Final = """
SELECT 'dead', NULL, reason, 0, 0, last_error
  FROM _onceward_dead_letters WHERE origin = 'outbox' AND id = :id
"""
TICKET: Final = "SELECT state, reason FROM _onceward_pending_replies WHERE id = ?"
CHILDREN: Final = f"""
SELECT id FROM _onceward_pending_replies
 WHERE asker_seq = ? ORDER BY asker_index LIMIT {CHILDREN_MAX}
"""
STATES: Final[dict[str, StatusState]] = {
    "pending": "waiting",
    "sending": "waiting",
    "sent": "waiting",
    "processing": "running",
    "processed": "done",
    "acked": "done",
}
"""Meaning of each state of a row; a message in any other state has failed."""


class StateRow(NamedTuple):
    """The row of a message that tells its state."""

    state: str
    waits_for: str | None = None
    reason: str | None = None
    attempts: int = 0
    seq: int = 0
    last_error: str | None = None


class StatusReader:
    """
    Reads the status of one message until it is another one than *after*.

    Raises:
        InvalidArgument: the file does not know the message.

    """

    def __init__(
        self,
        db: Database,
        files: FileOfAgent,
        message_id: str,
        *,
        depth: int,
        after: Status | None,
    ) -> None:
        self._read = partial(_status, db, files, message_id, min(depth, DEPTH_MAX))
        self._after = after
        self.last = self._read()
        """The status that was read last."""
        self.file: Database = files(self.last.recipient) or db
        """The file whose commits change it: its recipient's, or its sender's."""

    def look(self) -> Status | None:
        """Return it if it is new or final."""
        self.last = self._read()
        return None if self.last == self._after and not self.last.ended else self.last


def _status(db: Database, files: FileOfAgent, message_id: str, depth: int) -> Status:
    """Return the status of a message as the file of its sender or recipient shows it."""
    ends = ends_of(db, files, message_id)
    state, waits_for, reason, attempts, seq, last_error = _row(db, ends)
    found = STATES.get(state, "failed")
    if state == "dropped" and reason in {None, state}:
        found = "done"  # by its handler, not by a policy
    for ticket, why in db.read(TICKET, (message_id,)):
        if ticket == "open" and found == "done":
            found, waits_for = "waiting", f"reply from {ends.recipient}"
        elif ticket != "open":
            found, waits_for, reason = "failed" if ticket == "failed" else "done", None, why
    return Status(
        message_id,
        ends.recipient,
        found,
        waits_for=waits_for if found == "waiting" else None,
        reason=None if found == "done" else reason,
        last_error=None if found == "done" else last_error,
        attempts=attempts,
        progress=progress_at(db, ends),
        children=_children(ends, files, seq, depth),
    )


def _row(db: Database, ends: Ends) -> StateRow:
    """Return the row of a message that is nearest to its end."""
    for statement in (RECEIVED, DIED_THERE):
        for row in ends.read(statement):
            return StateRow(*row)
    for statement in (SENT, DIED_HERE):
        for row in db.read(statement, ends.named()):
            return StateRow(*row)
    return StateRow("acked")  # only its ticket or its result is left


def _children(ends: Ends, files: FileOfAgent, seq: int, depth: int) -> tuple[Status, ...]:
    if depth <= 0 or not seq or ends.file is None:
        return ()
    asked = ends.file.read(CHILDREN, (seq,))
    return tuple(_status(ends.file, files, child, depth - 1) for (child,) in asked)
