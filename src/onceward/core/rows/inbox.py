"""
Write the inbox and the failed attempts of its messages: no row is read or changed elsewhere.

A row waits (``pending``) until one statement here ends it; it is then never pending again, except
by a replay, which inserts it under a new sequence. That a worker may end it is proved by ``lanes``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, cast

from onceward.file.sql_parts import senders
from onceward.file.transaction import Rows, StoreTransaction, listed
from onceward.message.clock import Millis
from onceward.message.vocabulary import Outcome

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
WAITS_IN: Final = """
SELECT b.rank, b.seq, b.topic
  FROM _onceward_inbox AS b
  JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
 WHERE b.channel = :channel AND b.state = 'pending'
   AND (CASE WHEN :suspects THEN l.suspect = 1 AND l.owner IS NULL
             ELSE l.due_at IS NULL OR l.due_at <= :now END)"""
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
   SET state = 'processed', ended_at = ?, reason = NULL, attempts = max(attempts, ?), padding = NULL
 WHERE seq = ? AND state = 'pending'
"""
TRIED: Final = (
    "UPDATE _onceward_inbox SET attempts = ?, reason = ? WHERE seq = ? AND state = 'pending'"
)
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
OF_SEQS: Final = (
    "SELECT sender, id FROM _onceward_inbox WHERE seq IN (SELECT value FROM json_each(?))"
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
IS_CANCELLED: Final = "SELECT 1 FROM _onceward_inbox WHERE seq = ? AND state = 'cancelled'"


def next_rows(
    tx: StoreTransaction,
    lane_id: int,
    limit: int,
    ahead: Mapping[tuple[Any, ...], tuple[Any, ...]] | None,
) -> list[tuple[Any, ...]]:
    """Return the next rows of a lane, in order: those read ahead, if its first row was."""
    if ahead:
        known = map(ahead.get, tx.rows(STILL_NEXT, (lane_id, limit)))
        rows = list(takewhile(bool, known))
        if rows:
            return cast("list[tuple[Any, ...]]", rows)
    return tx.rows(NEXT, (lane_id, limit))


def peek(read: Rows, lane_id: int, limit: int) -> list[tuple[Any, ...]]:
    """Return the next rows of a lane, without a lock."""
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


def is_cancelled(read: Rows, seq: int) -> bool:
    """Return whether a message was cancelled."""
    return bool(read(IS_CANCELLED, (seq,)))


def senders_of(tx: StoreTransaction, seqs: Sequence[int]) -> list[tuple[str, str]]:
    """Return sender and id of messages."""
    return tx.rows(OF_SEQS, (json.dumps(seqs),))


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
    return tx.run(END_HANDLED, (tx.now, attempt, seq))


def set_attempts(tx: StoreTransaction, seq: int, attempts: int, reason: str) -> None:
    """Record how often a message was tried, and why the last attempt failed."""
    tx.run(TRIED, (attempts, reason, seq))


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
