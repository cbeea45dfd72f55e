"""Spark's own Kafka source and sink: python spark_round.py ADDRESS JARS; prints what it read."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    address, jars = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    rows = session.range(1_000).selectExpr(
        "cast(id as string) as key", "concat('value ', id) as value"
    )
    kafka = {"kafka.bootstrap.servers": address, "topic": "spark"}
    rows.write.format("kafka").options(**kafka).save()
    source = {"kafka.bootstrap.servers": address, "subscribe": "spark"}
    read = session.read.format("kafka").options(**source, startingOffsets="earliest").load()
    found = read.selectExpr("cast(key as string) as key", "cast(value as string) as value")
    both = found.join(rows, ["key", "value"])
    sys.stdout.write(f"{found.count()} {both.count()}\n")
    session.stop()


if __name__ == "__main__":
    main()
