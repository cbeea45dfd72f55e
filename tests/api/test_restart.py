"""A node starts and stops: nothing lost, nothing half done, nobody else's directory touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock.engine.contract import ShardConfig
from penstock.engine.segment.store import SegmentStore
from penstock.errors import ClosedError, CorruptionError, LockedError, NotAStoreError
from penstock.meta.client import TopicConfig
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.node.node import Node
from penstock.record import ShardId
from penstock.settings import EMBEDDED, merge_settings

DURABLE = ["rocksdb", "segment"]


def test_everything_durable_is_there_again(directory: Path) -> None:
    with penstock.open(directory) as store:
        for kind in ("memory", *DURABLE):
            topic = store.create_topic(kind, partitions=2, storage=kind, retention_records=50)
            topic.write_many([b"%d" % number for number in range(10)])
            topic.alter(partitions=3)
            topic.delete_by_offset(0, 2)
            consumer = store.consumer("g", [kind])
            consumer.poll(max_records=4)
            consumer.commit()
        committed = store.describe_group("g").offsets
        before = {kind: list(store.topic(kind)) for kind in DURABLE}
    with penstock.open(directory) as store:
        assert store.topics() == ["memory", "rocksdb", "segment"]
        for kind in DURABLE:
            assert list(store.topic(kind)) == before[kind]
            assert store.topic(kind).partitions == 3
            assert store.topic(kind).describe().config.retention_records == 50
            assert store.topic(kind).write(b"next", partition=0).offset == 5
        assert list(store.topic("memory")) == []
        assert store.topic("memory").write(b"anew", partition=0) == (0, 0)
        expected = {at: offset for at, offset in committed.items() if at[0] != "memory"}
        assert store.describe_group("g").offsets == expected


def test_a_topic_in_memory_is_read_from_its_new_beginning(directory: Path) -> None:
    with penstock.open(directory) as store:
        topic = store.create_topic("fleeting", storage="memory")
        topic.write_many([b"old"] * 7)
        consumer = store.consumer("g", ["fleeting"])
        consumer.poll()
        consumer.commit()
    with penstock.open(directory) as store:
        store.topic("fleeting").write(b"new")
        found = store.consumer("g", ["fleeting"]).poll()
        assert [message.value for message in found] == [b"new"]


WRITER = """
import os, sys, penstock
store = penstock.open(sys.argv[1])
for kind in ("rocksdb", "segment"):
    topic = store.create_topic(kind, partitions=2, storage=kind)
    for number in range(50):
        topic.write_many([b"%d" % number] * 3, partition=number % 2)
consumer = store.consumer("g", ["segment"])
consumer.poll(max_records=30)
consumer.commit()
os.write(1, b"done")
os.kill(os.getpid(), 9)
"""


def test_a_killed_process_loses_nothing_that_was_acknowledged(directory: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, check=False
    )
    assert (result.stdout, result.returncode) == (b"done", -9)
    with penstock.open(directory) as store:
        for kind in DURABLE:
            topic = store.topic(kind)
            for partition in range(2):
                page = topic.read(partition)
                assert [record.offset for record in page] == list(range(75))
                assert [int(r.value or b"") for r in page[::3]] == list(range(partition, 50, 2))
            assert topic.write(b"next", partition=0).offset == 75
        assert sum(store.describe_group("g").offsets.values()) == 30


FORGETFUL = """
import sys, threading, penstock
store = penstock.open(sys.argv[1])
topic = store.create_topic("orders", storage=sys.argv[2])
topic.write(b"v")
consumer = store.consumer("g", ["orders"])
consumer.poll()
consumer.commit()
"""


@pytest.mark.parametrize("kind", DURABLE)
def test_a_program_that_forgets_to_close_ends_and_loses_nothing(directory: Path, kind: str) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", "-c", FORGETFUL, str(directory), kind],
        check=True,
        timeout=30,
    )
    assert not (directory / "segment" / "abort").exists()
    with penstock.open(directory) as store:
        assert [message.value for message in store.topic("orders")] == [b"v"]
        assert store.describe_group("g").total_lag == 0


def test_a_handle_keeps_its_store_open(directory: Path) -> None:
    topic = penstock.open(directory).create_topic("orders")
    topic.write(b"v")
    assert len(topic.read()) == 1
    del topic
    with penstock.open(directory) as store:
        assert len(store.topic("orders").read()) == 1


def test_a_busy_directory_is_refused_with_the_process_that_has_it(directory: Path) -> None:
    with penstock.open(directory) as store:
        store.create_topic("orders").write(b"v")
        with pytest.raises(LockedError, match="this process has it open already"):
            penstock.open(directory)
        code = "import sys, penstock; penstock.open(sys.argv[1])"
        other = subprocess.run(
            [sys.executable, "-c", code, str(directory)],
            stderr=subprocess.PIPE,
            check=False,
        )
        assert b"LockedError" in other.stderr
        assert f"process {os.getpid()}".encode() in other.stderr
        assert store.topic("orders").write(b"v") == (0, 1)
    penstock.open(directory).close()


def test_a_directory_of_something_else_is_refused_and_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.tex").write_text("important")
    with pytest.raises(NotAStoreError, match=r"thesis\.tex"):
        penstock.open(directory)
    assert os.listdir(directory) == ["thesis.tex"]


def test_a_closed_store_says_so_and_closes_twice(directory: Path) -> None:
    store = penstock.open(directory)
    topics = [store.create_topic(kind, storage=kind) for kind in ("memory", *DURABLE)]
    for topic in topics:
        topic.write(b"v")
    store.close()
    store.close()
    for topic in topics:
        with pytest.raises(ClosedError):
            topic.write(b"v")
        with pytest.raises(ClosedError):
            topic.read()
    with pytest.raises(ClosedError):
        store.create_topic("new")


def test_engines_are_opened_when_they_are_needed(directory: Path) -> None:
    with Node(str(directory)) as node:
        assert node.engines.opened() == {}
        assert not (directory / "segment").exists()
        assert not (directory / "rocksdb").exists()
        node.admin.create_topic_full("t", 1, {"storage": "rocksdb"})
        assert list(node.engines.opened()) == ["EngineRocksDB"]
    with Node(str(directory)) as node:
        assert list(node.engines.opened()) == ["EngineRocksDB"]
        assert (node.reconciled.known, node.reconciled.created) == (1, 0)


def test_a_start_creates_missing_shards_and_deletes_orphaned_ones(directory: Path) -> None:
    with Node(str(directory)) as node:
        for kind in DURABLE:
            node.admin.create_topic_full(kind, 2, {"storage": kind})
            engine = node.engines.get(node.broker_cache.get_topic(kind).config.storage_type)
            missing = ShardId(node.broker_cache.get_topic(kind).topic_id, 1)
            engine.delete_shard(missing)
            engine.create_shard(ShardId("orphan", 0), ShardConfig())
    with Node(str(directory)) as node:
        done = node.reconciled
        assert (done.known, done.created, done.deleted) == (4, 2, 2)
        for kind in DURABLE:
            topic = node.broker_cache.get_topic(kind)
            shards = node.engines.get(topic.config.storage_type).list_shard()
            assert shards == [ShardId(topic.topic_id, 0), ShardId(topic.topic_id, 1)]


def test_a_start_finishes_what_a_crash_interrupted(directory: Path) -> None:
    with Node(str(directory)) as node:
        for name in ("altered", "deleted"):
            node.admin.create_topic_full(name, 2, {"storage": "rocksdb"})
        topics = {name: node.broker_cache.get_topic(name) for name in ("altered", "deleted")}
    # What the metadata was told, and no engine: the process died in between.
    meta = StandaloneMetaClient.open(str(directory / "meta"))
    altered = topics["altered"]
    config = TopicConfig(storage_type="EngineRocksDB", record_size_max=5)
    meta.alter_topic(altered.topic_id, partitions=3, config=config)
    meta.delete_topic(topics["deleted"].topic_id)
    meta.close()
    with Node(str(directory)) as node:
        assert (node.reconciled.created, node.reconciled.altered) == (1, 2)
        assert node.meta.list_deleting_topics() == []
        shards = node.engines.get("EngineRocksDB").list_shard()
        assert {shard.topic for shard in shards} == {altered.topic_id}
        with pytest.raises(penstock.StoreError, match="the limit is 5"):
            node.driver_manager.write("altered", penstock.Record(b"sixsix"))


@pytest.mark.parametrize("by", ["start", "alter"])
def test_a_growth_that_was_cut_short_is_finished(
    directory: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node(str(directory)) as node:
        topic = node.admin.create_topic_full("orders", 2, {"storage": "rocksdb"})
        if by == "alter":
            assert isinstance(node.meta, StandaloneMetaClient)
            cut_short(node.meta, topic.topic_id, monkeypatch)
            assert node.driver_manager.routes.find("orders").partitions == 2
            node.admin.alter_topic("orders", partitions=4)
            assert node.driver_manager.routes.find("orders").partitions == 4
    if by == "start":
        meta = StandaloneMetaClient.open(str(directory / "meta"))
        cut_short(meta, topic.topic_id, monkeypatch)
        meta.close()
    with Node(str(directory)) as node:
        assert node.driver_manager.routes.find("orders").partitions == 4
        assert node.driver_manager.write("orders", penstock.Record(b"v"), partition=3) == (3, 0)


def cut_short(meta: StandaloneMetaClient, topic_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a topic have more partitions, without their shards: the process died in between."""
    with monkeypatch.context() as patch:
        patch.setattr(meta, "create_shards", lambda *_: [])
        meta.alter_topic(topic_id, partitions=4)


def test_lost_metadata_does_not_delete_the_data(directory: Path) -> None:
    with penstock.open(directory) as store:
        store.create_topic("orders").write(b"precious")
    shutil.rmtree(directory / "meta")
    with pytest.raises(CorruptionError, match="the metadata is empty"):
        penstock.open(directory)
    assert any((directory / "segment" / "commitlog").iterdir())


def test_a_start_that_fails_lets_go_of_everything(directory: Path) -> None:
    with penstock.open(directory) as store:
        store.create_topic("orders").write(b"v")
    properties = directory / "segment" / "store.properties"
    kept = properties.read_bytes()
    properties.write_bytes(b"mappedFileSizeCommitLog=many\n")
    (directory / "segment" / "penstock" / "store.properties").unlink()
    with pytest.raises(NotAStoreError):
        penstock.open(directory)
    properties.write_bytes(kept)
    with penstock.open(directory) as store:
        assert len(store.topic("orders").read()) == 1


def test_the_file_sizes_of_an_existing_store_stay(directory: Path) -> None:
    with penstock.open(directory, broker__commit_log_file_size=1 << 20) as store:
        store.create_topic("orders").write(b"v")
    with penstock.open(directory) as store:
        store.topic("orders").write(b"v")
        files = list((directory / "segment" / "commitlog").iterdir())
        assert {file.stat().st_size for file in files} == {1 << 20}


def test_segments_roll_in_a_running_node(directory: Path) -> None:
    settings = merge_settings(EMBEDDED, {"engine.segment_size": 20_000})
    with Node(str(directory), settings) as node:
        node.admin.create_topic_full("orders", 1, {"storage": "segment"})
        shard = ShardId(node.broker_cache.get_topic("orders").topic_id, 0)
        for _ in range(300):
            node.driver_manager.batch_write("orders", [penstock.Record(bytes(100))] * 10)
            if len(node.meta.list_segments(shard)) > 3:
                break
            time.sleep(0.005)
        assert len(node.meta.list_segments(shard)) > 3
    with Node(str(directory), settings) as node:
        assert len(node.handler.find(shard.name).segments) > 3
        info = node.driver_manager.shard_info("orders", 0)
        page = node.driver_manager.read_by_offset("orders", 0, info.earliest, max_records=10_000)
        assert [record.offset for record in page] == list(range(info.latest))


def test_two_stores_in_one_process_do_not_mix(directory: Path) -> None:
    other = directory.with_name("other")
    with penstock.open(directory) as first, penstock.open(other) as second:
        first.create_topic("orders").write(b"first")
        second.create_topic("orders").write(b"second")
        assert [message.value for message in first.topic("orders")] == [b"first"]
        assert [message.value for message in second.topic("orders")] == [b"second"]


def test_an_engine_that_could_not_be_opened_is_opened_when_the_cause_is_gone(
    directory: Path,
) -> None:
    with penstock.open(directory) as store:
        with (
            SegmentStore.open(str(directory / "segment")),
            pytest.raises(LockedError, match="this process has it open already"),
        ):
            store.create_topic("t")
        store.create_topic("t").write(b"after all")
        assert [record.value for record in store.topic("t")] == [b"after all"]
