"""Keep a sparse time index: one row per 1,000 messages with their min and max time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from onceward.errors import OncewardError
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

LENGTH: Final = 1000
"""Messages per index row."""
SLICE: Final = 20
"""Index rows per commit."""
AT: Final = {"outbox": "created_at", "inbox": "received_at"}
END: Final = "SELECT coalesce(max(last_seq), 0) FROM _onceward_time_index WHERE box = ?"
TAIL: Final = {
    box: f"""
SELECT (SELECT coalesce(max(seq), 0) FROM _onceward_{box})
       - (SELECT coalesce(max(last_seq), 0) FROM _onceward_time_index WHERE box = '{box}')
"""
    for box in AT
}
NEXT: Final = {
    box: f"""
INSERT INTO _onceward_time_index (box, last_seq, first_seq, min_at, max_at)
SELECT '{box}', max(seq), min(seq), min(at), max(at)
  FROM (SELECT seq, {at} AS at FROM _onceward_{box} WHERE seq > :after ORDER BY seq LIMIT {LENGTH})
HAVING count(*) = {LENGTH}
RETURNING last_seq
"""
    for box, at in AT.items()
}
FORGET: Final = {
    box: f"""
DELETE FROM _onceward_time_index
 WHERE box = '{box}' AND last_seq < (SELECT min(seq) FROM _onceward_{box})
"""
    for box in AT
}
# Rows that the time index lists for the span, and rows that it does not cover yet.
WITHIN: Final = {
    box: f"""
SELECT m.seq FROM _onceward_time_index AS c CROSS JOIN _onceward_{box} AS m
 WHERE c.box = '{box}'
   AND c.max_at >= :since
   AND c.min_at < :until
   AND m.seq BETWEEN c.first_seq AND c.last_seq
   AND m.{at} >= :since AND m.{at} < :until
 UNION ALL
SELECT m.seq FROM _onceward_{box} AS m
 WHERE m.seq > (SELECT coalesce(max(last_seq), 0) FROM _onceward_time_index WHERE box = '{box}')
   AND m.{at} >= :since
   AND m.{at} < :until
"""
    for box, at in AT.items()
}


def write(tx: StoreTransaction, box: str) -> int:
    """Write the next index rows of a box, delete pruned ones; return how many were written."""
    tx.run(FORGET[box])
    [(after,)] = tx.rows(END, (box,))
    return sum(1 for _ in _written(tx, box, after))


def _written(tx: StoreTransaction, box: str, after: int) -> Iterator[int]:
    for _ in range(SLICE):
        found = tx.rows(NEXT[box], {"after": after})
        if not found:
            return
        after = found[0][0]
        yield after


def catch_up(db: Database, box: str) -> None:
    """Write the missing index rows; if the file cannot be written, reads only take longer."""
    with suppress(OncewardError):
        while db.read(TAIL[box])[0][0] > LENGTH and db.write(lambda tx: write(tx, box)) == SLICE:
            pass


def within(db: Database, box: str, since: Millis, until: Millis) -> list[int]:
    """Return the rows of a box from a span of time, newest first."""
    catch_up(db, box)
    return sorted(
        (seq for (seq,) in db.ask(WITHIN[box], {"since": since, "until": until})), reverse=True
    )
