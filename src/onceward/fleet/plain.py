"""
Join the evidence of plain messages instead of grouping it, for half of the work.

A plain message has at most one row of each side of ``ROW``, and no other row. Nearly all messages
are plain, unless copies of files or a log are read beside the files.
"""

from __future__ import annotations

from typing import Final, cast

import apsw

from onceward.fleet.facts import FACTS, ROW
from onceward.fleet.sides import OTHERS, TABLES
from onceward.fleet.states import INBOX, MARK, OUTBOX
from onceward.fleet.verdict_sql import KEY

COUNT: Final = "SELECT count(*) FROM temp.{table}"
SHARE: Final = 10
"""If one row in so many is another, or more, grouping all of them is less work."""
NAMES: Final = ", ".join(KEY)
CREATE: Final = f"CREATE TEMP TABLE unusual ({NAMES}, PRIMARY KEY ({NAMES})) WITHOUT ROWID"
FIND: Final = f"INSERT OR IGNORE INTO temp.unusual SELECT {NAMES} FROM temp.{OTHERS}"
UNUSUAL: Final = f"({NAMES}) IN temp.unusual"


def _table(side: int) -> str:
    return f"temp.{TABLES[str(side)]}"


def _same(row: str, key: str) -> str:
    return " AND ".join(f"{row}.{name} = {key}.{name}" for name in KEY)


def _keys(side: int) -> str:
    return f"SELECT {NAMES} FROM {_table(side)}"


def _joined(keys: str, key: str, *, apart: bool) -> str:
    """
    Return the facts of each message of *keys*, of which *key* is a row, as if it was plain.

    Unusual ones are left out if they are judged *apart*.
    """
    names = ", ".join(f"{key}.{name} AS {name}" for name in KEY)
    facts = ", ".join(f"{fact.joined} AS {name}" for name, fact in FACTS.items())
    joins = (
        f"LEFT JOIN {_table(side)} AS {row} ON {_same(row, key)}"
        for side, row in ROW.items()
        if row != key
    )
    seen = f"NOT EXISTS (SELECT 1 FROM temp.unusual AS u WHERE {_same('u', key)})"
    which = f" WHERE {seen}" if apart else ""
    return f"SELECT {names}, {facts} FROM {keys} {' '.join(joins)}{which}"


def sent(*, apart: bool) -> str:
    """Return the facts of messages with a row of their sender."""
    return _joined(f"{_table(OUTBOX)} AS o", "o", apart=apart)


def received(*, apart: bool) -> str:
    """Return the facts of messages without one; the tables are merged in their order."""
    keys = f"{_keys(INBOX)} UNION {_keys(MARK)} EXCEPT {_keys(OUTBOX)} ORDER BY {NAMES}"
    return _joined(f"({keys}) AS k", "k", apart=apart)


ANY_UNSENT: Final = f"""
SELECT (SELECT count(*) FROM {_table(INBOX)}) + (SELECT count(*) FROM {_table(MARK)})
     > (SELECT count(in_seq) + count(mark_seq) FROM messages)
"""
"""Whether ``sent`` has left rows of recipients for ``received``; counting them is cheap."""


def unusual(con: apsw.Connection) -> int | None:
    """
    Prepare a workspace for ``sent`` and ``received``, and find the ``UNUSUAL`` messages.

    Return how many rows made messages unusual; None if all messages must be grouped.
    """
    others = _count(con, OTHERS)
    if SHARE * others >= others + sum(_count(con, table) for table in TABLES.values()):
        return None
    con.execute(CREATE)
    if others:
        con.execute(FIND)
    return others


def any_unsent(con: apsw.Connection) -> bool:
    """Return whether a recipient has a row of a message that is not among those of ``sent``."""
    [(found,)] = con.execute(ANY_UNSENT).fetchall()
    return bool(found)


def _count(con: apsw.Connection, table: str) -> int:
    [(count,)] = con.execute(COUNT.format(table=table)).fetchall()
    return cast("int", count)
