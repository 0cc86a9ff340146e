"""
A program of its own that streams what agents sent into the outboxes of others, until nothing is new.

    python relay.py FROM TO STATE
"""

from __future__ import annotations

import sys

from onceward import spark as door


def main(source: str, target: str, state: str) -> None:
    """Run one query to its end: each message of FROM is forwarded by alice and by carol of TO."""
    session = door.session(**{"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"})
    came = session.readStream.format("onceward").options(table="outbox", columns="id,body", manifests=f"{state}/positions").load(source)
    rows = came.selectExpr("explode(array('alice', 'carol')) AS agent", "'bob' AS recipient", "body", "'note' AS type").repartition(3)
    writer = rows.writeStream.format("onceward").options(path=target, holdUnknown=True, busyTimeout=60)
    query = writer.option("checkpointLocation", f"{state}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    door.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
