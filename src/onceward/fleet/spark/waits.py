"""Measure how long messages waited for a peer, by hour; files keep no history of breakers."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.window import Window

OVERLAP: Final = (
    "unix_millis(least(until, hour + interval 1 hour)) - unix_millis(greatest(since, hour))"
)


def waits(outbox: DataFrame, peers: DataFrame, now: int) -> DataFrame:
    """
    Return per agent, peer and hour the seconds that messages waited and the peer was away.

    ``waited_s``: at least one message was written and not pushed yet: an open
    breaker, a backoff, a queue, a delay that was asked for. Whatever time a
    breaker was open while messages waited for its peer is in it. ``unreached_s``:
    since the peer answered for the last time, if its breaker is not closed at
    present, or its last push failed. *now* is the moment of the reading, in
    milliseconds.
    """
    at = f"timestamp_millis({now})"
    waiting = outbox.selectExpr(
        "_agent as agent",
        "recipient as peer",
        "'waited_s' as what",
        "created_at as since",
        f"coalesce(sent_at, ended_at, {at}) as until",
    )
    silent = peers.where(
        "(breaker <> 'closed' or failures > 0) and seen_at is not null"
    ).selectExpr(
        "_agent as agent",
        "name as peer",
        "'unreached_s' as what",
        "seen_at as since",
        f"{at} as until",
    )
    spans = _joined(waiting.unionByName(silent).where("since < until"))
    hourly = spans.selectExpr(
        "*",
        "explode(sequence(date_trunc('HOUR', since),"
        " date_trunc('HOUR', until - interval 1 millisecond), interval 1 hour)) as hour",
    )
    sums = (
        expr(f"sum(if(what = '{what}', {OVERLAP}, 0)) / 1000 as {what}")
        for what in ("waited_s", "unreached_s")
    )
    return hourly.groupBy("agent", "peer", "hour").agg(*sums)


def _joined(spans: DataFrame) -> DataFrame:
    """Return the spans of each agent and peer, overlaps merged: waiting time counts once."""
    keys = ("agent", "peer", "what")
    line = Window.partitionBy(*keys).orderBy("since", "until")
    marked = spans.withColumn(
        "reached", expr("max(until)").over(line.rowsBetween(Window.unboundedPreceding, -1))
    )
    numbered = marked.withColumn(
        "island", expr("count_if(reached is null or since > reached)").over(line)
    )
    return numbered.groupBy(*keys, "island").agg(
        expr("min(since) as since"), expr("max(until) as until")
    )
