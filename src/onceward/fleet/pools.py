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
from onceward.fleet.verdict_sql import DELETED, PRUNABLE

POOLS: Final = """
CREATE TEMP TABLE pools (sender, name, PRIMARY KEY (sender, name)) WITHOUT ROWID
"""
POOL: Final = "INSERT OR IGNORE INTO temp.pools VALUES (?, ?)"
ARRIVED: Final = f"recipient_says NOT IN ('nothing', '{DELETED}')"
SENT: Final = f"sender_says NOT IN ('nothing', '{DELETED}')"
ENDED: Final = " ".join(
    f"WHEN recipient_says GLOB '{said}*' THEN '{verdict}'"
    for said, verdict in (
        ("dropped", "dropped"),
        ("expired", "expired"),
        ("cancelled", "cancelled"),
        ("dead", "dead_lettered"),
    )
)
"""Verdicts by what the recipient says, of a message that its sender knows under another name."""
# The first row of a message is that of the member that has it.
ROWS: Final = f"""
CREATE TEMP TABLE given AS
SELECT rowid AS row,
       row_number() OVER (PARTITION BY sender, id
                          ORDER BY {ARRIVED} AND {SENT} DESC, {ARRIVED} DESC,
                                   (sender, recipient) IN temp.pools, rowid) AS place,
       count(processed_at) OVER one AS effects,
       sum({ARRIVED}) OVER one AS arrivals, max({SENT}) OVER one AS known
  FROM messages
 WHERE (sender, id) IN (SELECT sender, id FROM messages
                         WHERE {PRUNABLE} AND sender IN (SELECT sender FROM temp.pools)
                         GROUP BY sender, id HAVING count(*) > 1)
WINDOW one AS (PARTITION BY sender, id)
"""
JUDGE: Final = f"""
UPDATE messages SET verdict = CASE WHEN effects > 1 THEN 'double_processed'
                                   WHEN arrivals > 1 THEN 'duplicated'
                                   WHEN verdict <> 'orphan' OR NOT known THEN verdict
                                   WHEN effects THEN 'delivered_once' {ENDED}
                                   ELSE 'in_flight' END
  FROM temp.given WHERE place = 1 AND row = messages.rowid
"""
JOIN: Final = "DELETE FROM messages WHERE rowid IN (SELECT row FROM temp.given WHERE place > 1)"
WAIT: Final = """
UPDATE messages SET verdict = 'waiting', waits_for = 'member'
 WHERE verdict = 'in_flight' AND sender_says = 'pending' AND (sender, recipient) IN temp.pools
"""


def judge(con: apsw.Connection, readings: Iterable[Reading]) -> None:
    """
    Join the rows of each message that was sent to a pool, and tell which ones wait for a member.

    Ids that a sender chose are left alone, and senders with several files: two messages may have
    one id.
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
