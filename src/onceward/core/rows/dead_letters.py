"""Move messages to the dead letters, whole, in one transaction; replay them with their id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from onceward.core.rows import dedup, inbox, lanes, outbox, tickets
from onceward.core.rows.outbox import frame_of, pushed
from onceward.errors import Conflict, InvalidArgument
from onceward.file.connection import ConstraintError
from onceward.file.database import Database
from onceward.file.identity import note_pruned
from onceward.file.sql_parts import column_names, columns
from onceward.file.transaction import StoreTransaction, bump, listed
from onceward.message.body import Payload
from onceward.message.clock import Millis
from onceward.message.frame import digest, with_body
from onceward.message.record import MessageRecord
from onceward.message.topics import check_pattern, matches
from onceward.message.vocabulary import ATTEMPT_NEVER_ENDED, DeadLetterOrigin, Reason

INSERT_FROM_OUTBOX: Final = f"""
INSERT INTO _onceward_dead_letters (origin, id, peer, session, lane, type, topic, rank, reason,
                                    last_error, attempts, expires_at, key, frame, digest,
                                    created_at, dead_at, channel, kind, correlation_id, replays,
                                    pushed)
SELECT 'outbox', id, recipient, session, lane, type, topic, rank, :reason, :error,
       attempts + :tried, expires_at, key,
       {frame_of("o")}, CASE WHEN o.body_id IS NULL THEN digest END, created_at, :now, channel,
       kind, correlation_id, replays,
       NOT :unknown AND {pushed("o")}
  FROM _onceward_outbox AS o
 WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state IN ('pending', 'sent')
RETURNING id, peer
"""
COUNT_OUT: Final = """
SELECT state, count(*)
  FROM _onceward_outbox
 WHERE seq IN (SELECT value FROM json_each(?))
 GROUP BY state
"""
INSERT_FROM_INBOX: Final = """
INSERT INTO _onceward_dead_letters (origin, id, peer, session, lane, type, topic, rank, reason,
                                    last_error, attempts, expires_at, frame, digest, created_at,
                                    dead_at, channel, kind, correlation_id, mailbox, replays,
                                    inbox_seq)
SELECT 'inbox', b.id, b.sender, b.session, coalesce(l.name, b.session), b.type, b.topic, b.rank,
       :reason,
       CASE :error WHEN :unended THEN :error || coalesce('; it failed last with ' || b.reason, '')
            ELSE :error END, :attempts,
       b.expires_at, b.frame, b.digest, b.received_at, :now, b.channel, b.kind, b.correlation_id,
       b.mailbox, b.replays, b.seq
  FROM _onceward_inbox AS b LEFT JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.seq = :seq AND b.state = 'pending'
"""
FIND: Final = """
SELECT d.origin, d.id, d.peer, d.rank, d.lane, d.session,
       d.origin = 'outbox' AND NOT d.pushed AND d.expires_at <= :now AND i.paused_at IS NULL
       AND d.frame ->> '$.expirytime' IS NOT NULL, d.mailbox IS NOT NULL
  FROM _onceward_dead_letters AS d, _onceward_file_info AS i WHERE d.seq = :seq
"""
DROP: Final = "DELETE FROM _onceward_dead_letters WHERE seq = ?"
# Not if another process has edited it meanwhile.
EDIT: Final = """
UPDATE _onceward_dead_letters SET frame = :edited, digest = :digest
 WHERE seq = :seq AND origin = 'inbox' AND frame = :frame
"""
SENT_UNTIL: Final = (
    " RETURNING CASE origin WHEN 'outbox' THEN max(dead_at, coalesce(late_at, 0)) END"
)
LATE: Final = """
UPDATE _onceward_dead_letters SET late_outcome = :state, late_at = :now
 WHERE origin = 'outbox'
   AND peer = :peer
   AND id IN (SELECT value FROM json_each(:ids))
   AND late_outcome IS NULL
"""
OF_QUEUE: Final = """
UPDATE _onceward_dead_letters SET queue = :queue
 WHERE origin = 'inbox' AND peer = :sender AND id = :id
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class DeadLetter(MessageRecord):
    """A failed message, and the details of its failure."""

    reason: Reason
    """Why it failed."""
    dead_at: Millis
    last_error: str | None
    late_outcome: str | None
    """Its outcome at the recipient, reported after it became a dead letter here."""
    replays: int
    """How often it was replayed and failed again."""
    seq: int
    """Order in which they failed; two senders may have chosen the same id."""

    @property
    def origin(self) -> DeadLetterOrigin:
        """The queue in which it failed: ``outbox``, ``inbox`` or ``queue``."""
        return cast("DeadLetterOrigin", self.box)


SELECT: Final = """
SELECT seq, topic FROM onceward_dead_letters
 WHERE (:id IS NULL OR id = :id)
   AND (:reason IS NULL OR reason = :reason)
   AND (:origin IS NULL OR origin = :origin)
   AND (:peer IS NULL OR sender = :peer OR recipient = :peer)
   AND (:session IS NULL OR session = :session)
   AND (:before IS NULL OR dead_at < :before) AND (:type IS NULL OR type = :type)
 ORDER BY seq
"""
COLUMNS: Final = column_names(DeadLetter)
SELECTED: Final = columns(
    DeadLetter, "d.", state="'dead'", at="d.created_at", text="d.frame", box="d.origin"
)
BY_SEQ: Final = f"""
SELECT {SELECTED}
  FROM json_each(?) AS j JOIN onceward_dead_letters AS d ON d.seq = j.value
 ORDER BY d.seq
"""


def add_from_outbox(
    tx: StoreTransaction,
    seqs: Iterable[int],
    *,
    reason: Reason,
    error: str = "",
    unknown: bool = False,
    tried: bool = False,
) -> list[tuple[str, str]]:
    """
    Move outgoing messages to the dead letters; return (id, peer) of each.

    *unknown*: their peer has just answered that it does not know them. *tried*: the push that ended
    them is not counted yet. The session that dispatched one of them as a task gets a result in the
    same transaction.
    """
    numbers = list(seqs)
    listed = json.dumps(numbers)
    states = dict(tx.rows(COUNT_OUT, (listed,)))
    named = {"reason": reason, "error": error, "now": tx.now, "seqs": listed}
    named |= {"unknown": unknown, "tried": tried}
    moved = [(str(i), str(p)) for i, p in tx.rows(INSERT_FROM_OUTBOX, named)]
    outbox.remove_unended(tx, numbers)
    bump(tx, ended_pending=states.get("pending", 0), sent=-states.get("sent", 0), dead=len(moved))
    ids = [i for i, _ in moved]
    tickets.fail_all(tx, ids, reason)
    outbox.tell_dead(tx, ids)
    tx.has_news = True
    return moved


def add_from_inbox(
    tx: StoreTransaction, seq: int, *, reason: Reason, error: str, attempts: int
) -> None:
    """Move an incoming message to the dead letters; the caller has proved its lease."""
    named = {
        "seq": seq,
        "reason": reason,
        "error": error,
        "attempts": attempts,
        "now": tx.now,
        "unended": ATTEMPT_NEVER_ENDED,
    }
    if not tx.run(INSERT_FROM_INBOX, named):
        return  # a mailbox's message that was deleted or superseded while it was leased
    inbox.remove(tx, [(seq,)])
    bump(tx, dead=1, ended=1)
    tx.has_news = True


def replay(
    tx: StoreTransaction,
    seq: int,
    *,
    due_at: Millis | None = None,
    returned: Sequence[Callable[[StoreTransaction, str, str], None]] = (),
) -> tuple[str, str]:
    """
    Return a dead letter to the queue that it came from, with its id; return (origin, id).

    *returned* gets the sender and id of one that returns to a mailbox. If its peer has already
    processed the message, it answers so, and the message ends acked. If it fails again, it is one
    dead letter as before, with one more replay.

    Raises:
        InvalidArgument: there is no such dead letter, or it expired before it left, so that the
        peer would refuse it.
        Conflict: its key has since been used for another message.

    """
    found = tx.rows(FIND, {"seq": seq, "now": tx.now})
    if not found:
        raise InvalidArgument("that dead letter no longer exists: list them again")
    origin, message_id, peer, rank, lane, session, expired, boxed = found[0]
    if expired:
        msg = f"{message_id} has expired, so the peer would refuse it: replay it with as_new=True"
        raise InvalidArgument(msg)
    if origin == "outbox":
        _replay_to_outbox(tx, seq, message_id, due_at)
    elif boxed:
        inbox.add_returned(tx, seq, lanes.NO_LANE)  # it is read by position again, not by lane
        for hear in returned:
            hear(tx, peer, message_id)
    else:
        _replay_to_inbox(tx, seq, message_id, (peer, lane, rank, session))
    tx.run(DROP, (seq,))
    bump(tx, replayed=1)
    return str(origin), str(message_id)


def _replay_to_outbox(
    tx: StoreTransaction, seq: int, message_id: str, due_at: Millis | None
) -> None:
    try:
        outbox.add_returned(tx, seq, due_at=due_at)
    except ConstraintError as error:
        if "UNIQUE" not in str(error):
            raise
        msg = (
            f"the id or key of {message_id} now belongs to another message: replay it with "
            "as_new=True, or discard it"
        )
        raise Conflict(msg, message_id=message_id, reason="sent again since") from error
    tickets.reopen(tx, message_id)


def _replay_to_inbox(
    tx: StoreTransaction, seq: int, message_id: str, lane: tuple[Any, ...]
) -> None:
    peer, name, rank, session = lane
    dedup.remove_dead(tx, peer, message_id)
    lane_id = lanes.open_lane(tx, peer, name, rank, session=session)
    asker = inbox.add_returned(tx, seq, lane_id)
    tickets.pass_on(tx, seq, asker)
    lanes.set_heads(tx, [lane_id])


def edit(tx: StoreTransaction, seq: int, frame: str, body: Payload) -> None:
    """
    Replace the body of a received dead letter whose stored frame is *frame*.

    Raises:
        Conflict: it is gone, or has changed since it was read.

    """
    edited = with_body(frame, body, tx.now)
    named = {"seq": seq, "frame": frame, "edited": edited, "digest": digest(edited)}
    if not tx.run(EDIT, named):
        raise Conflict("that dead letter is gone, or was edited meanwhile: look at it again")


def discard(tx: StoreTransaction, seq: int) -> bool:
    """
    Delete a dead letter; return whether it existed.

    A sent message is then fully forgotten here, although it may have arrived.
    """
    gone = tx.rows(DROP + SENT_UNTIL, (seq,))
    if sent := [at for (at,) in gone if at is not None]:
        note_pruned(tx, max(sent) + 1)
    return bool(gone)


def of_seq(db: Database, seq: int) -> list[DeadLetter]:
    """Return the dead letter of that number, if it still exists."""
    return _of_seqs(db, [seq])


def of_id(db: Database, message_id: str) -> list[DeadLetter]:
    """Return the dead letters of one id, oldest first."""
    conditions = dict.fromkeys(("reason", "origin", "peer", "session", "before", "type"))
    return find(db, {**conditions, "id": message_id}, limit=-1)


def find(
    db: Database, conditions: Mapping[str, Any], topic: str | None = None, *, limit: int
) -> list[DeadLetter]:
    """Return the oldest dead letters, oldest first; a condition of None does not filter."""
    seqs = _seqs(db, conditions, topic)
    return _of_seqs(db, seqs[:limit] if limit >= 0 else seqs)


def find_newest(
    db: Database, conditions: Mapping[str, Any], topic: str | None = None, *, limit: int
) -> list[DeadLetter]:
    """Return the newest dead letters, newest first; a condition of None does not filter."""
    newest = _seqs(db, conditions, topic)[::-1]
    return _of_seqs(db, newest[:limit] if limit >= 0 else newest)[::-1]


def _seqs(db: Database, conditions: Mapping[str, Any], topic: str | None) -> list[int]:
    if topic is not None:
        check_pattern(topic)
    found = db.ask(SELECT, conditions)
    return [seq for seq, its in found if topic is None or (its is not None and matches(topic, its))]


def _of_seqs(db: Database, seqs: list[int]) -> list[DeadLetter]:
    rows = db.ask(BY_SEQ, (json.dumps(seqs),))
    return [DeadLetter(**dict(zip(COLUMNS, row, strict=True))) for row in rows]


def note_late(tx: StoreTransaction, peer: str, ids: Sequence[str], outcome: str) -> None:
    """Record what a peer reported of messages after they became dead letters here."""
    statement, bound = listed(ids, LATE)
    tx.run(statement, {"state": outcome, "now": tx.now, "peer": peer, "ids": bound})


def set_queue(tx: StoreTransaction, queue: str, messages: Sequence[tuple[str, str]]) -> None:
    """Record which session's queue refused messages (sender, id)."""
    tx.many(OF_QUEUE, [{"queue": queue, "sender": s, "id": i} for s, i in messages])
