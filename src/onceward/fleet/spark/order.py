"""Find lanes whose messages took effect out of order, and messages that were overtaken."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, expr
from pyspark.sql.window import Window

from onceward.fleet.summary import GAPS

MARKS: Final = {
    "overtook": "mark_seq < handled_before",
    "arrived_late": "in_seq is not null and out_seq < sent_before",
    "gap": f"verdict in {GAPS} and out_seq < handled_last",
}
"""
Findings about a message within its lane: it was handled before one that was accepted earlier;
it arrived after one that was sent later, as delayed and replayed messages do; it waits or is lost
while later ones of its lane took effect.
"""


def lanes(frames: DataFrame) -> DataFrame:
    """
    Return the lanes that are out of order, with counts by kind and one example message.

    The lane is a number here (``lane``): the example leads to its name.
    """
    narrow = frames.where("lane is not null").select(
        "lane", "verdict", "out_seq", "in_seq", "mark_seq"
    )
    whole = Window.partitionBy("lane")
    before = whole.orderBy("in_seq").rowsBetween(Window.unboundedPreceding, -1)
    placed = narrow.withColumns(
        {
            "handled_before": expr("max(if(in_seq is null, null, mark_seq))").over(before),
            "sent_before": expr("max(if(in_seq is null, null, out_seq))").over(before),
            "handled_last": expr("max(if(mark_seq is null, null, out_seq))").over(whole),
        }
    )
    counts = {name: expr(f"count_if({sql})").alias(name) for name, sql in MARKS.items()}
    bad = (
        placed.groupBy("lane")
        .agg(expr("count(*)").alias("messages"), *counts.values())
        .where(" or ".join(f"{name} > 0" for name in MARKS))
    )
    named = frames.join(broadcast(bad.select("lane")), "lane", "left_semi")
    ends = named.groupBy("lane").agg(
        expr("min(sender) as sender"),
        expr("min(recipient) as recipient"),
        expr("max(id) as example"),
    )
    return bad.join(ends, "lane")
