"""Views of a store that RocketMQ wrote: everything that RocketMQ reads in it, and nothing else."""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from tests.codec.golden_store import GoldenStore
from tests.engine.segment.readonly.sample_store import tree

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.rocketmq.fastjson import JsonDict
from penstock.errors import CorruptionError, NotAStoreError, UnknownShardError
from penstock.record import QueueKind, ShardId, StoredRecord


def shard_of(line: JsonDict) -> ShardId:
    return ShardId(str(line["topic"]), int(str(line["queueId"])))


def number(line: JsonDict, name: str) -> int:
    value = line[name]
    assert isinstance(value, int)
    return value


def everything(view: ReadOnlyStore, shard: ShardId) -> list[StoredRecord]:
    records: list[StoredRecord] = []
    offset = 0
    while True:
        page = view.read_page(shard, offset, max_records=17, max_size=5_000)
        records += page.records
        if page.next_offset == offset:
            return records
        offset = page.next_offset


def messages(golden: GoldenStore) -> dict[ShardId, dict[int, JsonDict]]:
    """Return the manifest's messages of simple queues by shard and offset; those that have a
    unit."""
    found: dict[ShardId, dict[int, JsonDict]] = defaultdict(dict)
    for line in golden.lines("msg"):
        if line.get("cqOffset") is not None and shard_of(line).topic != "TopicBCQ":
            found[shard_of(line)][number(line, "cqOffset")] = line
    return found


def test_shards_and_bounds_are_what_rocketmq_says(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    expected = {shard_of(line): line for line in golden.lines("queue")}
    assert view.shards() == sorted(expected)
    for shard, line in expected.items():
        bounds = view.bounds(shard)
        assert view.kind(shard) is QueueKind(line["cqType"])
        assert bounds.earliest == line["minOffset"]
        assert bounds.commit == bounds.next == line["maxOffset"]
        assert bounds.end_position >= number(line, "maxPhysicOffset")


def test_every_message_of_every_simple_queue_is_read(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    for shard, lines in messages(golden).items():
        records = everything(view, shard)
        assert [record.offset for record in records] == sorted(lines)
        for record in records:
            line = lines[record.offset]
            assert record.value is not None
            assert hashlib.sha256(record.value).hexdigest() == line["bodySha256"]
            assert record.tags == (() if line["tags"] is None else (line["tags"],))
            assert record.timestamp_ms == line["bornTimestamp"]
            assert record.store_timestamp_ms == line["storeTimestamp"]


def test_batches_are_read_message_by_message(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    shard = ShardId("TopicBCQ", 0)
    records = everything(view, shard)
    assert [record.offset for record in records] == list(range(view.bounds(shard).next))
    assert view.read(shard, 40, max_records=3) == records[40:43]
    (line,) = [line for line in golden.lines("queue") if shard_of(line) == shard]
    assert len(view.read_raw(shard, 0)) == line["units"]


def test_every_key_is_found_where_rocketmq_finds_it(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    assert check_keys(golden, view) > 500


def check_keys(golden: GoldenStore, view: ReadOnlyStore) -> int:
    """Compare every key query of the manifest; return how many there were."""
    where: dict[tuple[ShardId, int], int] = {}
    shards: dict[str, list[ShardId]] = defaultdict(list)
    for shard, lines in messages(golden).items():
        shards[shard.topic].append(shard)
        for offset, line in lines.items():
            where[shard, offset] = number(line, "physicalOffset")
    checked = 0
    for line in golden.lines("key"):
        topic, key = str(line["topic"]), str(line["key"])
        if topic not in shards:
            continue
        expected = line["physicalOffsets"]
        assert isinstance(expected, list)
        found = [
            where[shard, record.offset]
            for shard in shards[topic]
            for record in view.by_key(shard, key.encode())
        ]
        # RocketMQ answers twice for a record that has the key twice.
        queued = {each for each in expected if isinstance(each, int) and each in where.values()}
        assert sorted(found) == sorted(queued), (topic, key)
        checked += 1
    return checked


def test_a_readonly_store_changes_nothing(golden_copy: Path) -> None:
    before = tree(golden_copy)
    with ReadOnlyStore.open(str(golden_copy)) as view:
        for shard in view.shards():
            everything(view, shard)
            view.newest_by_key(shard, b"order-1")
            view.offset_by_timestamp(shard, 1_700_000_010_000)
        view.refresh()
    assert tree(golden_copy) == before


@pytest.mark.parametrize("lost", [{0, 1, 2, 3}, {0}, {1}, {3}])
def test_keys_are_found_without_index_files_too(
    golden: GoldenStore, golden_copy: Path, lost: set[int]
) -> None:
    for place, path in enumerate(sorted((golden_copy / "index").iterdir())):
        if place in lost:
            path.unlink()
    assert check_keys(golden, ReadOnlyStore.open(str(golden_copy))) > 500


def test_keys_are_found_when_the_sizes_of_index_files_are_not_known(
    golden: GoldenStore, golden_copy: Path
) -> None:
    (golden_copy / "store.properties").unlink()
    assert check_keys(golden, ReadOnlyStore.open(str(golden_copy))) > 500


def test_the_first_record_of_a_time_is_found_by_looking_at_all(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    for shard, lines in messages(golden).items():
        times = [number(lines[offset], "bornTimestamp") for offset in sorted(lines)]
        for wanted in (0, times[0], times[-1], times[len(times) // 2] + 1, times[-1] + 10**6):
            first = next((n for n, time in enumerate(times) if time >= wanted), None)
            assert view.offset_by_timestamp(shard, wanted) == first


def test_records_of_a_tag_are_those_that_the_manifest_names(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    for shard, lines in messages(golden).items():
        for tag in {str(line["tags"]) for line in lines.values() if line["tags"]}:
            page = view.read_page(shard, 0, tag=tag, max_size=1 << 30)
            expected = [offset for offset in sorted(lines) if lines[offset]["tags"] == tag]
            assert [record.offset for record in page.records] == expected


def test_a_queue_begins_behind_the_log_files_that_are_gone(
    golden: GoldenStore, golden_copy: Path
) -> None:
    (golden_copy / "commitlog" / f"{0:020d}").unlink()
    view = ReadOnlyStore.open(str(golden_copy))
    for shard, lines in messages(golden).items():
        kept = [o for o in sorted(lines) if number(lines[o], "physicalOffset") >= 1_048_576]
        bounds = view.bounds(shard)
        assert bounds.earliest == (kept[0] if kept else bounds.next)
        assert [record.offset for record in everything(view, shard)] == kept
    assert view.bounds(ShardId("TopicBCQ", 0)).earliest == 73


def test_a_missing_log_file_in_the_middle_is_named(golden_copy: Path) -> None:
    (golden_copy / "commitlog" / f"{1_048_576:020d}").unlink()
    with pytest.raises(CorruptionError, match=r"00000000000001048576.*missing"):
        ReadOnlyStore.open(str(golden_copy))


def test_a_directory_that_is_no_store_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotAStoreError, match="is not a store"):
            ReadOnlyStore.open(str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_an_unknown_shard_is_named(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    with pytest.raises(UnknownShardError, match="nothing_7"):
        view.read(ShardId("nothing", 7), 0)


def test_an_empty_last_queue_file_is_no_end(golden: GoldenStore, golden_copy: Path) -> None:
    """RocketMQ makes a queue file ahead of its first unit."""
    queue = golden_copy / "consumequeue" / "TopicA" / "0"
    (queue / f"{4_000:020d}").write_bytes(bytes(2_000))
    view = ReadOnlyStore.open(str(golden_copy))
    expected = len(messages(golden)[ShardId("TopicA", 0)])
    assert len(everything(view, ShardId("TopicA", 0))) == expected


def test_a_readonly_store_follows_what_is_written_after_a_refresh(
    golden: GoldenStore, golden_copy: Path
) -> None:
    queue = golden_copy / "consumequeue" / "TopicA" / "0"
    whole = {path.name: path.read_bytes() for path in queue.iterdir()}
    shutil.rmtree(queue)
    queue.mkdir()
    (queue / f"{0:020d}").write_bytes(whole[f"{0:020d}"][:200].ljust(2_000, b"\0"))
    view = ReadOnlyStore.open(str(golden_copy))
    shard = ShardId("TopicA", 0)
    assert view.bounds(shard).next == 10
    for name, data in whole.items():
        (queue / name).write_bytes(data)
    assert view.bounds(shard).next == 10
    view.refresh()
    assert view.bounds(shard).next == len(messages(golden)[shard])
