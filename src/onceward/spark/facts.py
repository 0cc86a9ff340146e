"""Group what all files say of each message, once by message and without a join."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from onceward.fleet.columns import WITNESS
from onceward.fleet.opening import FILE_STATES
from onceward.fleet.states import IN_STATES, OUT_STATES, OUTCOMES, ladder

KEY: Final = ("sender", "recipient", "id")
NEEDS: Final = (
    "_seq",
    "box",
    *KEY,
    "lane",
    "priority",
    "state",
    "origin",
    "consumer",
    "reason",
    "at",
    "created_at",
    "sent_at",
    "ended_at",
)
"""The columns of the ledger that are read, and no others."""
SIDE: Final = """
case box when 'outbox' then 1 when 'inbox' then 3 when 'processed' then 4 when 'quarantine' then 0
         else if(origin = 'outbox', 2, 5) end
"""
STATE: Final = f"""
case side when 1 then {ladder("state", OUT_STATES)} when 3 then {ladder("state", IN_STATES)}
          when 4 then {ladder("state", OUTCOMES)}
          when 0 then {ladder("state", FILE_STATES)} else if(reason = 'expired', 2, 1) end
"""
AGGREGATES: Final = {
    "file": "max(if(side = 0, state, 0))",
    "out_state": "max(if(side = 1, state, 0))",
    "out_seq": "max(if(side = 1, seq, null))",
    "out_dead": "max(if(side = 2, state, 0))",
    "created_at": "min(if(side <= 2, at, null))",
    "sent_at": "max(if(side = 1, sent, null))",
    "ended_at": "max(if(side = 1, ended, null))",
    "lane": "max(lane)",
    "in_state": "max(if(side = 3, state, 0))",
    "in_seq": "min(if(side = 3, seq, null))",
    "in_dead": "max(if(side = 5, 1, 0))",
    "received_at": "min(if(side = 3 or side = 5, at, null))",
    "received_last_at": "max(if(side = 3 or side = 5, at, null))",
    "mark": "max(if(side = 4, state, 0))",
    "mark_seq": "min(if(side = 4, seq, null))",
    "marked_at": "min(if(side = 4, at, null))",
    "effect_at": "min(if(side = 4 and state = 4, at, null))",
    "effect_last_at": "max(if(side = 4 and state = 4, at, null))",
    "effect_seq": "min(if(side = 4 and state = 4, seq, null))",
    "effect_last_seq": "max(if(side = 4 and state = 4, seq, null))",
}
"""Numbers only: they are grouped by hashing, texts by sorting. Moments are milliseconds."""


def gather(said: DataFrame) -> DataFrame:
    """
    Return one row per message with what each side says of it, from the columns of ``witness``.

    A file that was read, or could not be, is a row without a sender: its
    agent, or what went wrong, stands as recipient. A copy of a file, such as a
    backup in the same folder, says the same twice and adds nothing: an
    acceptance is told from another by its moment, an effect by moment and
    sequence of its mark.
    """
    rows = said.withColumn(
        "lane", expr("if(lane is null, null, xxhash64(sender, recipient, lane))")
    )
    # Not grouped by file first: a file has two or three rows of a message, and grouping these
    # made rows wider than it made them fewer.
    return (
        rows.repartition(*KEY)
        .groupBy(*KEY)
        .agg(*(expr(sql).alias(name) for name, sql in AGGREGATES.items()))
    )


def evidence(ledger: DataFrame) -> DataFrame:
    """Return a ledger with the columns of ``NEEDS`` in the form of the table ``witness``."""
    said = ledger.where("coalesce(consumer, '') = ''").selectExpr("*", f"{SIDE} as side")
    return said.selectExpr(
        "sender",
        "if(side = 0, reason, recipient) as recipient",
        "id",
        "cast(side as bigint) as side",
        f"cast({STATE} as bigint) as state",
        "_seq as seq",
        "priority || '/' || lane as lane",
        "unix_millis(if(side = 2 or side = 5, created_at, at)) as at",
        "unix_millis(sent_at) as sent", "if(side = 1, unix_millis(ended_at), null) as ended",
    )  # fmt: skip


def present(agents: DataFrame) -> DataFrame:
    """Return a row (``_db``, ``_agent``) for each file that was read, in ``witness`` form."""
    known = {"recipient": "_agent", "id": "_db", "side": "0", "state": "1"}
    return agents.selectExpr(
        *(f"cast({known.get(name, 'null')} as {kind}) as {name}" for name, kind in WITNESS.items())
    )


LEDGERS: Final = {
    "outbox": (
        "lane",
        "priority",
        "state",
        "created_at as at",
        "created_at",
        "sent_at",
        "ended_at",
    ),
    "inbox": ("lane", "priority", "state", "received_at as at"),
    "processed": ("outcome as state", "consumer", "processed_at as at"),
    "dead_letters": ("origin", "reason", "dead_at as at", "created_at"),
}


def ledger(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return one ledger of the four tables, live or archived, in the form of table ``ledger``."""
    views = (
        tables[box].selectExpr("seq as _seq", f"'{box}' as box", *KEY, *columns)
        for box, columns in LEDGERS.items()
    )
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), views)
