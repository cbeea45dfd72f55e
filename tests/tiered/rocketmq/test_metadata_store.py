"""The metadata store keeps what it is told, each thing by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.tiered.rig import SHARD, fill, memory_config, open_store, upload

from penstock.engine.contract import ShardConfig, ShardTiering
from penstock.errors import BadRequestError, TierUnavailableError
from penstock.record import ShardId
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.providers import ObjectBytes
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.rocketmq.file_segment import FileSegmentMetadata, FileSegmentType
from penstock.tiered.rocketmq.metadata_store import (
    QueueMetadata,
    TieredMetadataStore,
    TopicMetadata,
)
from penstock.tiered.rocketmq.rocks_metadata import RocksDbMetadataStore
from penstock.tiered.shard_tiers import ShardTiers

ORDERS = ShardId("orders", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TieredMetadataStore]:
    store = RocksDbMetadataStore(str(tmp_path / "meta"))
    yield store
    store.close()


def segment(queue: ShardId, base: int, type_: int = 0) -> FileSegmentMetadata:
    return FileSegmentMetadata(
        path=f"{queue.topic}/{queue.partition}/{type_}",
        type=FileSegmentType(type_),
        base_offset=base,
    )


def test_topics_have_numbers_that_are_not_used_again(store: TieredMetadataStore) -> None:
    store.set_max_topic_id(10)
    first = store.add_topic("orders", 5)
    assert (first.topic_id, first.reserve_time) == (11, 5)
    assert store.add_topic("orders", 9) == first
    store.update_topic_reserve_time("orders", 7)
    store.update_topic_status("orders", 2)
    found = store.get_topic("orders")
    assert found is not None
    assert (found.topic_id, found.reserve_time, found.status) == (11, 7, 2)
    store.delete_topic("orders")
    store.delete_topic("orders")
    assert store.get_topic("orders") is None
    assert store.add_topic("orders", 5).topic_id == 12
    with pytest.raises(BadRequestError):
        store.update_topic_status("none", 1)


def test_queues_and_segments_belong_to_their_topic(store: TieredMetadataStore) -> None:
    other = ShardId("orders", 1)
    alike = ShardId("orders%", 0)
    for queue in (ORDERS, other, alike):
        store.add_queue(queue, 3)
        store.update_file_segment(segment(queue, 0))
        store.update_file_segment(segment(queue, 100, 1))
    store.update_queue(QueueMetadata(queue=ORDERS, min_offset=4, max_offset=9))
    queues: list[QueueMetadata] = []
    store.iterate_queue("orders", queues.append)
    assert [(one.queue, one.min_offset, one.max_offset) for one in queues] == [
        (ORDERS, 4, 9),
        (other, 3, 3),
    ]
    found: list[FileSegmentMetadata] = []
    store.iterate_file_segment(found.append, FileSegmentType.CONSUME_QUEUE, ORDERS)
    assert [replace(one, update_ms=0) for one in found] == [segment(ORDERS, 100, 1)]
    stored = store.get_file_segment(segment(ORDERS, 0))
    assert stored is not None
    assert replace(stored, update_ms=0) == segment(ORDERS, 0)
    store.delete_file_segment(segment(ORDERS, 0))
    assert store.get_file_segment(segment(ORDERS, 0)) is None
    store.delete_queue(ORDERS)
    store.delete_queue(ORDERS)
    assert store.get_queue(ORDERS) is None
    everything: list[FileSegmentMetadata] = []
    store.iterate_file_segment(everything.append)
    assert len(everything) == 4
    store.delete_file_segment(other)
    topics: list[TopicMetadata] = []
    store.iterate_topic(topics.append)
    assert [one.topic for one in topics] == ["orders", "orders%"]
    store.destroy()
    assert store.get_queue(alike) is None


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    store = RocksDbMetadataStore(str(tmp_path / "meta"))
    store.upsert_queue(ORDERS, 1, 2)
    store.close()
    again = RocksDbMetadataStore(str(tmp_path / "meta"))
    found = again.get_queue(ORDERS)
    again.close()
    assert found is not None
    assert (found.min_offset, found.max_offset) == (1, 2)


def test_a_segment_has_the_time_of_its_last_update(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    store = RocksDbMetadataStore(str(tmp_path / "meta"), clock=clock)
    assert store.update_file_segment(segment(ORDERS, 0)).update_ms == 1_000
    clock.advance(5)
    updated = store.update_file_segment(replace(segment(ORDERS, 0), size=7))
    assert (updated.size, updated.update_ms) == (7, 6_000)
    assert store.get_file_segment(segment(ORDERS, 0)) == updated
    store.close()


def test_a_segment_that_was_stored_without_an_update_time_is_read() -> None:
    row = msgspec.msgpack.encode({"path": "p", "type": 0, "base_offset": 3})
    assert msgspec.msgpack.decode(row, type=FileSegmentMetadata).update_ms == 0


@pytest.mark.parametrize("reserve_time", [0, -2])
def test_a_reserve_time_that_keeps_nothing_is_rejected(
    store: TieredMetadataStore, reserve_time: int
) -> None:
    store.add_topic("orders", -1)
    with pytest.raises(BadRequestError, match="reserve_time is"):
        store.update_topic_reserve_time("orders", reserve_time)


def test_a_flat_file_keeps_only_the_rows_of_segments_that_its_manifest_has(tmp_path: Path) -> None:
    config = memory_config(chunk_size=1500, segment_size=3000)
    rows: list[FileSegmentMetadata] = []
    with open_store(tmp_path / "store") as log:
        log.create_shard(SHARD)
        for start in (0, 40, 80):  # each round in another process, which reads what it finds
            metadata = RocksDbMetadataStore(str(tmp_path / "meta"))
            flat = CompositeFlatFile(config, SHARD, metadata_store=metadata)
            fill(log, 40, start=start)
            flat.acquire()
            upload(log, flat)
            rows.clear()
            metadata.iterate_file_segment(rows.append, queue=SHARD)
            kept = [replace(row, update_ms=0) for row in rows]
            assert sorted(kept, key=by_base) == sorted(flat.segments(), key=by_base)
            metadata.close()
    assert len(rows) > 3


def test_a_destroyed_shard_leaves_no_row_and_its_topic_none_with_the_last(tmp_path: Path) -> None:
    metadata = RocksDbMetadataStore(str(tmp_path / "meta"))
    config = memory_config()
    with open_store(tmp_path / "store") as log:
        log.create_shard(SHARD)
        fill(log, 40)
        flat = CompositeFlatFile(config, SHARD, metadata_store=metadata)
        flat.acquire()
        upload(log, flat)
        metadata.upsert_queue(ShardId(SHARD.topic, 1), 0, 1)
        flat.destroy()
        assert metadata.get_topic(SHARD.topic) is not None, "partition 1 is still in the tier"
        metadata.delete_queue(ShardId(SHARD.topic, 1))
        flat.destroy()
    assert metadata.get_topic(SHARD.topic) is None
    metadata.close()


def test_a_shard_tells_its_size_after_a_restart_without_its_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = memory_config()
    metadata = RocksDbMetadataStore(str(tmp_path / "meta"))
    with open_store(tmp_path / "store") as log:
        log.create_shard(SHARD)
        fill(log, 40)
        flat = CompositeFlatFile(config, SHARD, metadata_store=metadata)
        flat.acquire()
        upload(log, flat)
    found = flat.current()
    assert found is not None

    def get(_: MemoryProvider, key: str) -> ObjectBytes:
        raise TierUnavailableError(f"{key}: no answer")

    monkeypatch.setattr(MemoryProvider, "get", get)
    monkeypatch.setattr("penstock.tiered.providers.retrying.ATTEMPTS", 1)
    monkeypatch.setattr("penstock.tiered.providers.retrying.BACKOFF_FIRST_S", 0)
    tiers = ShardTiers(config, metadata_store=metadata)
    tiers.watch(SHARD, ShardConfig(tiering=ShardTiering()))
    assert tiers.bounds(SHARD) == (0, 40)
    assert tiers.data_size(SHARD) == found.data_size > 0
    tiers.close()


def by_base(segment: FileSegmentMetadata) -> int:
    return segment.base_offset
