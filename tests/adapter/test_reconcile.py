"""Engines and metadata agree after a start, whatever happened before it."""

from __future__ import annotations

import pytest
from tests.adapter.bench import Bench

from penstock.engine.contract import ShardConfig
from penstock.engine.reconcile import reconcile
from penstock.errors import CorruptionError, DiskFullError
from penstock.record import Record, ShardId

FULL = DiskFullError("no room")


def restarted(bench: Bench) -> None:
    """Forget what the handler knows of the engine's shards, as a new process does."""
    for entry in bench.storage_cache.entries():
        entry.is_open = False
        entry.forget_derived()
    bench.routes.forget()


def test_missing_shards_are_created_and_orphans_deleted() -> None:
    with Bench() as bench:
        topic_id = bench.create("orders", 3)
        bench.engine.delete_shard(ShardId(topic_id, 1))
        bench.engine.create_shard(ShardId("orphan", 0), ShardConfig())
        restarted(bench)
        done = reconcile(bench.handler, present=[], altered_since=0, where="here")
        assert (done.known, done.created, done.deleted, done.altered) == (3, 1, 1, 2)
        assert bench.engine.list_shard() == [ShardId(topic_id, n) for n in range(3)]
        later = bench.storage_cache.revision
        again = reconcile(bench.handler, present=[], altered_since=later, where="here")
        assert (again.created, again.deleted, again.altered) == (0, 0, 0)


def test_a_full_disk_does_not_keep_a_node_from_starting() -> None:
    with Bench() as bench:
        topic_id = bench.create("orders", 2)
        bench.topics.write("orders", Record(b"kept"), partition=0)
        bench.engine.delete_shard(ShardId(topic_id, 1))
        restarted(bench)
        bench.engine.fails_at = {1: FULL}
        done = reconcile(bench.handler, present=[], altered_since=99, where="here")
        assert (done.created, done.failed) == (0, 1)
        assert bench.topics.write("orders", Record(b"next"), partition=0).offset == 1
        name = f"{topic_id}_1"
        with pytest.raises(DiskFullError):
            bench.handler.write(name, Record(b"v"))
        bench.engine.fails_at = {}
        assert bench.handler.write(name, Record(b"v")).first == 0


def test_empty_metadata_beside_data_is_refused() -> None:
    with Bench() as bench:
        bench.engine.create_shard(ShardId("precious", 0), ShardConfig())
        with pytest.raises(CorruptionError, match="metadata is empty"):
            reconcile(bench.handler, present=["EngineMemory"], altered_since=0, where="here")
        assert bench.engine.list_shard() == [ShardId("precious", 0)]


def test_metadata_older_than_at_the_last_start_deletes_nothing() -> None:
    with Bench() as bench:
        bench.create("orders")
        bench.engine.create_shard(ShardId("precious", 0), ShardConfig())
        later = bench.storage_cache.revision + 1
        with pytest.raises(CorruptionError, match="1 shards hold data that the metadata does not"):
            reconcile(bench.handler, present=[], altered_since=later, where="here")
        assert ShardId("precious", 0) in bench.engine.list_shard()


def test_a_deletion_that_cannot_be_finished_is_left_to_the_next_start() -> None:
    with Bench() as bench:
        bench.create("orders")
        bench.engine.fails_to_delete = FULL
        bench.admin.delete_topic("orders")
        assert bench.admin.finish_deletions() == 0
        bench.engine.fails_to_delete = None
        assert bench.admin.finish_deletions() == 1
