"""Count messages per pair of agents by verdict, and their latencies to within one percent."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.window import Window

from onceward.fleet.summary import SHARES, WIDTH
from onceward.fleet.verdicts import NAMES, SETTLED

SPANS: Final = {
    "store": "unix_millis(received_at) - unix_millis(created_at)",
    "handle": "unix_millis(processed_at) - unix_millis(received_at)",
    "effect": "unix_millis(processed_at) - unix_millis(created_at)",
}
"""Send to stored, stored to processed, send to processed: milliseconds by both agents' clocks."""
BUCKET: Final = (
    f"case when span < 0 then -2 when span = 0 then -1 else ceil(ln(span) / ln({WIDTH}D)) end"
)
MIDDLE: Final = (
    "case when bucket = -2 then -1 when bucket = -1 then 0"
    f" else round(power({WIDTH}D, bucket - 0.5)) end"
)
"""Below 50 ms a bucket is one millisecond, so exact; -1: the receiver's clock was behind."""


def spans(frames: DataFrame) -> DataFrame:
    """Return the histogram ``sender, recipient, span, bucket, messages``; small for any fleet."""
    settled = frames.where("verdict in ('" + "', '".join(SETTLED) + "')")
    stacked = ", ".join(f"'{name}', {sql}" for name, sql in SPANS.items())
    long = settled.selectExpr(
        "sender", "recipient", f"stack({len(SPANS)}, {stacked}) as (kind, span)"
    ).where("span is not null")
    return (
        long.withColumn("bucket", expr(f"cast({BUCKET} as int)"))
        .groupBy("sender", "recipient", "kind", "bucket")
        .count()
    )


def percentiles(histogram: DataFrame, *by: str) -> DataFrame:
    """Return the percentiles of each span in milliseconds, in all or *by* columns."""
    keys = [*by, "kind"]
    added = histogram.groupBy(*keys, "bucket").agg(expr("sum(count) as count"))
    upto = Window.partitionBy(*keys).orderBy("bucket")
    ranked = added.withColumns(
        {
            "upto": expr("sum(count)").over(upto),
            "total": expr("sum(count)").over(Window.partitionBy(*keys)),
            "ms": expr(f"cast({MIDDLE} as bigint)"),
        }
    )
    values = (
        expr(f"min(if(upto >= ceil({share}D * total), ms, null)) as {name}")
        for name, share in SHARES.items()
    )
    return ranked.groupBy(*keys).agg(expr("max(total) as messages"), *values)


def pairs(frames: DataFrame) -> DataFrame:
    """Return one row per pair of agents with its messages by verdict."""
    counts = (expr(f"count_if(verdict = '{name}')").alias(name) for name in NAMES)
    return frames.groupBy("sender", "recipient").agg(expr("count(*) as messages"), *counts)


def hours(frames: DataFrame) -> DataFrame:
    """Return how many messages were sent, and how many took effect, in each hour."""
    moments = frames.selectExpr(
        "stack(2, 'sent', created_at, 'processed', processed_at) as (what, at)"
    ).where("at is not null")
    return moments.groupBy(expr("date_trunc('HOUR', at) as hour"), "what").count()
