"""Kafka's own connector of Spark, for the comparison: its jars, and the same rows in a topic."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The connector asks for the token provider of its own version, which is not to be had everywhere;
# an older one has the same classes, and they are used only where tokens are.
JARS: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
_WAIT_S: Final = 300


def connector_jars() -> str:
    """Have Maven bring the jars; return where they are, as Spark wants it."""
    found = []
    for jar in JARS:
        group, name, version = jar.split(":")
        path = Path.home() / ".m2" / "repository" / group.replace(".", "/") / name / version
        path /= f"{name}-{version}.jar"
        if not path.exists():
            command = ["mvn", "-q", "dependency:get", "-Dtransitive=false", f"-Dartifact={jar}"]
            subprocess.run(command, check=True, timeout=_WAIT_S)
        found.append(str(path))
    return ",".join(found)


class KafkaTopic:
    """A topic of a running broker; a new one, unless one is named."""

    def __init__(self, spark: SparkSession, servers: str, topic: str = "") -> None:
        self._spark: Final = spark
        self._servers: Final = servers
        self.name: Final = topic or f"bench-{time.time_ns()}"

    def exists(self) -> bool:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self._servers})
        return self.name in admin.list_topics(timeout=_WAIT_S).topics

    def fill(self, rows: DataFrame, partitions: int) -> None:
        """Copy rows there, shard by shard, by the connector itself."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._servers})
        made = admin.create_topics([NewTopic(self.name, partitions, 1)])
        made[self.name].result(_WAIT_S)
        writer = rows.selectExpr("key", "value", "timestamp", "partition").write.format("kafka")
        writer.option("kafka.bootstrap.servers", self._servers).option("topic", self.name).save()

    def load(self) -> DataFrame:
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", self._servers)
        return reader.option("subscribe", self.name).load()
