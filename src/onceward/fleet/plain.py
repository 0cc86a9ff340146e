"""
Join the evidence of plain messages instead of grouping it, for half of the work.

A plain message has at most one row of each side of ``ROW``, and no other row. Nearly all messages
are plain, unless copies of files or a log are read beside the files.
"""

from __future__ import annotations

from typing import Final, cast

import apsw

from onceward.fleet.facts import FACTS, ROW
from onceward.fleet.states import INBOX, MARK, OUTBOX
from onceward.fleet.verdict_sql import KEY

OTHER: Final = " AND ".join(f"side <> {side}" for side in ROW)
"""The rows that no plain message has."""
COUNT: Final = f"""
SELECT count(*), (SELECT coalesce(max(rowid), 0) FROM temp.evidence)
  FROM temp.evidence WHERE {OTHER}
"""
SHARE: Final = 10
"""If one row in so many is another, or more, grouping all of them is less work."""
NAMES: Final = ", ".join(KEY)
CREATE: Final = f"CREATE TEMP TABLE unusual ({NAMES}, PRIMARY KEY ({NAMES})) WITHOUT ROWID"
FIND: Final = f"INSERT OR IGNORE INTO temp.unusual SELECT {NAMES} FROM temp.evidence WHERE {OTHER}"
UNUSUAL: Final = f"({NAMES}) IN temp.unusual"
ONE_EACH: Final = (
    f"CREATE UNIQUE INDEX temp.one_{{row}} ON evidence ({NAMES}) WHERE side = {{side}}"
)


def _same(row: str, key: str) -> str:
    return " AND ".join(f"{row}.{name} = {key}.{name}" for name in KEY)


def _keys(side: int) -> str:
    return f"SELECT {NAMES} FROM temp.evidence INDEXED BY one_{ROW[side]} WHERE side = {side}"


def _joined(keys: str, key: str) -> str:
    """Return the facts of each plain message of *keys*, of which *key* is a row."""
    names = ", ".join(f"{key}.{name} AS {name}" for name in KEY)
    facts = ", ".join(f"{fact.joined} AS {name}" for name, fact in FACTS.items())
    joins = (
        f"LEFT JOIN temp.evidence AS {row} INDEXED BY one_{row}"
        f" ON {row}.side = {side} AND {_same(row, key)}"
        for side, row in ROW.items()
        if row != key
    )
    seen = f"NOT EXISTS (SELECT 1 FROM temp.unusual AS u WHERE {_same('u', key)})"
    return f"SELECT {names}, {facts} FROM {keys} {' '.join(joins)} WHERE {seen}"


SENT: Final = _joined("temp.evidence AS o INDEXED BY one_o", "o") + f" AND o.side = {OUTBOX}"
RECEIVED: Final = _joined(
    f"({_keys(INBOX)} UNION {_keys(MARK)} EXCEPT {_keys(OUTBOX)} ORDER BY {NAMES}) AS k", "k"
)
"""Messages without a row of their sender; the keys come from a merge of indexes."""
ANY_UNSENT: Final = f"""
SELECT (SELECT count(*) FROM ({_keys(INBOX)})) + (SELECT count(*) FROM ({_keys(MARK)}))
     > (SELECT count(in_seq) + count(mark_seq) FROM messages)
"""
"""Whether ``SENT`` has left rows of recipients for ``RECEIVED``; counting them is cheap."""


def unusual(con: apsw.Connection) -> int | None:
    """
    Prepare a workspace for ``SENT`` and ``RECEIVED``, which leave ``UNUSUAL`` messages out.

    Return how many rows made messages unusual; None if all messages must be grouped.
    """
    [counts] = con.execute(COUNT).fetchall()
    others, rows = (cast("int", count) for count in counts)
    if SHARE * others >= rows:
        return None
    con.execute(CREATE)
    if others:
        con.execute(FIND)
    try:
        for side, row in ROW.items():
            con.execute(ONE_EACH.format(row=row, side=side))
    except apsw.ConstraintError:  # a second copy of a file
        return None
    return others


def any_unsent(con: apsw.Connection) -> bool:
    """Return whether a recipient has a row of a message that is not among those of ``SENT``."""
    [(found,)] = con.execute(ANY_UNSENT).fetchall()
    return bool(found)
