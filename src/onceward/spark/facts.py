"""What all files together say of each message: the ledger, grouped once by message, without a join."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

KEY: Final = ("sender", "recipient", "id")
OUT_STATES: Final = ("pending", "sending", "sent", "cancelled", "failed", "acked")
IN_STATES: Final = ("pending", "processing", "expired", "dropped", "processed")
OUTCOMES: Final = ("expired", "dropped", "dead", "processed")
"""From early to late, ranked from one; zero is none. Of two copies of a file the one that has come further is believed."""

NEEDS: Final = ("_seq", "box", *KEY, "lane", "priority", "state", "origin", "consumer", "reason", "at", "created_at", "sent_at", "ended_at")
"""The columns of the ledger that are read, and no others."""
SIDE: Final = """
case box when 'outbox' then 1 when 'inbox' then 3 when 'processed' then 4 when 'quarantine' then 0 else if(origin = 'outbox', 2, 5) end
"""
"""Whose word it is: 1 the outbox, 2 the sender's dead letters, 3 the inbox, 4 a mark, 5 the recipient's dead letters."""
AGGREGATES: Final = {
    "out_state": "max(if(side = 1, state, 0))",
    "out_seq": "max(if(side = 1, seq, null))",
    "out_dead": "max(if(side = 2, state, 0))",
    "created_at": "min(if(side <= 2, at, null))",
    "sent_at": "max(if(side = 1, then, null))",
    "out_ended_at": "max(if(side = 1, end, null))",
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
"""Numbers only: they are grouped by hashing, where a text would have to be sorted. Moments are milliseconds."""


def gather(ledger: DataFrame) -> DataFrame:
    """
    Return one row per message with what each side says of it; a file that could not be read is a row without a sender.

    A copy of a file, such as a backup in the same folder, says the same twice
    and adds nothing: an acceptance is told from another by its moment, an
    effect by moment and sequence of its mark.
    """
    said = ledger.where("coalesce(consumer, '') = ''").selectExpr("*", f"{SIDE} as side")
    rows = said.selectExpr(
        *KEY, "side", f"{STATE} as state", "_seq as seq", "if(lane is null, null, xxhash64(sender, recipient, lane, priority)) as lane",
        "unix_millis(if(side = 2 or side = 5, created_at, at)) as at", "unix_millis(sent_at) as then", "unix_millis(ended_at) as end",
    )  # fmt: skip
    # Sent on as they are: a file says two or three things of a message, and grouping these first made rows wider than it made them fewer.
    return rows.repartition(*KEY).groupBy(*KEY).agg(*(expr(sql).alias(name) for name, sql in AGGREGATES.items()))


def ladder(column: str, names: tuple[str, ...]) -> str:
    """Return the expression that ranks a state by its place in *names*, from one; zero for one that is not known here."""
    return f"case {column} " + " ".join(f"when '{name}' then {place}" for place, name in enumerate(names, 1)) + " else 0 end"


def spelt(column: str, names: tuple[str, ...], none: str) -> str:
    """Return the expression that turns a rank back into its state."""
    return f"case {column} " + " ".join(f"when {place} then '{name}'" for place, name in enumerate(names, 1)) + f" else '{none}' end"


STATE: Final = f"""
case side when 1 then {ladder("state", OUT_STATES)} when 3 then {ladder("state", IN_STATES)}
          when 4 then {ladder("state", OUTCOMES)} else if(reason = 'expired', 2, 1) end
"""
LEDGERS: Final = {
    "outbox": ("lane", "priority", "state", "created_at as at", "created_at", "sent_at", "ended_at"),
    "inbox": ("lane", "priority", "state", "received_at as at"),
    "processed": ("outcome as state", "consumer", "processed_at as at"),
    "dead_letters": ("origin", "reason", "dead_at as at", "created_at"),
}


def ledger(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return one ledger of the four tables, live or archived, as the source's own table ``ledger`` is of live files."""
    views = (tables[box].selectExpr("seq as _seq", f"'{box}' as box", *KEY, *columns) for box, columns in LEDGERS.items())
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), views)
