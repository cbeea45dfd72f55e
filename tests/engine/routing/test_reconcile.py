"""Engines and metadata agree after a start, whatever happened before it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.adapter.bench import Bench

from penstock.engine.contract import ShardConfig
from penstock.engine.routing.quarantine import Quarantine, QuarantinedShard
from penstock.engine.routing.reconcile import UnknownShards, reconcile
from penstock.errors import BadRequestError, CorruptionError, DiskFullError, ShardLostError
from penstock.meta.client import Update
from penstock.meta.events import ShardPut
from penstock.record import Offset, Record, ShardId
from penstock.testing import FaultyDisk

FULL = DiskFullError("no room")


def restarted(bench: Bench) -> None:
    """Forget what the handler knows of the engine's shards, as a new process does."""
    for entry in bench.storage_cache.entries():
        entry.is_open = False
        entry.clear_derived()
    bench.routes.invalidate()


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


def test_lost_shards_are_neither_created_nor_deleted_nor_served() -> None:
    with Bench() as bench:
        topic_id = bench.create("orders", 3)
        bench.manager.write("orders", Record(b"of an old disk"), partition=2)
        bench.engine.delete_shard(ShardId(topic_id, 1))
        shards = {one.partition: one for one in bench.meta.list_shards(topic_id)}
        lost = [
            ShardPut(replace(shards[n], status="lost", leader=None, leader_epoch=1)) for n in (1, 2)
        ]
        bench.storage_cache.apply(Update(bench.storage_cache.revision + 1, tuple(lost)))
        restarted(bench)
        done = reconcile(bench.handler, present=[], altered_since=99, where="here")
        assert (done.known, done.created, done.deleted) == (1, 0, 0)
        assert bench.engine.list_shard() == [ShardId(topic_id, 0), ShardId(topic_id, 2)]
        for partition in (1, 2):
            with pytest.raises(ShardLostError, match="`penstock cluster accept-loss orders`"):
                bench.manager.write("orders", Record(b"v"), partition=partition)
            with pytest.raises(ShardLostError, match="node 1 has come back without its data"):
                bench.manager.read_by_offset("orders", partition, Offset(0))
        assert bench.manager.write("orders", Record(b"v"), partition=0).offset == 0
        problems = [one.problem for one in bench.admin.describe_topic("orders").partitions]
        assert [bool(problem) for problem in problems] == [False, True, True]


def test_a_full_disk_does_not_keep_a_node_from_starting() -> None:
    with Bench() as bench:
        topic_id = bench.create("orders", 2)
        bench.manager.write("orders", Record(b"kept"), partition=0)
        bench.engine.delete_shard(ShardId(topic_id, 1))
        restarted(bench)
        bench.engine.fails_at = {1: FULL}
        done = reconcile(bench.handler, present=[], altered_since=99, where="here")
        assert (done.created, done.failed) == (0, 1)
        assert bench.manager.write("orders", Record(b"next"), partition=0).offset == 1
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


def test_a_cluster_keeps_what_its_metadata_do_not_name() -> None:
    with Bench() as bench:
        topic_id = bench.create("orders", 1)
        strangers = {"orphan", "given-up", "deleting"}
        for name in strangers:
            bench.engine.create_shard(ShardId(name, 0), ShardConfig())
        moved = bench.storage_cache.shards[f"{topic_id}_0"]
        assert moved.meta is not None
        update = ShardPut(replace(moved.meta, replicas=(9,), in_sync=(9,), leader=9))
        bench.storage_cache.apply(Update(bench.storage_cache.revision + 1, (update,)))
        restarted(bench)
        (storage_type,) = bench.handler.engines.opened()
        unknown = UnknownShards(
            deleting={"deleting"}, doomed={(storage_type, ShardId("given-up", 0))}
        )
        done = reconcile(
            bench.handler, present=[storage_type], altered_since=0, where="here", unknown=unknown
        )
        assert done.unknown == [QuarantinedShard(storage_type, "orphan_0")]
        assert bench.engine.list_shard() == [ShardId("orphan", 0)], "the others had to go"


def test_a_quarantine_lists_its_shards_until_an_operator_gives_them_up() -> None:
    disk = FaultyDisk()
    disk.make_directory("/data")
    quarantine = Quarantine(disk, "/data")
    one, two = QuarantinedShard("EngineSegment", "a_0"), QuarantinedShard("EngineSegment", "b_1")
    quarantine.write([two, one])
    disk.crash()
    assert quarantine.read() == [one, two]
    with pytest.raises(BadRequestError, match="shard c_0 is not in quarantine"):
        quarantine.doom(["c_0"])
    assert quarantine.doom(["a_0"]) == 1
    assert quarantine.read() == [replace(one, is_doomed=True), two]
    assert quarantine.doom([]) == 2
    quarantine.write([])
    assert quarantine.read() == []
