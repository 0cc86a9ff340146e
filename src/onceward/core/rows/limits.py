"""
Write limits: of the outbox with the usage of each scope, rates as buckets, and what was dropped.

The statements of ``usage.sql`` count while messages are added and end. They are in the file only
while it has limits, so that a message costs nothing without one. A bucket has the tokens of sends,
of accepted messages or of a handler's calls. A drop is kept until a summary or a run tells of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from onceward.core.rows import outbox
from onceward.file.transaction import Rows, StoreTransaction
from onceward.message.clock import Millis

KEEP: Final = """
INSERT INTO _onceward_limits (scope, name, max_messages, max_bytes, overflow)
VALUES (:scope, :name, :messages, :bytes, :overflow)
ON CONFLICT (scope, name) DO UPDATE
   SET max_messages = excluded.max_messages, max_bytes = excluded.max_bytes,
       overflow = excluded.overflow
"""
REMOVE: Final = "DELETE FROM _onceward_limits WHERE scope = ? AND name = ?"
ANY: Final = "SELECT 1 FROM _onceward_limits LIMIT 1"
INSTALLED: Final = """
SELECT type, name
  FROM sqlite_schema
 WHERE name GLOB '_onceward_limits_*' AND type IN ('trigger', 'view', 'index')
"""
EMPTY: Final = "DELETE FROM _onceward_limit_usage"
RECOUNT: Final = """
INSERT INTO _onceward_limit_usage (scope, name, messages, bytes)
SELECT f.scope, f.name, count(*), sum(f.bytes)
  FROM _onceward_limits_of AS f JOIN _onceward_outbox AS o ON o.seq = f.seq
 WHERE o.state IN ('pending', 'sent') AND o.held_by IS NULL
   AND EXISTS (SELECT 1
                 FROM _onceward_limits AS l
                WHERE l.scope = f.scope AND l.name IN (f.name, '*'))
 GROUP BY f.scope, f.name
"""
FULLNESS: Final = """
SELECT scope, name, messages, bytes
  FROM _onceward_limit_usage
 WHERE messages > 0
 ORDER BY scope, name
"""


def fullness(read: Rows) -> dict[str, tuple[int, int]]:
    """Return the current messages and bytes by scope and name (``session run-42``)."""
    return {f"{scope} {name}".rstrip(): (n, size) for scope, name, n, size in read(FULLNESS, ())}


def save(tx: StoreTransaction, limit: Mapping[str, Any]) -> None:
    """Set a limit; existing messages above it stay."""
    tx.run(KEEP, limit)
    _recount(tx)


def remove(tx: StoreTransaction, scope: str, name: str) -> bool:
    """Remove a limit and release messages that only it held back; return whether it existed."""
    gone = tx.run(REMOVE, (scope, name)) > 0
    _recount(tx)
    return gone


def _recount(tx: StoreTransaction) -> None:
    """Create the triggers while there are limits, and count the usage of each scope."""
    for kind, name in tx.rows(INSTALLED):
        tx.run(f'DROP {kind} "{name}"')
    tx.run(EMPTY)
    if not tx.rows(ANY):
        outbox.free_all(tx)
        return
    tx.rows(Path(__file__).with_name("usage.sql").read_text(encoding="utf-8"))
    tx.run(RECOUNT)
    outbox.free_orphans(tx)
    while outbox.free_next(tx):
        pass


TAKE_SEND: Final = """
UPDATE _onceward_rate_limits
   SET tokens = min(burst, tokens + max(0, :now - filled_at) * per_second / 1000.0) - 1,
       filled_at = max(filled_at, :now)
 WHERE name = 'send'
RETURNING tokens, per_second, burst
"""
FILL_BUCKET: Final = """
INSERT INTO _onceward_rate_limits (name, per_second, burst, tokens, filled_at)
VALUES (:bucket, :per_second, :burst, :tokens, :now)
ON CONFLICT (name) DO UPDATE
   SET tokens = excluded.tokens, filled_at = max(filled_at, excluded.filled_at)
"""
SET_RATE: Final = """
INSERT INTO _onceward_rate_limits (name, per_second, burst, tokens, filled_at)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
   SET per_second = excluded.per_second, burst = excluded.burst,
       tokens = min(tokens, excluded.burst)
"""
REMOVE_RATE: Final = "DELETE FROM _onceward_rate_limits WHERE name = ?1 OR name GLOB ?1 || '/*'"
# A full bucket says no more than none.
FORGET_FULL: Final = """
DELETE FROM _onceward_rate_limits
 WHERE name IN (SELECT name
                  FROM _onceward_rate_limits
                 WHERE name >= :scope || ':' AND name < :scope || ';'
                   AND tokens + max(0, :now - filled_at) * per_second / 1000.0 >= burst
                 LIMIT :limit)
"""
TAKE_CALLS: Final = """
INSERT INTO _onceward_rate_limits (name, per_second, burst, tokens, filled_at)
SELECT value ->> 0, value ->> 1, value ->> 2, (value ->> 2) - (value ->> 3), :now
  FROM json_each(:calls)
 WHERE true
ON CONFLICT (name) DO UPDATE
   SET tokens = min(excluded.burst,
                    tokens + max(0, :now - filled_at) * excluded.per_second / 1000.0
                    - (excluded.burst - excluded.tokens)),
       filled_at = :now, per_second = excluded.per_second, burst = excluded.burst
"""


def take_send(tx: StoreTransaction) -> list[tuple[float, float, float]]:
    """Take the token of a send; return tokens left, rate and burst, nothing without a limit."""
    return tx.rows(TAKE_SEND, {"now": tx.now})


def fill_bucket(tx: StoreTransaction, bucket: Mapping[str, Any]) -> None:
    """Set the tokens that are left in a bucket."""
    tx.run(FILL_BUCKET, bucket)


def forget_full(tx: StoreTransaction, scope: str, limit: int) -> int:
    """Delete a slice of the full buckets of a scope, which are made again; return how many."""
    return tx.run(FORGET_FULL, {"scope": scope, "now": tx.now, "limit": limit})


def take_calls(tx: StoreTransaction, calls: Sequence[tuple[str, float, int, int]]) -> None:
    """Take the tokens of calls (bucket, rate, burst, calls); a bucket is made at first use."""
    tx.run(TAKE_CALLS, {"calls": json.dumps(calls), "now": tx.now})


def set_rate(tx: StoreTransaction, name: str, per_second: float, burst: float) -> None:
    """Make a bucket, full; or change the rate of one, its tokens within the new burst."""
    tx.run(SET_RATE, (name, per_second, burst, burst, tx.now))


def remove_rate(tx: StoreTransaction, name: str) -> bool:
    """Remove a rate and the buckets of its senders; return whether there was one."""
    return tx.run(REMOVE_RATE, (name,)) > 0


RECORD_DROPS: Final = """
INSERT INTO _onceward_drops (id, peer, session, scope, name, policy, line, dropped_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
MARK_SUMMARIZED: Final = "UPDATE _onceward_drops SET summary_id = ? WHERE seq = ?"
GIVE_DROPS: Final = """
UPDATE _onceward_drops SET run_seq = ?
 WHERE policy = 'summarize' AND scope = 'queue' AND session = ? AND run_seq IS NULL
"""
TAKE_BACK_DROPS: Final = "UPDATE _onceward_drops SET run_seq = NULL WHERE run_seq = ?"
PRUNE_DROPS: Final = """
DELETE FROM _onceward_drops
 WHERE seq IN (SELECT seq
                 FROM _onceward_drops
                WHERE dropped_at < :before
                ORDER BY dropped_at LIMIT :limit)
"""


def record_drops(tx: StoreTransaction, rows: Sequence[tuple[Any, ...]]) -> None:
    """Record dropped messages: id, peer, session, scope, name, policy, line for a summary, time."""
    tx.many(RECORD_DROPS, rows)


def mark_summarized(tx: StoreTransaction, summary_id: str, drops: Sequence[int]) -> None:
    """Record which message tells of drops."""
    tx.many(MARK_SUMMARIZED, [(summary_id, seq) for seq in drops])


def give_drops(tx: StoreTransaction, run: int, session: str) -> None:
    """Let a run tell of the drops of its session."""
    tx.run(GIVE_DROPS, (run, session))


def take_back_drops(tx: StoreTransaction, run: int) -> None:
    """Let a later run tell of the drops of a run that consumed nothing."""
    tx.run(TAKE_BACK_DROPS, (run,))


def prune_drops(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Delete a slice of old rows; return how many."""
    return tx.run(PRUNE_DROPS, {"before": before, "limit": limit})
