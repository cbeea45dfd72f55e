"""A directory that RocketMQ wrote, opened for writing: all is read, and appends go on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.codec.golden_store import GoldenStore, unpack
from tests.engine.segment.rig import record

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import QueueKind, Record, ShardId

QUIET = SegmentSettings(background=False)
PREPARED, ROLLED_BACK = 4, 12


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack(tmp_path)


def messages(golden: GoldenStore) -> dict[ShardId, list[tuple[int, int, str]]]:
    """Return (offset, timestamp, digest of the body) of every message in a simple queue."""
    found: dict[ShardId, list[tuple[int, int, str]]] = {}
    for line in golden.lines("msg"):
        flag = int(str(line["sysFlag"]))
        shard = ShardId(str(line["topic"]), int(str(line["queueId"])))
        if flag & 12 not in (PREPARED, ROLLED_BACK) and not flag & 128:
            digest = str(line["bodySha256"])
            found.setdefault(shard, []).append(
                (int(str(line["queueOffset"])), int(str(line["bornTimestamp"])), digest)
            )
    return {shard: sorted(lines) for shard, lines in found.items()}


def check(store: SegmentStore, golden: GoldenStore) -> int:
    """Compare every message of the simple queues with the manifest; return how many there are."""
    count = 0
    for shard, lines in messages(golden).items():
        if store.kind(shard) is not QueueKind.SIMPLE:
            continue
        records = store.read(shard, 0, max_records=10_000)[: len(lines)]
        found = [
            (int(each.offset), each.timestamp_ms, hashlib.sha256(each.value or b"").hexdigest())
            for each in records
        ]
        assert [line[2] for line in found] == [line[2] for line in lines], shard
        assert [line[:2] for line in found] == [line[:2] for line in lines], shard
        count += len(found)
    return count


def open_store(golden: GoldenStore) -> SegmentStore:
    return SegmentStore.open(str(golden.root), QUIET)


def test_every_message_is_read_and_appends_go_on(golden: GoldenStore) -> None:
    shard = ShardId("TopicA", 0)
    with open_store(golden) as store:
        assert check(store, golden) > 500
        assert store.report.damaged == []
        end = store.bounds(shard).next
        assert store.append(shard, record(1, key=b"ours", tag="t")) == end
        assert store.append_many(shard, [Record(b"a"), Record(b"b")]) == end + 1
        create = ShardId("ours", 0)
        store.create_shard(create)
        assert store.append(create, record(2)) == 0
    with open_store(golden) as store:
        assert check(store, golden) > 500
        assert store.report.records_scanned == 0
        newest = store.newest_by_key(shard, b"ours")
        assert newest is not None
        assert newest.offset == end
        assert [each.value for each in store.read(shard, end + 1)] == [b"a", b"b"]


def test_keys_are_found_in_rocketmqs_own_index(golden: GoldenStore) -> None:
    with open_store(golden) as store:
        found = 0
        for line in golden.lines("key"):
            key = str(line["key"]).encode()
            positions = line["physicalOffsets"]
            assert isinstance(positions, list)
            shards = [shard for shard in store.shards() if shard.topic == line["topic"]]
            hits = [hit for shard in shards for hit in store.by_key(shard, key)]
            live = [shard for shard in shards if store.kind(shard) is QueueKind.SIMPLE]
            if len(live) == len(shards):
                assert len(hits) <= len(positions)
                found += len(hits)
        assert found > 100


def test_queue_files_stay_as_rocketmq_wrote_them(golden: GoldenStore) -> None:
    before = golden.queue_files()
    open_store(golden).close()
    after = golden.queue_files()
    for name, data in before.items():
        assert after[name][: len(data)] == data, name


def test_index_files_stay_as_rocketmq_wrote_them(golden: GoldenStore) -> None:
    before = golden.index_files()
    open_store(golden).close()
    assert golden.index_files() == before
    assert verify(str(golden.root)).findings == []


def test_batches_are_read_message_by_message(golden: GoldenStore) -> None:
    with open_store(golden) as store:
        batched = [shard for shard in store.shards() if store.kind(shard) is QueueKind.BATCH]
        assert batched
        for shard in batched:
            bounds = store.bounds(shard)
            records = store.read(shard, bounds.earliest, max_records=10_000)
            assert [each.offset for each in records] == list(range(bounds.earliest, bounds.next))


def test_the_key_of_a_whole_batch_finds_its_messages(golden: GoldenStore) -> None:
    shard = ShardId("TopicBCQ", 0)
    expected = ([0], [2, 1], [5, 4, 3], [9, 8, 7, 6], [10])
    view = ReadOnlyStore.open(str(golden.root))
    for number, offsets in enumerate(expected):
        found = view.query_by_key(shard, b"ib-%d" % number)
        assert [each.offset for each in found] == offsets
    with SegmentStore.open(str(golden.root), QUIET) as store:
        for _ in range(2):
            for number, offsets in enumerate(expected):
                key = b"ib-%d" % number
                assert [each.offset for each in store.query_by_key(shard, key)] == offsets
                inside = [each.offset for each in store.query_by_key(shard, key + b"-0")]
                assert inside == offsets[-1:]
            newest = store.newest_by_key(shard, b"ib-3")
            assert newest is not None
            assert newest.offset == 9
            assert store._batch_keys is not None
            store._batch_keys.run_once()  # the second time, keys inside batches are in an index
        store.delete_offsets(shard, [8])
        assert [each.offset for each in store.query_by_key(shard, b"ib-3")] == [9, 7, 6]


def test_a_directory_that_rocketmq_did_not_close_is_recovered(golden: GoldenStore) -> None:
    (golden.root / "abort").write_text("")
    with open_store(golden) as store:
        assert store.report.clean_stop is False
        assert check(store, golden) > 500
