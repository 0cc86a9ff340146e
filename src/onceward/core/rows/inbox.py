"""
Write the inbox and the failed attempts of its messages: no row is read or changed elsewhere.

A row waits (``pending``) until one statement here ends it; it is then never pending again, except
by a replay, which inserts it under a new sequence. That a worker may end it is proved by ``lanes``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple, cast

from onceward.file.sql_parts import EndedRows, senders
from onceward.file.transaction import Rows, StoreTransaction, listed
from onceward.message.clock import Millis
from onceward.message.vocabulary import PARKED, Outcome

MESSAGE: Final = "seq, sender, id, session, frame, digest, expires_at, attempts + 1, received_at"
"""The columns of a leased message, without its lease."""
NEXT: Final = f"""
SELECT {MESSAGE}
  FROM _onceward_inbox
 WHERE lane_id = ? AND state = 'pending'
 ORDER BY seq LIMIT ?
"""
STILL_NEXT: Final = """
SELECT seq, id, attempts + 1
  FROM _onceward_inbox
 WHERE lane_id = ?1 AND state = 'pending'
 ORDER BY seq LIMIT ?2
"""
NEXT_OF: Final = f"""
SELECT {MESSAGE}
  FROM _onceward_inbox
 WHERE lane_id = ? AND state = 'pending' AND type IN (SELECT value FROM json_each(?))
 ORDER BY seq LIMIT ?
"""
# Unleased messages of a channel: by priority, or in order of arrival from an arm per priority.
WAITS_IN: Final = f"""
SELECT b.rank, b.seq, b.topic
  FROM _onceward_inbox AS b
  JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.channel = :channel AND b.state = 'pending'
   AND (CASE WHEN :suspects THEN l.suspect = 1 AND l.owner IS NULL
             ELSE l.due_at IS NULL OR l.due_at <= :now OR l.due_at = {PARKED} END)"""
NEXT_IN: Final = (
    f"{WAITS_IN} AND (b.rank, b.seq) > (:rank, :seq) ORDER BY b.rank, b.seq LIMIT :limit"
)
NEXT_CAME: Final = (
    " UNION ALL ".join(
        f"SELECT * FROM ({WAITS_IN} AND b.rank = {n} AND b.seq > :seq ORDER BY b.seq LIMIT :limit)"
        for n in range(5)
    )
    + " ORDER BY 2 LIMIT :limit"
)
NEXT_KINDS: Final = f"""
SELECT {MESSAGE}, type, topic
  FROM _onceward_inbox
 WHERE lane_id = :lane AND state = 'pending'
   AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
 ORDER BY seq LIMIT :limit
"""
ONE: Final = f"""
SELECT {MESSAGE}
  FROM _onceward_inbox
 WHERE seq = ?
"""
HANDED: Final = """
SELECT b.seq, b.sender, b.id, b.session, b.frame, b.digest, b.expires_at, b.received_at
  FROM _onceward_inbox AS b JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.seq = ? AND b.state = 'pending' AND l.lane_id = ? AND l.token = ? AND l.owner = ?
"""
END: Final = """
UPDATE _onceward_inbox
   SET state = :outcome, ended_at = :now, reason = :reason, attempts = max(attempts, :attempt),
       padding = NULL
 WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'pending'
"""
END_HANDLED: Final = """
UPDATE _onceward_inbox
   SET state = 'processed', ended_at = :now, reason = NULL, attempts = max(attempts, :attempt),
       padding = NULL
 WHERE seq = :seq AND state = 'pending'
"""
NOTE_REASON: Final = "UPDATE _onceward_inbox SET reason = :why WHERE sender = :sender AND id = :id"
TRIED: Final = """
UPDATE _onceward_inbox SET attempts = :attempts, reason = :reason
 WHERE seq = :seq AND state = 'pending'
"""
COUNT: Final = (
    "UPDATE _onceward_inbox SET attempts = attempts + ? WHERE seq = ? AND state = 'pending'"
)
NEVER_ENDED: Final = """
UPDATE _onceward_inbox SET attempts = attempts + :calls, reason = :seen
 WHERE seq = :seq AND state = 'pending'
"""
ATTEMPTS_OF_MESSAGE: Final = 5
"""Maximum stored failed attempts of one message."""
ATTEMPTS_OF_FILE: Final = 1_000
"""Maximum stored failed attempts of a file."""

KEEP_ATTEMPT: Final = """
INSERT INTO _onceward_failed_attempts
       (sender, message_id, attempt, worker, error, trace, took, failed_at)
VALUES (:sender, :id, :attempt, :worker, :error, :trace, :took, :now)
RETURNING seq
"""
FORGET_ATTEMPTS: Final = f"""
DELETE FROM _onceward_failed_attempts
 WHERE seq <= :seq - {ATTEMPTS_OF_FILE}
    OR seq IN (SELECT seq FROM _onceward_failed_attempts
                WHERE message_id = :id AND sender = :sender
                ORDER BY seq DESC LIMIT -1 OFFSET {ATTEMPTS_OF_MESSAGE})
"""
# A dispatched task's result is sent by the worker that ends it; maintenance cannot.
EXPIRED: Final = """
SELECT b.seq FROM _onceward_inbox AS b JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.expires_at <= :now
   AND b.expires_at IS NOT NULL
   AND b.state = 'pending'
   AND b.run_seq IS NULL
   AND (:session IS NULL OR b.session = :session)
   AND (l.owner IS NULL OR l.sender IS NULL) AND instr(b.frame, '"callersession"') = 0
 ORDER BY b.expires_at LIMIT :limit
"""
NEXT_EXPIRY: Final = (
    "SELECT min(expires_at) FROM _onceward_inbox WHERE expires_at IS NOT NULL AND state = 'pending'"
)
ATTEMPTED: Final = """
SELECT seq, sender, id, attempts
  FROM _onceward_inbox
 WHERE seq IN (SELECT value FROM json_each(?))
 ORDER BY seq
"""

FIND_RECEIVED: Final = f"""{senders("_onceward_inbox")}
SELECT b.seq
  FROM senders AS s
  JOIN _onceward_inbox AS b ON b.sender = s.name AND b.id = ? AND b.state = 'pending'
 WHERE b.run_seq IS NULL
"""
IS_CANCELLED: Final = """
SELECT 1 FROM _onceward_inbox
 WHERE seq IN (SELECT value FROM json_each(?)) AND state = 'cancelled' LIMIT 1
"""
INSERT_OWN: Final = """
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, topic, rank, expires_at,
                             correlation_id, causation_id, frame, digest, received_at, channel)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
NOTE_EPHEMERAL: Final = (
    "UPDATE _onceward_inbox SET ephemeral = 1 WHERE sender = ? AND id = ? AND state = 'pending'"
)
DELETE_KEPT: Final = """
UPDATE _onceward_inbox SET state = 'processed', ended_at = :now, reason = 'deleted'
 WHERE mailbox = :mailbox AND id = :id AND state = 'pending'
   AND (expires_at IS NULL OR expires_at > :now)
"""
EXPIRE_KEPT: Final = """
UPDATE _onceward_inbox SET state = 'expired', ended_at = ?, reason = 'expired'
 WHERE seq IN (SELECT value FROM json_each(?))
"""
SUPERSEDE: Final = """
UPDATE _onceward_inbox SET state = 'dropped', ended_at = :now, reason = 'superseded'
 WHERE mailbox = :mailbox AND mailbox_key = :key AND state = 'pending'
"""
NAME_KEY: Final = (
    "UPDATE _onceward_inbox SET mailbox_key = :key WHERE sender = :sender AND id = :id"
)
SUPERSEDE_ONE: Final = """
UPDATE _onceward_inbox SET state = 'dropped', ended_at = :now, reason = 'superseded'
 WHERE sender = :sender AND id = :id AND state = 'pending'
"""
BIND: Final = """
UPDATE _onceward_inbox SET run_seq = :run, attempts = attempts + 1
 WHERE seq IN (SELECT value FROM json_each(:bound)) AND state = 'pending' AND run_seq IS NULL
"""
UNBIND: Final = """
UPDATE _onceward_inbox
   SET run_seq = NULL
 WHERE seq IN (SELECT value FROM json_each(:bound)) AND run_seq = :run AND state = 'pending'
"""
MOVE: Final = """
UPDATE _onceward_inbox
   SET lane_id = ?
 WHERE seq IN (SELECT value FROM json_each(?)) AND state = 'pending'
"""
PLACE: Final = """
UPDATE _onceward_inbox SET position = ? WHERE seq = ? AND state = 'pending' AND run_seq IS NULL
"""
# A mailbox's message has no lane: storing it was its effect, and readers delete it.
END_WAITING: Final = """
UPDATE _onceward_inbox SET state = :outcome, ended_at = :now, reason = :reason, padding = NULL
 WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'pending' AND lane_id IS NOT NULL
RETURNING seq, sender, id
"""
# A reply is kept while its asking handler waits for others.
NOT_NEEDED: Final = """NOT (instr(b.frame, '"inreplyto"') AND json_valid(b.frame)
                AND EXISTS (SELECT 1
                              FROM _onceward_pending_replies AS t
                              JOIN _onceward_inbox AS a ON a.seq = t.asker_seq
                             WHERE t.id = b.frame ->> '$.inreplyto'
                               AND t.reply_id = b.id
                               AND a.state = 'pending'))"""
SLICE: Final = f"""
SELECT seq, received_at < :before,
       state <> 'pending' AND ended_at < :before AND {NOT_NEEDED}
  FROM _onceward_inbox AS b
 WHERE seq > :after ORDER BY seq LIMIT :limit
"""
DROP_EPHEMERAL: Final = """
UPDATE _onceward_inbox SET state = 'dropped', ended_at = :now, reason = :reason
 WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'pending'
"""
REMOVE: Final = "DELETE FROM _onceward_inbox WHERE seq = ?"
REMOVE_ARCHIVED: Final = f"""
DELETE FROM _onceward_inbox AS b
 WHERE seq = :seq AND id = :id AND state = :state AND ended_at = :ended_at
   AND state <> 'pending' AND {NOT_NEEDED}
RETURNING ended_at
"""
# After the row is deleted, the dedup record identifies duplicates.
OLD_OF_CHANNEL: Final = """
DELETE FROM _onceward_inbox
 WHERE seq IN (SELECT seq
                 FROM _onceward_inbox AS b
                WHERE channel = :channel AND seq <= :upto AND ended_at IS NOT NULL
                  AND EXISTS (SELECT 1
                                FROM _onceward_processed_messages AS p
                               WHERE p.sender = b.sender AND p.message_id = b.id)
                ORDER BY seq LIMIT :limit)
RETURNING ended_at
"""
ENDED: Final = EndedRows(SLICE, REMOVE, REMOVE_ARCHIVED, OLD_OF_CHANNEL)
RETURN: Final = """
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, topic, rank, expires_at, frame,
                             digest, received_at, channel, kind, correlation_id, mailbox, replays)
SELECT peer, id, :lane, session, type, topic, rank,
       CASE WHEN expires_at > :now OR mailbox IS NOT NULL THEN expires_at END, frame, digest,
       created_at, channel, kind, correlation_id, mailbox, replays + 1
  FROM _onceward_dead_letters WHERE seq = :seq
RETURNING seq
"""
PRUNE_ATTEMPTS: Final = """
DELETE FROM _onceward_failed_attempts
 WHERE seq IN (SELECT seq
                 FROM (SELECT seq, failed_at FROM _onceward_failed_attempts
                        ORDER BY seq LIMIT :limit)
                WHERE failed_at < :before)
"""


def next_rows(
    read: Rows,
    lane_id: int,
    limit: int,
    ahead: Mapping[tuple[Any, ...], tuple[Any, ...]] | None = None,
) -> list[tuple[Any, ...]]:
    """Return the next rows of a lane, in order: those read ahead, if its first row was."""
    if ahead:
        known = map(ahead.get, read(STILL_NEXT, (lane_id, limit)))
        rows = list(takewhile(bool, known))
        if rows:
            return cast("list[tuple[Any, ...]]", rows)
    return read(NEXT, (lane_id, limit))


def next_of(
    tx: StoreTransaction, lane_id: int, limit: int, types: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return the next rows of a lane that have one of the types."""
    statement, bound = listed(types, NEXT_OF)
    return tx.rows(statement, (lane_id, bound, limit))


def next_kinds(
    tx: StoreTransaction, lane_id: int, limit: int, types: Sequence[str] | None
) -> list[tuple[Any, ...]]:
    """Return the next rows of a lane, with type and topic."""
    wanted = None if types is None else json.dumps(types)
    return tx.rows(NEXT_KINDS, {"lane": lane_id, "types": wanted, "limit": limit})


def of_channel(read: Rows, named: Mapping[str, Any], *, by_rank: bool) -> list[tuple[Any, ...]]:
    """Return (rank, message, topic) of a channel's waiting messages after a position."""
    return read(NEXT_IN if by_rank else NEXT_CAME, named)


def row(tx: StoreTransaction, seq: int) -> tuple[Any, ...]:
    """Return the row of a message, its number of attempts with the next one."""
    [found] = tx.rows(ONE, (seq,))
    return found


def leased_row(read: Rows, seq: int, lease: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the row of a message while lane, token and owner of its *lease* are unchanged."""
    return read(HANDED, (seq, *lease))


def find_received(read: Rows, message_id: str) -> int | None:
    """Return a waiting message by its id, from any sender, or None."""
    found = read(FIND_RECEIVED, (message_id,))
    return int(found[0][0]) if found else None


def is_cancelled(read: Rows, seqs: Sequence[int]) -> bool:
    """Return whether one of some messages was cancelled."""
    return bool(read(IS_CANCELLED, (json.dumps(seqs),)))


def attempts_of(tx: StoreTransaction, seqs: Sequence[int]) -> list[tuple[int, str, str, int]]:
    """Return sequence, sender, id and attempts of messages, in order."""
    return tx.rows(ATTEMPTED, (json.dumps(seqs),))


def expired(tx: StoreTransaction, limit: int, session: str | None) -> list[int]:
    """Return waiting messages (of a session) that have expired and that no worker holds."""
    named = {"now": tx.now, "limit": limit, "session": session}
    return [seq for (seq,) in tx.rows(EXPIRED, named)]


def next_expiry(read: Rows) -> Millis | None:
    """Return when the next waiting message expires, those in mailboxes included."""
    [(at,)] = read(NEXT_EXPIRY, None)
    return None if at is None else int(at)


def end(
    tx: StoreTransaction, seqs: Sequence[int], outcome: Outcome, reason: str | None, attempt: int
) -> int:
    """End waiting messages by the attempt of that number; return how many waited."""
    statement, bound = listed(seqs, END)
    named = {"outcome": outcome, "reason": reason, "attempt": attempt, "now": tx.now}
    return tx.run(statement, named | {"seqs": bound})


def end_handled(tx: StoreTransaction, seq: int, attempt: int) -> int:
    """End one message as processed; return 1 if it waited."""
    return tx.run(END_HANDLED, {"now": tx.now, "attempt": attempt, "seq": seq})


def note_reason(tx: StoreTransaction, sender: str, message_id: str, reason: str) -> None:
    """Store what the receipt of an ended message says, also when it is sent again."""
    tx.run(NOTE_REASON, {"why": reason, "sender": sender, "id": message_id})


def set_attempts(tx: StoreTransaction, seq: int, attempts: int, reason: str) -> None:
    """Record how often a message was tried, and why the last attempt failed."""
    tx.run(TRIED, {"attempts": attempts, "reason": reason, "seq": seq})


def count_attempts(tx: StoreTransaction, seq: int, calls: int) -> None:
    """Add to the number of a message's attempts."""
    tx.run(COUNT, (calls, seq))


def count_unended(tx: StoreTransaction, seq: int, calls: int, seen: str) -> None:
    """Add calls that never ended to a message's attempts, with what was *seen* as the reason."""
    tx.run(NEVER_ENDED, {"calls": calls, "seen": seen, "seq": seq})


def keep_attempt(tx: StoreTransaction, failed: Mapping[str, Any]) -> None:
    """Store a failed attempt; forget those beyond the last ones of its message and the file."""
    [(seq,)] = tx.rows(KEEP_ATTEMPT, failed)
    tx.run(FORGET_ATTEMPTS, {"seq": seq, "id": failed["id"], "sender": failed["sender"]})


class InboxRow(NamedTuple):
    """A new message of the inbox, with a field for each column."""

    sender: str
    id: str
    lane_id: int | None
    session: str
    type: str
    topic: str | None
    rank: int
    state: str
    expires_at: Millis | None
    correlation_id: str | None
    causation_id: str | None
    frame: str
    digest: bytes
    received_at: Millis
    ended_at: Millis | None
    channel: str | None
    kind: str | None
    mailbox: str | None


INSERT_HANDLED: Final = """
INSERT INTO _onceward_inbox (sender, id, lane_id, session, type, topic, rank, state, attempts,
                             correlation_id, causation_id, frame, digest, received_at, ended_at,
                             padding)
VALUES (:sender, :id, :lane_id, :session, :type, :topic, :rank, 'processed', :attempt,
        :correlation_id, :causation_id, :frame, :digest, :received_at, :now, NULL)
"""
INSERT: Final = f"""
INSERT INTO _onceward_inbox ({", ".join(InboxRow._fields)})
VALUES ({", ".join("?" * len(InboxRow._fields))})
ON CONFLICT (sender, id) DO NOTHING
"""


def insert(tx: StoreTransaction, rows: Sequence[InboxRow]) -> None:
    """Insert new messages; one whose sender and id are there already changes nothing."""
    tx.insert(INSERT, rows)


def insert_one(tx: StoreTransaction, row: InboxRow) -> int:
    """Insert a new message; return its sequence."""
    tx.run(INSERT, row)
    return tx.handle.last_insert_rowid()


def insert_handled(tx: StoreTransaction, row: InboxRow, attempt: int) -> int:
    """Insert a message whose handler has been called, as processed; return its sequence."""
    tx.run(INSERT_HANDLED, row._asdict() | {"now": tx.now, "attempt": attempt})
    return tx.handle.last_insert_rowid()


def insert_own(tx: StoreTransaction, *values: Any) -> None:
    """Insert a message of an agent to itself; *values* are the columns of ``INSERT_OWN``."""
    tx.run(INSERT_OWN, values)


def note_ephemeral(tx: StoreTransaction, messages: Sequence[tuple[str, str]]) -> None:
    """Record that a restart drops messages (sender, id)."""
    tx.many(NOTE_EPHEMERAL, messages)


def delete_kept(tx: StoreTransaction, mailbox: str, message_id: str) -> int:
    """End a mailbox's message as deleted, unless it has expired; return 1 if it waited."""
    return tx.run(DELETE_KEPT, {"mailbox": mailbox, "id": message_id, "now": tx.now})


def expire_kept(tx: StoreTransaction, seqs: Sequence[int]) -> int:
    """End messages of mailboxes as expired; return how many."""
    return tx.run(EXPIRE_KEPT, (tx.now, json.dumps(seqs)))


def supersede(tx: StoreTransaction, mailbox: str, key: str) -> int:
    """End the message that has a key in a mailbox; return 1 if there was one."""
    return tx.run(SUPERSEDE, {"now": tx.now, "mailbox": mailbox, "key": key})


def supersede_one(tx: StoreTransaction, sender: str, message_id: str) -> int:
    """End a message whose key a newer one has; return 1 if it waited."""
    return tx.run(SUPERSEDE_ONE, {"now": tx.now, "sender": sender, "id": message_id})


def name_key(tx: StoreTransaction, key: str, sender: str, message_id: str) -> None:
    """Store the key of a mailbox's message."""
    tx.run(NAME_KEY, {"key": key, "sender": sender, "id": message_id})


def bind(tx: StoreTransaction, run: int, seqs: str) -> None:
    """Give messages (a JSON list) to a run, which counts as their next attempt."""
    tx.run(BIND, {"run": run, "bound": seqs})


def unbind(tx: StoreTransaction, run: int, seqs: str) -> None:
    """Take the waiting messages (a JSON list) of a run back from it."""
    tx.run(UNBIND, {"run": run, "bound": seqs})


def move(tx: StoreTransaction, lane_id: int, seqs: Sequence[int]) -> None:
    """Move waiting messages to another lane."""
    tx.run(MOVE, (lane_id, json.dumps(seqs)))


def place(tx: StoreTransaction, places: Sequence[tuple[int, int]]) -> None:
    """Give messages that no run has a place (place, sequence) in their queue."""
    tx.many(PLACE, places)


def end_waiting(
    tx: StoreTransaction, seqs: Sequence[int], outcome: Outcome, reason: str | None
) -> list[tuple[int, str, str]]:
    """End those messages that wait and have a lane; return (sequence, sender, id) of each."""
    named = {"seqs": json.dumps(seqs), "outcome": outcome, "now": tx.now, "reason": reason}
    return sorted(tx.rows(END_WAITING, named))


def drop_ephemeral(tx: StoreTransaction, seqs: Sequence[int], reason: str) -> int:
    """End waiting messages of mailboxes as dropped; return how many."""
    return tx.run(DROP_EPHEMERAL, {"now": tx.now, "reason": reason, "seqs": json.dumps(seqs)})


def add_returned(tx: StoreTransaction, dead_letter: int, lane_id: int | None) -> int:
    """Insert the message of a dead letter under a new sequence; return that."""
    [(seq,)] = tx.rows(RETURN, {"lane": lane_id, "now": tx.now, "seq": dead_letter})
    return int(seq)


def prune_attempts(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of old failed attempts; return how many."""
    return tx.run(PRUNE_ATTEMPTS, {"before": before, "limit": limit})
