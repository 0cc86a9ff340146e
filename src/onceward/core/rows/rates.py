"""Write the buckets of tokens: a rate of sends, of accepted messages, of a handler's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onceward.file.transaction import StoreTransaction

TAKE_SEND: Final = """
UPDATE _onceward_rate_limits
   SET tokens = min(burst, tokens + max(0, :now - filled_at) * per_second / 1000.0) - 1,
       filled_at = max(filled_at, :now)
 WHERE name = 'send'
RETURNING tokens, per_second, burst
"""
FILL: Final = """
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
NO_RATE: Final = "DELETE FROM _onceward_rate_limits WHERE name = ?1 OR name GLOB ?1 || '/*'"
TAKE_CALLS: Final = """
INSERT INTO _onceward_rate_limits (name, per_second, burst, tokens, filled_at)
VALUES (:name, :per_second, :burst, :burst - :calls, :now)
ON CONFLICT (name) DO UPDATE
   SET tokens = min(excluded.burst,
                    tokens + max(0, :now - filled_at) * excluded.per_second / 1000.0 - :calls),
       filled_at = :now, per_second = excluded.per_second, burst = excluded.burst
"""


def take_send(tx: StoreTransaction) -> list[tuple[float, float, float]]:
    """Take the token of a send; return tokens left, rate and burst, nothing without a limit."""
    return tx.rows(TAKE_SEND, {"now": tx.now})


def fill(tx: StoreTransaction, bucket: Mapping[str, Any]) -> None:
    """Set the tokens that are left in a bucket."""
    tx.run(FILL, bucket)


def take_calls(tx: StoreTransaction, bucket: Mapping[str, Any]) -> None:
    """Take the tokens of calls from a handler's bucket, made at first use."""
    tx.run(TAKE_CALLS, bucket)


def set_rate(tx: StoreTransaction, name: str, per_second: float, burst: float) -> None:
    """Make a bucket, full; or change the rate of one, its tokens within the new burst."""
    tx.run(SET_RATE, (name, per_second, burst, burst, tx.now))


def remove(tx: StoreTransaction, name: str) -> bool:
    """Remove a rate and the buckets of its senders; return whether there was one."""
    return tx.run(NO_RATE, (name,)) > 0
