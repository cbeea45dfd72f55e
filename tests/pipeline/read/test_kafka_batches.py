"""What Kafka's clients wrote, in batches of any codec, read from the files of a running node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kafka_clients import Producer

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

WAIT_S = 120.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EACH = 60
TOTAL = EACH * len(CODECS)


def write(address: str, codec: str) -> None:
    """Write one batch of this codec."""
    settings = {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 200}
    producer = Producer({**settings, "log_level": 0})
    for number in range(EACH):
        producer.produce("batches", f"{codec} {number} ".encode() * 20, key=codec, partition=0)
    assert producer.flush(WAIT_S) == 0


def wait_for_files(path: Path, count: int) -> None:
    """The node tells those who read its files twice a second where its shards end."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with ReadOnlyStore.open(str(path)) as view:
            if any(view.bounds(shard).commit >= count for shard in view.shards()):
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def writing_on(address: str) -> Iterator[None]:
    """Write more all the while."""
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            write(address, "zstd")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(WAIT_S)


def read(spark: SparkSession, path: Path) -> dict[int, str]:
    rows = spark.read.format("penstock").option("subscribe", "batches").load(str(path))
    found = rows.selectExpr("offset", "cast(value as string) value").collect()
    assert len(found) == len({row.offset for row in found})
    return {row.offset: row.value for row in found}


@pytest.mark.timeout(600)
def test_batches_of_any_codec_are_read_while_more_are_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    ports = {"server": {"port": 0, "http_port": 0}, "kafka": {"port": 0}}
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, ports)) as server:
        assert server.kafka is not None
        address = f"127.0.0.1:{server.kafka.port}"
        server.node.admin.create_topic_full("batches", 1, {"queue": "batch"})
        for codec in CODECS:
            write(address, codec)
        wait_for_files(tmp_path / "data" / "segment", TOTAL)
        with writing_on(address):
            first = read(spark, tmp_path / "data")
            wait_for_files(tmp_path / "data" / "segment", len(first) + 1)
            second = read(spark, tmp_path / "data")
    written = [f"{codec} {number} " * 20 for codec in CODECS for number in range(EACH)]
    assert [first[offset] for offset in range(TOTAL)] == written
    # Each read is what was there when it was planned: without a gap, and never less than before.
    assert sorted(first) == [*range(len(first))]
    assert sorted(second) == [*range(len(second))]
    assert len(second) > len(first)
    assert {offset: second[offset] for offset in first} == first
