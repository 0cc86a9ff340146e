"""
Send a frame, then stream what agents sent into the outboxes of others, until nothing is new.

    python relay.py FROM TO STATE

A program of its own. It may be killed at any moment and started again: all of it is sent once.
"""

from __future__ import annotations

import os
import sys

from onceward.fleet import spark as door

os.environ["RELAY_GROUP"] = str(os.getpgrp())


def main(source: str, target: str, state: str) -> None:
    """Let alice and carol of TO send a hundred numbers, and forward each message of FROM."""
    session = door.session(
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
        }
    )
    numbers = session.range(100, 200).selectExpr(
        "IF(id % 2 = 0, 'alice', 'carol') AS agent", "'bob' AS recipient", "CAST(id AS STRING) body"
    )
    numbers.write.format("onceward").mode("append").options(query="nightly", holdUnknown=True).save(
        target
    )
    came = (
        session.readStream.format("onceward")
        .options(table="outbox", columns="id,body", manifests=f"{state}/positions")
        .load(source)
    )
    rows = came.selectExpr(
        "explode(array('alice', 'carol')) AS agent", "'bob' AS recipient", "body", "'note' AS type"
    ).repartition(3)
    writer = rows.writeStream.format("onceward").options(
        path=target, holdUnknown=True, busyTimeout=60
    )
    query = (
        writer.option("checkpointLocation", f"{state}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    door.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
