"""Imports topics of Kafka into a store, each record once, from where the last run ended.

    plan      `plan.json` in the sink's directory has the ranges of run N     then they are fixed
    read      tasks read them from the brokers and stage them                 not visible yet
    publish   the sink publishes the staged files as batch N                  repeats are recognised

The sink says which batch was the last one that is done. A plan with that number is the bookmark:
the next run begins where its ranges end. A plan with the next number was interrupted, and is done
again unchanged. Rows and bookmark thus change together, without duplicates or losses. Records keep
their partition, key, timestamp and headers; their offsets are new.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import BadRequestError, RetryableError, SetupError, StoreError
from penstock.pipeline.jobs.imports.kafka_reading import (
    SILENCE_MAX_S,
    SPARK_SCHEMA,
    KafkaRange,
    KafkaTask,
    open_consumer,
    topic_ids,
)
from penstock.pipeline.jobs.imports.target import ImportPlace
from penstock.pipeline.jobs.spark_work import Progress, spark_work
from penstock.pipeline.read.positions import recreated_text
from penstock.pipeline.write.commit_protocol import Journal
from penstock.platform.local_disk import LocalDisk
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

_OFFSETS_PER_TASK: Final = 250_000
_PLAN: Final = "plan.json"


class _Plan(Struct, frozen=True):
    batch_id: int
    ranges: tuple[KafkaRange, ...]
    partitions: int
    topic_id: str = ""
    """Of Kafka's topic; empty where the broker does not tell."""


_plan_decoder: Final = msgspec.json.Decoder(_Plan)


class PartitionImport(Struct, frozen=True):
    """What a run took of a partition: Kafka's offsets [start, end)."""

    topic: str
    partition: int
    start: int
    end: int
    lost: int
    """Offsets before `start` that Kafka had removed before they were imported."""


class KafkaImportResult(Struct, frozen=True):
    path: str
    servers: str
    rows: int
    """Records that this call added."""
    offsets: int
    """Offsets of Kafka in the ranges. More than rows: compacted away, or of transactions."""
    resumed: bool
    """A run that was interrupted was finished first."""
    partitions: list[PartitionImport]
    seconds: float


def import_kafka(
    spark: SparkSession,
    path: str | ImportPlace,
    servers: str,
    topics: Mapping[str, str] | Sequence[str],
    *,
    settings: Mapping[str, str] | None = None,
    strict: bool = True,
    progress: Progress | None = None,
) -> KafkaImportResult:
    """Append what is new in these topics of Kafka to topics of a store directory, or of a running
    node: `path` is its `host:port`, or an `ImportPlace`, which also says what remembers the rest.

    `topics` may say what each is called here. Topics that do not exist are created with as many
    partitions as Kafka's. `settings` are those of librdkafka (`security.protocol`, …); records of
    open and aborted transactions are left out unless they say otherwise. With `strict` off, what
    Kafka removed before it was imported is passed over and counted.

    Safe to kill and to repeat. The store is opened for the moment of publishing: `LockedError`
    when another process keeps it open for too long, and nothing of that run was written.
    """
    began = time.monotonic()
    names = dict(topics) if isinstance(topics, Mapping) else {name: name for name in topics}
    if not names:
        raise BadRequestError("give at least one Kafka topic")
    place = ImportPlace(path) if isinstance(path, str) else path
    consumer = open_consumer(servers, settings or {})
    try:
        cluster, counts = _described(consumer, servers, names)
        ids = topic_ids(servers, settings or {}, sorted(counts))
        runs = [
            _TopicImport(place, cluster, topic, names[topic], count, topic_id=ids.get(topic, ""))
            for topic, count in counts.items()
        ]
        imported: list[PartitionImport] = []
        rows = 0
        resumed = False
        for run in runs:
            while True:
                again = run.interrupted()
                plan, lost = run.plan(consumer, strict=strict)
                if not plan.ranges:
                    break
                task = KafkaTask(servers, settings or {}, plan.ranges)
                with spark_work(spark, f"import {run.topic}", progress):
                    rows += run.write(spark, task, plan)
                imported += _merged(plan.ranges, lost)
                resumed |= again
                if not again:
                    break
    finally:
        consumer.close()
    offsets = sum(partition.end - partition.start for partition in imported)
    seconds = time.monotonic() - began
    return KafkaImportResult(place.path, servers, rows, offsets, resumed, imported, seconds)


def _described(
    consumer: Consumer, servers: str, names: Mapping[str, str]
) -> tuple[str, dict[str, int]]:
    """Return the cluster's name, and how many partitions each topic has."""
    from confluent_kafka import KafkaException

    try:
        metadata = consumer.list_topics(timeout=SILENCE_MAX_S)
    except KafkaException as error:
        raise RetryableError(f"{servers} does not answer: {error.args[0].str()}") from error
    missing = [name for name in names if name not in metadata.topics or metadata.topics[name].error]
    if missing:
        raise BadRequestError(f"Kafka at {servers} has no topic {missing[0]!r}")
    return metadata.cluster_id or servers, {
        name: len(metadata.topics[name].partitions) for name in names
    }


class _TopicImport:
    """The import of one topic; its sink remembers how far it came."""

    def __init__(
        self,
        place: ImportPlace,
        cluster: str,
        topic: str,
        target: str,
        partitions: int,
        *,
        topic_id: str = "",
    ) -> None:
        known = msgspec.json.encode([cluster, topic, target, *place.identity])
        digest = blake2b(known, digest_size=16).hexdigest()
        self.topic: Final = topic
        self._place: Final = place
        self._target: Final = target
        self._partitions: Final = partitions
        self._topic_id: Final = topic_id
        self._name: Final = f"kafka-{digest}"
        self._directory: Final = place.journal(self._name)
        self._journal: Final = Journal(self._directory)

    def interrupted(self) -> bool:
        before = self._saved()
        return before is not None and before.batch_id > self._journal.committed()

    def plan(self, consumer: Consumer, *, strict: bool) -> tuple[_Plan, dict[int, int]]:
        """Return what this run reads, as it is remembered on disk, and what was lost."""
        before = self._saved()
        if before is not None and before.batch_id > self._journal.committed():
            return before, {}
        before = self._checked(before, strict=strict)
        done: dict[int, int] = {}
        for kafka_range in () if before is None else before.ranges:
            done[kafka_range.partition] = max(done.get(kafka_range.partition, 0), kafka_range.end)
        ranges: list[KafkaRange] = []
        lost: dict[int, int] = {}
        for partition in range(self._partitions):
            start, end, gone = self._range(consumer, partition, done.get(partition), strict=strict)
            lost[partition] = gone
            # A partition without news keeps its place: the plan is the bookmark.
            ranges += _cut(KafkaRange(self.topic, partition, start, end))
        number = self._journal.committed() + 1
        plan = _Plan(number, tuple(ranges), self._partitions, self._topic_id)
        if all(shard_range.start == shard_range.end for shard_range in ranges):
            return replace(plan, ranges=()), lost
        self._directory.mkdir(parents=True, exist_ok=True)
        LocalDisk().replace(str(self._directory / _PLAN), msgspec.json.encode(plan))
        return plan, lost

    def _checked(self, before: _Plan | None, *, strict: bool) -> _Plan | None:
        """Return the bookmark, or None where Kafka's topic was created again since."""
        if before is None or not before.topic_id or not self._topic_id:
            return before
        if before.topic_id == self._topic_id:
            return before
        text = f"Kafka: {recreated_text(self.topic, before.topic_id, self._topic_id)}"
        if strict:
            raise BadRequestError(
                f"{text}; import the present topic from its earliest record by strict=False "
                "(--no-strict), or under another name"
            )
        _log.warning("topic_recreated", topic=self.topic, detail=text)
        return None

    def _range(
        self, consumer: Consumer, partition: int, done: int | None, *, strict: bool
    ) -> tuple[int, int, int]:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(self.topic, partition), timeout=SILENCE_MAX_S
            )
        except KafkaException as error:
            raise RetryableError(
                f"Kafka did not return the end of {self.topic!r}, partition {partition}: "
                f"{error.args[0].str()}"
            ) from error
        start = low if done is None else done
        if start > high:
            raise BadRequestError(
                f"Kafka's {self.topic!r}, partition {partition}, ends at {high}, but was imported "
                f"up to {start}: it was created again; import it under another name"
            )
        lost = max(0, low - start)
        if lost and strict:
            raise BadRequestError(
                f"Kafka removed {lost} offsets of {self.topic!r}, partition {partition}, from "
                f"{start} on before they were imported; go on by strict=False (--no-strict)"
            )
        return max(start, low), high, lost

    def write(self, spark: SparkSession, task: KafkaTask, plan: _Plan) -> int:
        """Read and publish a plan; return how many records the store gained."""
        count = len(plan.ranges)
        before = self._place.records(self._target)
        rows = spark.range(0, count, 1, count).mapInArrow(task, SPARK_SCHEMA)
        writer = rows.write.format("penstock").mode("append")
        writer = writer.option("topic", self._target).option("createTopics", "true")
        writer = writer.option("partitions", str(plan.partitions))
        writer = writer.option("sinkId", self._name).option("batchId", str(plan.batch_id))
        writer.options(**self._place.options()).save()
        added = self._place.records(self._target) - before
        span = sum(shard_range.end - shard_range.start for shard_range in plan.ranges)
        if not 0 <= added <= span:
            raise StoreError(
                f"{self.topic!r} was to give at most {span} records, but the shards of "
                f"{self._target!r} grew by {added}: another producer may write to it"
            )
        return added

    def _saved(self) -> _Plan | None:
        path = self._directory / _PLAN
        try:
            return _plan_decoder.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise SetupError(f"{path} is not a valid import journal file: {error}") from error


def _cut(whole: KafkaRange) -> list[KafkaRange]:
    """Cut a range for several tasks; they stay in the order of their offsets."""
    cuts = [*range(whole.start, whole.end, _OFFSETS_PER_TASK), whole.end]
    if len(cuts) == 1:
        cuts *= 2
    return [KafkaRange(whole.topic, whole.partition, start, end) for start, end in pairwise(cuts)]


def _merged(ranges: Sequence[KafkaRange], lost: Mapping[int, int]) -> list[PartitionImport]:
    merged: dict[int, PartitionImport] = {}
    for shard_range in ranges:
        before = merged.get(shard_range.partition)
        start = shard_range.start if before is None else before.start
        gone = lost.get(shard_range.partition, 0)
        merged[shard_range.partition] = PartitionImport(
            shard_range.topic, shard_range.partition, start, shard_range.end, gone
        )
    return [merged[number] for number in sorted(merged)]
