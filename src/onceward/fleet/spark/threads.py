"""Collect conversations across agents, and how long each agent waited for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.window import Window

KEY: Final = ("sender", "recipient", "id")
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "outbox": (*KEY, "session", "type", "created_at", "frame"),
    "inbox": (*KEY, "session", "type", "received_at", "ended_at", "state", "frame"),
    "dead_letters": (*KEY, "session", "type", "origin", "created_at", "frame"),
}
"""The columns of each table that are read."""
FIRST: Final = "get_json_object(frame, '$.correlationid')"
CAUSE: Final = "get_json_object(frame, '$.causationid')"


def messages(tables: Mapping[str, DataFrame]) -> DataFrame:
    """
    Return one row per message, from both of its files, with its body and what it belongs to.

    Columns: sender, recipient, id, session, type, thread (id of the
    conversation's first message), cause (id of the message whose handling sent
    it), sent_at, received_at, processed_at, frame.
    """
    said = tables["outbox"].selectExpr(*KEY, "session", "type", "created_at as sent_at", "frame")
    buried = tables["dead_letters"].selectExpr(
        *KEY, "session", "type", "if(origin = 'outbox', created_at, null) as sent_at", "frame"
    )
    heard = tables["inbox"].selectExpr(
        *KEY,
        "session",
        "type",
        "received_at",
        "if(state = 'processed', ended_at, null) as processed_at",
        "frame",
    )
    rows = said.unionByName(buried).unionByName(heard, allowMissingColumns=True)
    moments = ("sent_at", "received_at", "processed_at")
    return rows.groupBy(*KEY).agg(
        *(expr(f"any_value({name}) as {name}") for name in ("session", "type")),
        *(expr(f"min({name}) as {name}") for name in moments),
        expr("any_value(frame) as frame"),
    ).selectExpr(
        *KEY,
        "session",
        "type",
        f"coalesce({FIRST}, {CAUSE}, id) as thread",
        f"{CAUSE} as cause",
        *moments,
        "frame",
    )  # fmt: skip


def threads(found: DataFrame) -> DataFrame:
    """
    Return the messages of every conversation in order, with the waiting agent.

    From ``messages``: ``place`` counts within the thread from one, ``waiting``
    names the agent that waited (the sender) and ``waited_ms`` how long it took until the
    recipient had dealt with it; NULL while it has not.
    """
    order = Window.partitionBy("thread").orderBy(expr("coalesce(sent_at, received_at)"), "id")
    placed = found.drop("frame").withColumn("place", expr("row_number()").over(order))
    return placed.withColumns(
        {
            "waiting": expr("sender"),
            "waited_ms": expr(
                "unix_millis(processed_at) - unix_millis(coalesce(sent_at, received_at))"
            ),
        }
    )


def conversations(found: DataFrame) -> DataFrame:
    """Return per conversation: messages, agents, begin, end, and open messages."""
    return found.groupBy("thread").agg(
        expr("count(*) as messages"),
        expr(
            "array_sort(array_distinct(flatten(collect_list(array(sender, recipient))))) as agents"
        ),
        expr("min(sent_at) as began_at"),
        expr("max(coalesce(processed_at, received_at, sent_at)) as last_at"),
        expr("count_if(processed_at is null) as open"),
    )
