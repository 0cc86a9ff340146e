"""
Write what a file remembers of each sender, so that each message takes effect once and is answered.

A stream's row is the first net: the number of a sender's last accepted parcel, changed in the
commit that stores its frames. The dedup record is the second: a message with one never takes
effect again. Records are pruned below a horizon id, which advances first: an id below it that has
no record cannot be judged, and is refused. A receipt is written with the dedup record, and deleted
once a parcel delivered it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json, to_json

from onceward.file.transaction import Rows, StoreTransaction, listed
from onceward.message.clock import Millis
from onceward.message.ids import AHEAD, KEYED, time_prefix
from onceward.message.parcel import Receipt
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
SAVE_STREAM: Final = """
INSERT INTO _onceward_sender_streams (sender, epoch, number, last_id, updated_at, base_epoch,
                                      base_number)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (sender) DO UPDATE
   SET epoch = excluded.epoch, number = excluded.number, last_id = excluded.last_id,
       updated_at = excluded.updated_at, base_epoch = excluded.base_epoch,
       base_number = excluded.base_number
"""
MARK_PROCESSED: Final = """
INSERT INTO _onceward_processed_messages (sender, message_id, session, outcome, processed_at)
VALUES (?, ?, ?, 'processed', ?)
ON CONFLICT DO NOTHING
"""
KEEP_CHOSEN: Final = """
INSERT INTO _onceward_chosen_ids (sender, id) VALUES (?, ?) ON CONFLICT DO NOTHING
"""
MARK_CONSUMER: Final = """
INSERT INTO _onceward_processed_messages (sender, message_id, consumer, session, outcome,
                                          processed_at)
VALUES (?, ?, ?, ?, 'processed', ?)
ON CONFLICT DO NOTHING
"""
# The dedup record of an id that its sender chose is never pruned.
NOT_TAKEN: Final = """
UPDATE _onceward_processed_messages SET outcome = 'dropped'
 WHERE sender = ? AND message_id = ? AND consumer = ''
"""
UNMARK: Final = """
DELETE FROM _onceward_processed_messages WHERE sender = ? AND message_id = ? AND outcome = 'dead'
"""


def mark(tx: StoreTransaction, seqs: Sequence[int], outcome: Outcome | Literal["dead"]) -> None:
    """Record how messages of the inbox ended, so that none of them is accepted again."""
    statement, bound = listed(seqs, MARK)
    tx.run(statement, {"outcome": outcome, "now": tx.now, "seqs": bound})


def mark_one(
    tx: StoreTransaction,
    sender: str,
    message_id: str,
    session: str,
    outcome: Outcome | Literal["dead"],
) -> None:
    """Record the end of a message, also of one that may still come: it is then refused."""
    tx.run(MARK_ONE, (sender, message_id, session, outcome, tx.now))


# Only dedup records of ids that we minted are pruned, below the horizon id: others, and ids that
# their sender chose, are kept forever. An id is also pruned by its own time: one from a fast clock
# stays until that time, so that the horizon never passes the present. An id that its sender derived
# from a key has no time: its message was sent at most AHEAD after it was processed. The record of a
# dead letter with such an id stays with it: the key may be used again, for the same id.
HEX: Final = "[0-9a-f]"
MINTED: Final = "-".join((HEX * 8, HEX * 4, "7" + HEX * 3, "[89ab]" + HEX * 3, HEX * 12))
PRUNABLE: Final = f"""
SELECT seq, sender, message_id, processed_at FROM _onceward_processed_messages
 WHERE processed_at < :before AND message_id GLOB '{MINTED}' AND message_id < :young
   AND NOT EXISTS (SELECT 1 FROM _onceward_chosen_ids AS c
                    WHERE c.sender = _onceward_processed_messages.sender
                      AND c.id = _onceward_processed_messages.message_id)
   AND (message_id NOT GLOB '{KEYED}*'
        OR (processed_at < :before - {AHEAD}
            AND NOT EXISTS (SELECT 1 FROM _onceward_dead_letters AS d
                             WHERE d.origin = 'inbox'
                               AND d.peer = _onceward_processed_messages.sender
                               AND d.id = _onceward_processed_messages.message_id)))
"""
OLD_MARKS: Final = f"{PRUNABLE} AND seq > :after AND seq <= :last"
ARCHIVED_MARKS: Final = (
    f"{PRUNABLE} AND (seq, message_id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:rows))"
)
SLICE_OF_MARKS: Final = """
SELECT seq, processed_at < :before FROM _onceward_processed_messages
 WHERE seq > :after ORDER BY seq LIMIT :limit
"""


SENT_BEFORE: Final = (
    f"printf('%08x-%04x', (processed_at + {AHEAD}) >> 16, (processed_at + {AHEAD}) & 65535)"
)


def _moving_horizon(marks: str) -> str:
    """Return the statement that advances the horizon id beyond *marks*."""
    # Messages of an agent to itself have no stream, only a horizon.
    return f"""
INSERT INTO _onceward_sender_streams (sender, epoch, number, last_id, horizon_id, updated_at)
SELECT sender, '', 0, '', max(CASE WHEN message_id GLOB '{KEYED}*' THEN {SENT_BEFORE}
                                   ELSE message_id END),
       :before
  FROM ({marks}) WHERE true GROUP BY sender
    ON CONFLICT (sender) DO UPDATE SET horizon_id = max(horizon_id, excluded.horizon_id)
"""


def _dropping(marks: str) -> str:
    """Return the statement that deletes *marks*."""
    return f"DELETE FROM _onceward_processed_messages WHERE seq IN (SELECT seq FROM ({marks}))"


HORIZON: Final = _moving_horizon(OLD_MARKS)
MARKS: Final = _dropping(OLD_MARKS)
ARCHIVED_HORIZON: Final = _moving_horizon(ARCHIVED_MARKS)
DROP_ARCHIVED: Final = _dropping(ARCHIVED_MARKS)


def next_after(rows: Sequence[tuple[int, int]], limit: int) -> int:
    """Return the sequence after which more rows (sequence, is old) may be old; -1 for none."""
    return rows[-1][0] if len(rows) == limit and any(old for _, old in rows) else -1


def prune_marks(tx: StoreTransaction, *, after: int, before: Millis, limit: int) -> tuple[int, int]:
    """
    Prune one slice of dedup records after sequence *after*; first advance the horizon id.

    Return (sequence to continue from, -1 at the end; rows pruned).
    """
    rows = tx.rows(SLICE_OF_MARKS, {"after": after, "before": before, "limit": limit})
    if not any(old for _, old in rows):
        return -1, 0
    named = {"after": after, "last": rows[-1][0], "before": before, "young": time_prefix(before)}
    tx.run(HORIZON, named)
    return next_after(rows, limit), tx.run(MARKS, named)


def prune_archived_marks(
    tx: StoreTransaction, rows: Sequence[tuple[int, str]], *, before: Millis
) -> int:
    """Prune older dedup records (seq, message id); first advance the horizon id."""
    named = {"before": before, "young": time_prefix(before), "rows": json.dumps(rows)}
    tx.run(ARCHIVED_HORIZON, named)
    return tx.run(DROP_ARCHIVED, named)


def mark_processed(tx: StoreTransaction, messages: Sequence[tuple[str, str, str, Millis]]) -> None:
    """Record messages (sender, id, session, time) as processed, each once."""
    tx.many(MARK_PROCESSED, messages)


def mark_for(tx: StoreTransaction, consumer: str, message: tuple[str, str, str]) -> bool:
    """Record that a consumer has processed a message (sender, id, session); False if it had."""
    sender, message_id, session = message
    return tx.run(MARK_CONSUMER, (sender, message_id, consumer, session, tx.now)) > 0


def mark_dropped(tx: StoreTransaction, messages: Sequence[tuple[str, ...]]) -> None:
    """Change the outcome of messages (sender, id, consumer) that were kept and never taken."""
    tx.many(NOT_TAKEN, messages)


def unmark(tx: StoreTransaction, sender: str, message_id: str) -> None:
    """Delete the record of a dead letter that is replayed."""
    tx.run(UNMARK, (sender, message_id))


def keep_chosen(tx: StoreTransaction, ids: Sequence[tuple[str, str]]) -> None:
    """Record ids (sender, id) that their sender chose, although they look like minted ones."""
    tx.many(KEEP_CHOSEN, ids)


def save_stream(tx: StoreTransaction, *values: Any) -> None:
    """Record a sender's last accepted parcel; *values* are the columns of ``SAVE_STREAM``."""
    tx.run(SAVE_STREAM, values)


ADD_RECEIPTS: Final = "INSERT INTO _onceward_receipts (peer, receipts, created_at) VALUES (?, ?, ?)"
PENDING_RECEIPTS: Final = """
SELECT r.seq, r.receipts, s.epoch, s.number
  FROM _onceward_receipts AS r
  LEFT JOIN _onceward_sender_streams AS s ON s.sender = r.peer
 WHERE r.peer = ? ORDER BY r.seq LIMIT ?
"""
SHORTEN: Final = "UPDATE _onceward_receipts SET receipts = :first WHERE seq = :seq"
ADD_REST: Final = """
INSERT INTO _onceward_receipts (peer, receipts, created_at)
SELECT peer, :rest, created_at FROM _onceward_receipts WHERE seq = :seq
"""
REMOVE_RECEIPTS: Final = "DELETE FROM _onceward_receipts WHERE peer = ? AND seq <= ?"
RECEIPTS_DUE: Final = """
SELECT EXISTS (SELECT 1
                 FROM _onceward_receipts AS r LEFT JOIN _onceward_peers AS p ON p.name = r.peer
                WHERE coalesce(p.due_at, 0) <= ?1
                  AND coalesce(substr(p.url, 1, instr(p.url, ':') - 1), '') NOT IN
                      (SELECT value FROM json_each(?2))
                  AND ':' || r.peer NOT IN (SELECT value FROM json_each(?2)))
"""
PRUNE_RECEIPTS: Final = "DELETE FROM _onceward_receipts WHERE created_at < ?"


def add_receipts(tx: StoreTransaction, outcomes: Iterable[tuple[str, Receipt]]) -> None:
    """Store receipts for senders, one row per sender and commit; apply those to oneself at once."""
    by_peer: dict[str, list[Receipt]] = {}
    for peer, receipt in outcomes:
        if tx.take_receipt is not None and tx.take_receipt(peer, receipt):
            continue
        by_peer.setdefault(peer, []).append(receipt)
    rows: list[tuple[str, str, Millis]] = []
    own = tx.own
    for peer, owed in by_peer.items():
        if own is not None and peer == own.agent:
            own.settle(tx, owed)
            continue
        tx.outgoing[peer] = None
        rows.append((peer, to_json(owed).decode(), tx.now))
    if rows:
        tx.many(ADD_RECEIPTS, rows)


class PendingReceipts(NamedTuple):
    """The next receipts for a peer."""

    upto: int = 0
    """Sequence of its last row."""
    receipts: tuple[Receipt, ...] = ()
    stream_position: tuple[str, int] | None = None
    """Position of the peer's stream to us when the receipts were produced."""


NOTHING: Final = PendingReceipts()


def pending_receipts(tx: StoreTransaction, peer: str, limit: int) -> PendingReceipts:
    """Return the next receipts for *peer*."""
    rows = tx.rows(PENDING_RECEIPTS, (peer, limit))
    if not rows:
        return NOTHING
    upto, _, epoch, number = rows[-1]
    found = [Receipt(*entry) for _, text, *_ in rows for entry in from_json(text)]
    return PendingReceipts(upto, tuple(found), None if epoch is None else (epoch, number))


def first_receipts(
    tx: StoreTransaction, owed: PendingReceipts, peer: str, *, count: int, limit: int
) -> PendingReceipts:
    """
    Return the first *count* of the next receipts for a peer; the others come later.

    The row in which they end is split in two. *limit* is that of ``pending_receipts``.
    """
    taken, upto = 0, 0
    for seq, text, *_ in tx.rows(PENDING_RECEIPTS, (peer, limit)):
        entries = from_json(text)
        if taken + len(entries) > count:
            if taken < count:
                here = {"first": to_json(entries[: count - taken]).decode(), "seq": seq}
                tx.run(ADD_REST, {"rest": to_json(entries[count - taken :]).decode(), "seq": seq})
                tx.run(SHORTEN, here)
                upto = seq
            break
        taken, upto = taken + len(entries), seq
    return owed._replace(upto=upto, receipts=owed.receipts[:count])


def any_receipts_due(rows: Rows, now: Millis, elsewhere: str) -> bool:
    """Return whether receipts wait for a peer; *elsewhere*: schemes and :peers of others."""
    return bool(rows(RECEIPTS_DUE, (now, elsewhere))[0][0])


def remove_receipts(tx: StoreTransaction, peer: str, upto: int) -> None:
    """Delete the receipts that *peer* got."""
    if upto:
        tx.run(REMOVE_RECEIPTS, (peer, upto))


def prune_receipts(tx: StoreTransaction, *, before: Millis) -> int:
    """Delete receipts that were long undeliverable; the sender's next query repeats them."""
    return tx.run(PRUNE_RECEIPTS, (before,))
