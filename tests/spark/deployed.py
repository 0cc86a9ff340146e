"""A program of a user: reads, sends and streams by a session that its caller has configured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from onceward.fleet import spark as onceward


def main(folder: str) -> None:
    """Print as JSON what came out of one reading, one sending and one stream."""
    home = f"{folder}/home"
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    onceward.register(spark)
    found = {"read": onceward.read(spark, home, "outbox").count()}
    rows = [("alice", "bob", '{"x": 1}'), ("alice", "bob", '{"x": 2}'), ("bob", "alice", '"hello"')]
    frame = spark.createDataFrame(rows, "agent string, recipient string, body string")
    for _ in range(2):  # the second sending of the batch is none
        onceward.send(frame, home, query="deployed", batch=1)
    found["sent"] = onceward.read(spark, home, "outbox").count() - found["read"]
    follow = spark.readStream.format("onceward").option("table", "outbox")
    follow = follow.option("manifests", f"{folder}/positions")
    writing = follow.load(home).writeStream.format("parquet").option("path", f"{folder}/rows")
    writing = writing.option("checkpointLocation", f"{folder}/checkpoint")
    writing.trigger(availableNow=True).start().awaitTermination()
    found["followed"] = spark.read.parquet(f"{folder}/rows").count()
    Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
