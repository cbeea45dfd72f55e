"""Reads ranges of Kafka partitions in Spark's workers, by `confluent-kafka`.

A task gets one range of offsets of one partition, and reads it with a consumer of its own: no
group, nothing committed, no jars. Offsets that Kafka has no record for (compacted away, markers of
transactions, aborted records) are skipped: a range is complete at a record after it, or at the
end of the partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import Struct

from penstock.errors import RetryableError, SetupError
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_log = get_logger(__name__)

SILENCE_MAX_S: Final = 60.0
"""A broker that gives nothing for so long is given up."""
_CONSUMER_ONLY: Final = ("isolation.level", "auto.offset.reset")
ROWS_PER_BATCH: Final = 4096
_SIZE_PER_BATCH: Final = 8 << 20
_WAIT_S: Final = 1.0
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
_TIME: Final = pa.timestamp("us", tz="UTC")
SPARK_SCHEMA: Final = (
    "key binary, value binary, partition int, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


class KafkaRange(Struct, frozen=True):
    """The offsets [start, end) of a partition."""

    topic: str
    partition: int
    start: int
    end: int


def open_consumer(servers: str, settings: Mapping[str, str]) -> Consumer:
    """Return a consumer that belongs to no group."""
    try:
        from confluent_kafka import Consumer
    except ImportError as error:
        raise SetupError(
            "import from Kafka needs confluent-kafka: pip install 'penstock[kafka-import]'"
        ) from error
    from confluent_kafka import KafkaException

    try:
        return Consumer(
            {
                "isolation.level": "read_committed",
                # An unreachable broker is reported once, not twenty times a second.
                "log_level": 0,
                "reconnect.backoff.ms": 500,
                **settings,
                "bootstrap.servers": servers,
                "group.id": "penstock-import",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                # Better an error than records that are silently left out.
                "auto.offset.reset": "error",
            }
        )
    except KafkaException as error:
        raise SetupError(f"invalid Kafka setting: {error.args[0].str()}") from error


def topic_ids(servers: str, settings: Mapping[str, str], topics: Sequence[str]) -> dict[str, str]:
    """Return Kafka's ids of topics; those that the broker does not tell are missing."""
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient

    ours = {name: value for name, value in settings.items() if name not in _CONSUMER_ONLY}
    admin = AdminClient({"log_level": 0, **ours, "bootstrap.servers": servers})
    ids = {}
    asked = admin.describe_topics(TopicCollection([*topics]), request_timeout=SILENCE_MAX_S)
    for topic, answer in asked.items():
        try:
            known = answer.result(SILENCE_MAX_S).topic_id
        except KafkaException as error:
            _log.debug("topic_id_unknown", topic=topic, reason=str(error))
            continue
        if known is not None and any(
            (known.get_most_significant_bits(), known.get_least_significant_bits())
        ):
            ids[topic] = str(known)
    return ids


class KafkaTask:
    """Turns the numbers of ranges into their records; runs in Spark's workers."""

    def __init__(
        self, servers: str, settings: Mapping[str, str], ranges: Sequence[KafkaRange]
    ) -> None:
        self._servers: Final = servers
        self._settings: Final = dict(settings)
        self._ranges: Final = tuple(ranges)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                assert isinstance(number, int)
                yield from self._read(self._ranges[number])

    def _read(self, kafka_range: KafkaRange) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import TopicPartition

        if kafka_range.start == kafka_range.end:
            return
        consumer = open_consumer(self._servers, self._settings)
        try:
            consumer.assign(
                [TopicPartition(kafka_range.topic, kafka_range.partition, kafka_range.start)]
            )
            rows: list[Message] = []
            size = 0
            for message in _messages(consumer, kafka_range):
                rows.append(message)
                size += len(message.value() or b"")
                if len(rows) >= ROWS_PER_BATCH or size >= _SIZE_PER_BATCH:
                    yield _batch(rows)
                    rows, size = [], 0
            if rows:
                yield _batch(rows)
        finally:
            consumer.close()


def _messages(consumer: Consumer, kafka_range: KafkaRange) -> Iterator[Message]:
    last_message_s = time.monotonic()
    offset = kafka_range.start
    while offset < kafka_range.end:
        messages = consumer.consume(ROWS_PER_BATCH, timeout=_WAIT_S)
        for message in messages:
            if message.error() is not None:
                offset = _at_end(message, kafka_range, offset)
                continue
            offset = (message.offset() or 0) + 1
            if offset > kafka_range.end:
                return
            yield message
        if messages:
            last_message_s = time.monotonic()
        elif time.monotonic() - last_message_s > SILENCE_MAX_S:
            raise _unreadable(kafka_range, offset, f"no message for {SILENCE_MAX_S:.0f} s")


def _at_end(message: Message, kafka_range: KafkaRange, offset: int) -> int:
    """Return the offset to continue at after an event that is not a record, or raise."""
    from confluent_kafka import KafkaError

    error = message.error()
    assert error is not None
    if error.code() == KafkaError._PARTITION_EOF:
        end = message.offset() or 0
        if end < kafka_range.end:
            raise _unreadable(kafka_range, offset, f"the partition ends at {end} now")
        return end
    if error.fatal() or not error.retriable():
        raise _unreadable(kafka_range, offset, error.str())
    return offset


def _unreadable(kafka_range: KafkaRange, offset: int, reason: str) -> RetryableError:
    return RetryableError(
        f"Kafka's {kafka_range.topic!r}, partition {kafka_range.partition}, cannot be read from "
        f"offset {offset} to {kafka_range.end}: {reason}"
    )


def _batch(rows: Sequence[Message]) -> pa.RecordBatch:
    now_ms = time.time_ns() // 1_000_000
    times = [message.timestamp()[1] for message in rows]
    return pa.record_batch(
        {
            "key": pa.array([message.key() for message in rows], pa.binary()),
            "value": pa.array([message.value() for message in rows], pa.binary()),
            "partition": pa.array([message.partition() for message in rows], pa.int32()),
            "timestamp": pa.array(
                [(now_ms if time_ms < 0 else time_ms) * 1000 for time_ms in times], _TIME
            ),
            "headers": pa.array([_headers(message) for message in rows], _HEADERS),
        }
    )


def _headers(message: Message) -> list[dict[str, str | bytes]]:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": name, "value": value or b""} for name, value in pairs]
