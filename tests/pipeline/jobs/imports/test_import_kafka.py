"""Import of Kafka's topics: each record once, from where the last run ended, also after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.brokers.kafka.running import running
from tests.kafka_clients import AdminClient, Producer

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.errors import BadRequestError, SetupError
from penstock.pipeline import jobs
from penstock.pipeline.jobs.imports import kafka as kafka_import
from penstock.pipeline.write.commit_protocol import Journal, OpenBatch
from penstock.record import ShardId, StoredRecord

kafka_admin = pytest.importorskip("confluent_kafka.admin")
pytest.importorskip("kio")
FIRST_MS = 1_700_000_000_000
DEADLINE_S = 60


def produce(address: str, partition: int, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in numbers:
        producer.produce(
            "orders",
            b"value %d" % number,
            key=b"key %d" % number,
            partition=partition,
            timestamp=FIRST_MS + number,
            headers=[("n", b"%d" % number)],
        )
    assert producer.flush(DEADLINE_S) == 0


def records(path: Path, topic: str, partition: int) -> list[StoredRecord]:
    with ReadOnlyStore.open(str(path)) as view:
        return view.read(ShardId(topic, partition), 0, max_records=10_000, max_size=1 << 30)


def numbers(found: list[StoredRecord]) -> list[int]:
    return [int((record.value or b"").split()[1]) for record in found]


def test_a_topic_of_kafkas_that_was_created_again_is_not_gone_on_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    with running(tmp_path / "kafka") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        wanted = [kafka_admin.NewTopic("orders", 1, 1)]
        admin.create_topics(wanted)["orders"].result(DEADLINE_S)
        produce(kafka.address, 0, range(10))
        assert jobs.import_kafka(spark, store, kafka.address, ["orders"]).rows == 10
        admin.delete_topics(["orders"])["orders"].result(DEADLINE_S)
        admin.create_topics(wanted)["orders"].result(DEADLINE_S)
        produce(kafka.address, 0, range(100, 115))
        with pytest.raises(BadRequestError, match="was deleted and created again"):
            jobs.import_kafka(spark, store, kafka.address, ["orders"])
        anew = jobs.import_kafka(spark, store, kafka.address, ["orders"], strict=False)
    assert (anew.rows, anew.partitions[0].start) == (15, 0)
    found = numbers(records(tmp_path / "store", "orders", 0))
    assert found == [*range(10), *range(100, 115)]


def test_records_come_once_and_only_what_is_new_also_after_a_kill(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small pieces: a partition is read by several tasks, and stays in order.
    monkeypatch.setattr(kafka_import, "_OFFSETS_PER_TASK", 40)
    store = tmp_path / "store"
    with running(tmp_path / "kafka") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        made = admin.create_topics([kafka_admin.NewTopic("orders", 3, 1)])
        made["orders"].result(DEADLINE_S)
        produce(kafka.address, 0, range(100))
        produce(kafka.address, 2, range(5))
        first = jobs.import_kafka(spark, str(store), kafka.address, {"orders": "copied"})
        assert (first.rows, first.offsets, first.resumed) == (105, 105, False)
        found = records(store, "copied", 0)
        assert numbers(found) == [*range(100)]
        assert (found[7].key, found[7].timestamp_ms) == (b"key 7", FIRST_MS + 7)
        assert found[7].headers == (("n", b"7"),)
        assert numbers(records(store, "copied", 2)) == [*range(5)]
        again = jobs.import_kafka(spark, str(store), kafka.address, {"orders": "copied"})
        assert (again.rows, again.partitions) == (0, [])

        produce(kafka.address, 0, range(100, 110))
        _run_without_writing(monkeypatch, spark, store, kafka.address)
        produce(kafka.address, 2, range(5, 8))
        last = jobs.import_kafka(spark, str(store), kafka.address, {"orders": "copied"})
        assert (last.resumed, last.rows) == (True, 13)
        _forget_that_it_is_done(store)
        produce(kafka.address, 1, range(3))
        last = jobs.import_kafka(spark, str(store), kafka.address, {"orders": "copied"})
        assert (last.resumed, last.rows) == (True, 3)
    assert numbers(records(store, "copied", 0)) == [*range(110)]
    assert numbers(records(store, "copied", 1)) == [*range(3)]
    assert numbers(records(store, "copied", 2)) == [*range(8)]


class KilledError(BaseException):
    """Ends a run where a signal could have ended it."""


def _run_without_writing(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, store: Path, address: str
) -> None:
    """Die when the ranges are fixed, and nothing was read yet."""

    def die(*_: object) -> int:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(kafka_import._TopicImport, "write", die)
        with pytest.raises(KilledError):
            jobs.import_kafka(spark, str(store), address, {"orders": "copied"})


def _forget_that_it_is_done(store: Path) -> None:
    """As after a crash behind the last row, before the journal said so."""
    (directory,) = (store / "penstock" / "sink").glob("kafka-*")
    journal = Journal(directory)
    done = journal.committed()
    journal.finish(done - 1)
    journal.begin(OpenBatch(done, ()))


def test_what_cannot_be_imported_is_said(spark: SparkSession, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with (
        running(tmp_path / "kafka", {"auto_create_topics": False}) as kafka,
        pytest.raises(BadRequestError, match="has no topic 'none'"),
    ):
        jobs.import_kafka(spark, store, kafka.address, ["none"])
    with pytest.raises(SetupError, match="invalid Kafka setting"):
        jobs.import_kafka(spark, store, "127.0.0.1:1", ["none"], settings={"no.such": "1"})
    with pytest.raises(BadRequestError, match="at least one Kafka topic"):
        jobs.import_kafka(spark, store, "127.0.0.1:1", [])
