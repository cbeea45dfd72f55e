"""Spark over a message store: `session` starts Spark with `format("penstock")` registered.

    from penstock import pipeline

    spark = pipeline.session()
    orders = spark.read.format("penstock").option("subscribe", "orders").load("data")

Public modules: `stages` chains user functions over topics, `jobs` holds the batch jobs,
`continuous` runs jobs and stages until it is stopped. `package` writes an archive for executors,
`archive_settings` returns the Spark settings that use it. The other modules are internal. pyspark
is imported when a session starts, not before.
"""

from penstock.pipeline.spark_session.masters import is_connect
from penstock.pipeline.spark_session.packaging import archive_settings, package
from penstock.pipeline.spark_session.sessions import register, session

__all__ = ["archive_settings", "is_connect", "package", "register", "session"]
