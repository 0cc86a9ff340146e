"""
Judge messages of pools, whose recipient their sender's file changes.

Such a message waits under the pool's name until a member gets it. An earlier copy of the sender's
file, and a member that had it before a restore, know it under another name: these rows are one
message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import apsw

from onceward.fleet.coverage import READ, Reading
from onceward.fleet.verdict_sql import DELETED

POOLS: Final = """
CREATE TEMP TABLE pools (sender, name, PRIMARY KEY (sender, name)) WITHOUT ROWID
"""
POOL: Final = "INSERT OR IGNORE INTO temp.pools VALUES (?, ?)"
ARRIVED: Final = f"recipient_says NOT IN ('nothing', '{DELETED}')"
SENT: Final = f"sender_says NOT IN ('nothing', '{DELETED}')"
# The first row of a message is that of the member that has it.
ROWS: Final = f"""
CREATE TEMP TABLE given AS
SELECT rowid AS row, processed_at,
       row_number() OVER (PARTITION BY sender, id
                          ORDER BY {ARRIVED} AND {SENT} DESC, {ARRIVED} DESC,
                                   (sender, recipient) IN temp.pools, rowid) AS place,
       count(*) OVER one AS rows, count(processed_at) OVER one AS effects,
       sum({ARRIVED}) OVER one AS arrivals, max({SENT}) OVER one AS known
  FROM messages WHERE sender IN (SELECT sender FROM temp.pools)
WINDOW one AS (PARTITION BY sender, id)
"""
JUDGE: Final = """
UPDATE messages SET verdict = CASE WHEN effects > 1 THEN 'double_processed'
                                   WHEN arrivals > 1 THEN 'duplicated'
                                   WHEN verdict = 'orphan' AND known
                                   THEN iif(given.processed_at, 'delivered_once', 'in_flight')
                                   ELSE verdict END
  FROM temp.given WHERE rows > 1 AND place = 1 AND row = messages.rowid
"""
JOIN: Final = "DELETE FROM messages WHERE rowid IN (SELECT row FROM temp.given WHERE place > 1)"
WAIT: Final = """
UPDATE messages SET verdict = 'waiting', waits_for = 'member'
 WHERE verdict = 'in_flight' AND sender_says = 'pending' AND (sender, recipient) IN temp.pools
"""


def judge(con: apsw.Connection, readings: Iterable[Reading]) -> None:
    """
    Join the rows of each message that was sent to a pool, and tell which ones wait for a member.

    Senders with several files are left alone: two of their messages may have one chosen id.
    """
    found = list(_pools(readings))
    if not found:
        return
    con.execute(POOLS)
    con.executemany(POOL, found)
    for sql in (ROWS, JUDGE, JOIN, WAIT):
        con.execute(sql)


def _pools(readings: Iterable[Reading]) -> Iterator[tuple[str, str]]:
    """Yield senders and the pools that they send to."""
    files: defaultdict[str, dict[int, set[str]]] = defaultdict(dict)
    for one in readings:
        if one.state == READ:
            files[one.agent].setdefault(one.file, set()).update(one.pools)
    for agent, pools in files.items():
        if len(pools) == 1:
            yield from ((agent, name) for name in set().union(*pools.values()))
