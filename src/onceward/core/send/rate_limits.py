"""Limit how fast a file takes messages, and how large it grows."""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

from onceward.errors import InvalidArgument, RateLimited, StoreCapacity
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

WARN_AT: Final = 0.9
TAKE: Final = """
UPDATE _onceward_rate_limits
   SET tokens = min(burst, tokens + max(0, :now - filled_at) * per_second / 1000.0) - 1,
       filled_at = max(filled_at, :now)
 WHERE name = 'send'
RETURNING tokens, per_second, burst
"""
ACCEPT_BUCKET: Final = """
SELECT r.per_second, r.burst,
       min(r.burst,
           coalesce(s.tokens + max(0, :now - s.filled_at) * r.per_second / 1000.0, r.burst))
  FROM _onceward_rate_limits AS r LEFT JOIN _onceward_rate_limits AS s ON s.name = :bucket
 WHERE r.name = 'accept'
"""
LET_IN: Final = """
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
FILE: Final = "SELECT max_file_bytes FROM _onceward_file_info"
SET_FILE: Final = "UPDATE _onceward_file_info SET max_file_bytes = ?"
NO_FILE: Final = """
UPDATE _onceward_file_info SET max_file_bytes = NULL WHERE max_file_bytes IS NOT NULL
"""
PAGES: Final = """
SELECT ((SELECT page_count FROM pragma_page_count)
        - (SELECT freelist_count FROM pragma_freelist_count)) * page_size
  FROM pragma_page_size
"""


class FileUsage(NamedTuple):
    """Bytes of a file in use, and the limit of them."""

    bytes: int
    limit: int


def take_token(tx: StoreTransaction, sender: str) -> None:
    """Count one message against the rate; raise RateLimited with the wait where it is exceeded."""
    for tokens, per_second, burst in tx.rows(TAKE, {"now": tx.now}):
        if tokens < 0:
            wait = -tokens / per_second
            msg = (
                f"agent {sender} sends faster than its limit of {per_second:g} messages a second"
                f" (burst {burst:g}); nothing was written, try again in {wait:.3f} s"
            )
            raise RateLimited(msg, retry_after=wait, sender=sender, limit=per_second)


def admit(tx: StoreTransaction, sender: str, messages: int) -> Millis:
    """
    Count a sender's parcel against the accept rate; return the wait, 0 where it is taken.

    More than a burst at once is taken when the bucket is full, and paid off
    afterwards: a parcel is taken whole or not at all. A refused sender consumes
    no tokens.
    """
    bucket = f"accept/{sender}"
    for per_second, burst, tokens in tx.rows(ACCEPT_BUCKET, {"now": tx.now, "bucket": bucket}):
        missing = min(messages, burst) - tokens
        if missing > 0:
            wait: Millis = ceil(1000 * missing / per_second)
            return wait
        left = {
            "bucket": bucket,
            "per_second": per_second,
            "burst": burst,
            "tokens": tokens - messages,
            "now": tx.now,
        }
        tx.run(LET_IN, left)
    return 0


def remove_rate(tx: StoreTransaction, of: str) -> bool:
    """Remove the rate of sending, or of accepting from each sender; return whether it was set."""
    return tx.run(NO_RATE, (of,)) > 0


def set_rate(tx: StoreTransaction, of: str, per_second: float, burst: float) -> None:
    """Set the rate of sending (``send``), or of accepting from each sender (``accept``)."""
    if not burst >= 1:
        msg = f"a rate has a burst of at least one message, not {burst!r}"
        raise InvalidArgument(msg)
    tx.run(SET_RATE, (of, per_second, burst, burst, tx.now))


def set_file(tx: StoreTransaction, max_bytes: int) -> None:
    """Set how many bytes of the file may be in use."""
    tx.run(SET_FILE, (max_bytes,))


def remove_file(tx: StoreTransaction) -> bool:
    """Let the file grow without limit; return whether it had one."""
    return tx.run(NO_FILE) > 0


def check_file_size(tx: StoreTransaction) -> FileUsage | None:
    """Return the file's usage where it is limited; raise StoreCapacity where it is full."""
    [(limit,)] = tx.rows(FILE)
    if limit is None:
        return None
    [(size,)] = tx.rows(PAGES)
    found = FileUsage(size, limit)
    if found.bytes >= found.limit:
        msg = (
            f"{size} bytes of the file are in use and {found.limit} may be; nothing was written:"
            " let messages be settled and pruned"
        )
        raise StoreCapacity(msg)
    return found
