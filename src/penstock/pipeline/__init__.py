"""Spark over a message store: `session` starts one that knows `format("penstock")`.

    from penstock import pipeline

    spark = pipeline.session()
    orders = spark.read.format("penstock").option("subscribe", "orders").load("data")

`stages` chains functions of yours over topics, `jobs` does what stores need, `running` goes on
doing it. Nothing here imports pyspark until it is needed.
"""

from penstock.pipeline.session.sessions import register, session

__all__ = ["register", "session"]
