"""A shard goes into a tier and comes back, record by record, by every way of reading."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, fill, memory_config, open_store, read_all, record, upload

from penstock.codec.format import RawRecord
from penstock.codec.select import core
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, CorruptionError, NotSupportedError
from penstock.record import QueueKind, Record, ShardId
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.chunk.chunk import derive_units, read_footer
from penstock.tiered.chunk.shard_manifest import LeaseLostError
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.read.tier_query import TierQuery
from penstock.tiered.rocketmq.append_result import AppendResult, BoundaryType
from penstock.tiered.rocketmq.composite_access import CompositeAccess, request_of
from penstock.tiered.upload.dispatcher import upload_shard


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        yield store


def opened(**sizes: int) -> CompositeFlatFile:
    flat = CompositeFlatFile(memory_config(**sizes), SHARD)
    flat.acquire()
    return flat


def test_everything_comes_back_as_it_was(store: SegmentStore) -> None:
    fill(store, 300)
    flat = opened()
    upload(store, flat)
    manifest = flat.current()
    assert manifest is not None
    assert len(manifest.segments) >= 3
    assert manifest.chunks
    other = CompositeFlatFile(flat.config, SHARD)
    assert read_all(other) == store.read(SHARD, 0)
    assert (other.min_offset, other.commit_offset) == (0, 300)


def test_any_page_is_the_page_of_the_store(store: SegmentStore) -> None:
    fill(store, 120)
    flat = opened()
    upload(store, flat)
    for offset in range(0, 121, 7):
        for max_records, max_size in ((1, 1), (3, 1 << 20), (50, 600), (1000, 1 << 20)):
            page = flat.reader.read(TierQuery(offset, 1 << 60, max_records, max_size))
            wanted = store.read_page(SHARD, offset, max_records=max_records, max_size=max_size)
            assert page.records == wanted.records, (offset, max_records, max_size)
            assert page.next_offset == wanted.next_offset


def test_tags_keys_and_times_are_found(store: SegmentStore) -> None:
    fill(store, 200)
    flat = opened()
    upload(store, flat)
    page = flat.reader.read(TierQuery(3, 1 << 60, 1000, 1 << 20, tag="odd"))
    assert page.records == store.read_page(SHARD, 3, tag="odd").records
    for n in range(8):
        key = f"key-{n}".encode()
        assert list(flat.reader.by_key(key)) == list(store.by_key(SHARD, key))
    for n in (0, 1, 77, 199, 200):
        time_ms = 1_700_000_000_000 + n * 1000 - 500
        assert flat.reader.offset_by_time(time_ms) == store.offset_by_timestamp(SHARD, time_ms)
    lower = flat.get_offset_in_consume_queue_by_time(1_700_000_010_500, BoundaryType.LOWER)
    upper = flat.get_offset_in_consume_queue_by_time(1_700_000_010_500, BoundaryType.UPPER)
    assert (lower, upper) == (11, 10)


def test_a_stream_has_every_record_in_order(store: SegmentStore) -> None:
    fill(store, 250)
    flat = opened()
    upload(store, flat)
    found: list[int] = []
    for chunk in flat.reader.stream():
        entry, footer = chunk.entry, chunk.footer
        records, _, _, damage = core.read_records(
            chunk.data, entry.position, footer.units, entry.units_offset, "orders", 0,
            10_000, 1 << 30, [], 0, None, None,
        )  # fmt: skip
        assert damage is None
        found += [one.offset for one in records]
    assert found == list(range(250))


def test_deleted_records_are_holes_in_the_tier(store: SegmentStore) -> None:
    fill(store, 100)
    store.delete_offsets(SHARD, [0, 1, 20, 21, 22, 50, 98, 99])
    flat = opened()
    upload(store, flat)
    flat.advance(100)
    assert read_all(flat) == store.read(SHARD, 0)
    assert flat.commit_offset == 100
    fill(store, 5, start=100)
    upload(store, flat)
    assert read_all(flat) == store.read(SHARD, 0)
    flat.upkeep.delete_ranges([(30, 33), (101, 102)])
    store.delete_offsets(SHARD, [30, 31, 32, 101])
    assert read_all(flat) == store.read(SHARD, 0)
    assert list(flat.reader.by_key(b"key-3")) == list(store.by_key(SHARD, b"key-3"))


def test_a_wide_hole_costs_nothing(store: SegmentStore) -> None:
    fill(store, 10)
    for first in range(10, 6010, 100):
        store.append_many(SHARD, [record(n) for n in range(first, first + 100)])
    store.delete_offsets(SHARD, range(5, 6000))
    flat = opened()
    upload(store, flat)
    assert read_all(flat) == store.read(SHARD, 0)
    manifest = flat.current()
    assert manifest is not None
    assert manifest.object_size < 20_000


def test_batches_stay_whole(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD, QueueKind.BATCH)
        for first in range(0, 120, 10):
            store.append_many(SHARD, [record(n) for n in range(first, first + 10)])
        flat = CompositeFlatFile(memory_config(), SHARD, QueueKind.BATCH)
        flat.acquire()
        upload(store, flat)
        assert read_all(flat) == store.read(SHARD, 0)
        assert read_all(flat, start=37) == store.read(SHARD, 37)
        assert list(flat.reader.by_key(b"key-3")) == list(store.by_key(SHARD, b"key-3"))
        raw = flat.reader.read_raw(TierQuery(0, max_records=1000))
        assert len(raw) == len(store.read_raw(SHARD, 0))


def test_the_seeds_interface_step_by_step(store: SegmentStore) -> None:
    fill(store, 3)
    flat = opened()
    access: CompositeAccess = flat
    messages = store.read_raw(SHARD, 0)
    assert access.append_commit_log(messages[1]) is AppendResult.OFFSET_INCORRECT
    for message in messages:
        position = flat.commit_log.append_offset
        raw = core.decode_raw(message, 0, 0, False)
        assert isinstance(raw, RawRecord)
        assert access.append_commit_log(message) is AppendResult.SUCCESS
        request = request_of(raw, position)
        assert access.append_consume_queue(request) is AppendResult.SUCCESS
        assert access.append_consume_queue(request) is AppendResult.OFFSET_INCORRECT
    assert flat.commit_offset == 0
    access.commit_commit_log()
    assert access.get_commit_log_dispatch_commit_offset() == 3
    assert flat.refresh() is not None
    assert flat.commit_offset == 0, "data is there before its index counts"
    access.commit_consume_queue()
    assert flat.commit_offset == 3
    whole = access.get_message_async(2).result()
    assert (
        access.get_commit_log_async(flat.commit_log.append_offset - len(whole), len(whole)).result()
        == whole
    )
    assert len(access.get_consume_queue_async(0, 3).result()) == 60
    with pytest.raises(BadRequestError):
        access.get_consume_queue_async(3).result()


def test_commit_with_an_append_is_seen_at_once(store: SegmentStore) -> None:
    fill(store, 2)
    flat = opened()
    first, second = store.read_raw(SHARD, 0)
    raw = core.decode_raw(first, 0, 0, False)
    assert flat.append_commit_log(first, commit=True) is AppendResult.SUCCESS
    assert flat.commit_offset == 0
    assert isinstance(raw, RawRecord)
    assert flat.append_consume_queue(request_of(raw, 0), commit=True) is AppendResult.SUCCESS
    assert flat.commit_offset == 1
    flat.shutdown()
    assert flat.append_commit_log(second) is AppendResult.FILE_CLOSED


def test_init_offset_moves_only_the_dispatch_offset_once_begun(store: SegmentStore) -> None:
    fill(store, 20)
    flat = opened()
    flat.init_offset(5)
    upload(store, flat)
    assert (flat.min_offset, flat.commit_offset) == (5, 20)
    flat.init_offset(40)
    assert flat.dispatch_offset == 40
    assert (flat.min_offset, flat.commit_offset) == (5, 20)


def test_of_two_writers_the_older_is_fenced(store: SegmentStore) -> None:
    fill(store, 40)
    first = opened()
    upload(store, first, until=10)
    second = CompositeFlatFile(first.config, SHARD)
    second.acquire()
    assert second.dispatch_offset == 10
    with pytest.raises(LeaseLostError):
        upload(store, first)
    upload(store, second)
    assert read_all(CompositeFlatFile(first.config, SHARD)) == store.read(SHARD, 0)
    with pytest.raises(LeaseLostError):
        CompositeFlatFile(first.config, SHARD).acquire(epoch=2)


def test_reading_changes_nothing(store: SegmentStore) -> None:
    fill(store, 50)
    flat = opened()
    upload(store, flat)
    before = {info.key: info for info in flat.provider.list()}
    other = CompositeFlatFile(flat.config, SHARD)
    read_all(other)
    list(other.reader.by_key(b"key-1"))
    with pytest.raises(BadRequestError):
        other.commit(sync=True)
    assert {info.key: info for info in flat.provider.list()} == before


def test_old_chunks_expire_in_two_phases(store: SegmentStore) -> None:
    fill(store, 200)
    clock = ManualClock(1_800_000_000_000)
    flat = CompositeFlatFile(memory_config(), SHARD, clock=clock)
    flat.acquire()
    upload(store, flat)
    objects = {info.key for info in flat.provider.list()}
    flat.clean_expired_file(1_700_000_100_000)
    assert 80 <= flat.min_offset <= 100
    assert read_all(flat) == store.read(SHARD, flat.min_offset)
    there = {info.key for info in flat.provider.list()}
    assert objects <= there, "nothing goes before the grace period"
    clock.advance(2 * flat.config.grace_ms / 1000)
    flat.destroy_expired_file()
    left = len(list(flat.provider.list()))
    assert left < len(objects)
    flat.destroy_expired_file()
    assert len(list(flat.provider.list())) == left
    manifest = flat.current()
    assert manifest is not None
    assert manifest.garbage == ()
    assert read_all(CompositeFlatFile(flat.config, SHARD)) == store.read(SHARD, flat.min_offset)


def test_destroying_is_idempotent_and_waits_for_readers(store: SegmentStore) -> None:
    fill(store, 60)
    clock = ManualClock(1_800_000_000_000)
    flat = CompositeFlatFile(memory_config(), SHARD, clock=clock)
    flat.acquire()
    upload(store, flat)
    flat.destroy()
    flat.destroy()
    assert flat.refresh() is None
    assert len(list(flat.provider.list())) > 1
    clock.advance(2 * flat.config.grace_ms / 1000)
    flat.provider.delete(next(info.key for info in flat.provider.list()))
    flat.destroy()
    assert list(flat.provider.list()) == []
    flat.destroy()


def test_a_destroyed_shard_begins_anew(store: SegmentStore) -> None:
    fill(store, 60)
    flat = opened()
    upload(store, flat)
    flat.destroy()
    again = CompositeFlatFile(flat.config, SHARD)
    again.acquire()
    assert again.dispatch_offset == 0
    assert read_all(again) == []
    upload(store, again)
    assert read_all(again) == store.read(SHARD, 0)


def test_garbage_is_collected_and_nothing_else(store: SegmentStore) -> None:
    fill(store, 60)
    clock = ManualClock(1_000_000)
    flat = CompositeFlatFile(memory_config(), SHARD, clock=clock)
    flat.acquire()
    upload(store, flat)
    wanted = {info.key for info in flat.provider.list()}
    prefix = flat.manifest.prefix
    orphan = f"{prefix}0000000001-00000000000000000099-0123456789ab.chunk"
    foreign = [f"{prefix}README", f"{prefix}sub/0000000001-00000000000000000099-0123456789ab.chunk"]
    for key in (orphan, *foreign):
        flat.provider.put_if_absent(key, b"?")
    young = flat.upkeep.collect_garbage()
    assert (young.deleted, young.waiting) == (0, 1)
    clock.advance(float(1 << 40))
    report = flat.upkeep.collect_garbage()
    assert report.deleted == 1
    assert sorted(report.foreign) == sorted(foreign)
    assert {info.key for info in flat.provider.list()} == wanted | set(foreign)
    assert read_all(flat) == store.read(SHARD, 0)


def test_a_manifest_of_a_newer_version_is_refused_and_kept(store: SegmentStore) -> None:
    fill(store, 10)
    flat = opened()
    upload(store, flat)
    data, version = flat.provider.get(flat.manifest.key)
    newer = data[:8] + b"\x00\x09" + data[10:]
    flat.provider.compare_and_set(flat.manifest.key, newer, version)
    before = {info.key for info in flat.provider.list()}
    other = CompositeFlatFile(flat.config, SHARD)
    for attempt in (other.acquire, other.refresh, other.upkeep.collect_garbage, other.destroy):
        with pytest.raises(NotSupportedError, match="newer Penstock"):
            attempt()
    assert {info.key for info in flat.provider.list()} == before


def test_a_flipped_bit_anywhere_is_told(store: SegmentStore) -> None:
    fill(store, 12)
    flat = opened(chunk_size=100_000)
    upload(store, flat)
    wanted = store.read(SHARD, 0)
    keys = [info.key for info in flat.provider.list()]
    for key in keys:
        data, _ = flat.provider.get(key)
        for at in range(0, len(data), 3):
            damaged = bytearray(data)
            damaged[at] ^= 1 << at % 8
            flat.provider.delete(key)
            flat.provider.put_if_absent(key, bytes(damaged))
            other = CompositeFlatFile(flat.config, SHARD)
            with pytest.raises((CorruptionError, NotSupportedError)):
                read_all(other)
        flat.provider.delete(key)
        flat.provider.put_if_absent(key, data)
    assert read_all(CompositeFlatFile(flat.config, SHARD)) == wanted


def test_a_stream_of_files_tells_a_flipped_bit_anywhere(
    store: SegmentStore, tmp_path: Path
) -> None:
    fill(store, 90)
    flat = CompositeFlatFile(TierConfig(url=f"file://{tmp_path}/tier", chunk_size=9000), SHARD)
    flat.acquire()
    upload(store, flat)
    paths = sorted((tmp_path / "tier").rglob("*.chunk"))
    assert len(paths) >= 2
    for path in paths:
        data = path.read_bytes()
        for at in range(0, len(data), 97):
            damaged = bytearray(data)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            with pytest.raises((CorruptionError, NotSupportedError)):
                list(flat.reader.stream())
        path.write_bytes(data)
    assert sum(chunk.entry.units for chunk in flat.reader.stream()) == 90


def test_a_configuration_can_be_sent_to_a_worker(store: SegmentStore) -> None:
    config = pickle.loads(pickle.dumps(memory_config()))
    flat = CompositeFlatFile(config, SHARD)
    flat.acquire()
    fill(store, 5)
    upload(store, flat)
    assert len(read_all(flat)) == 5


def test_large_values_cross_parts(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", log_file_size=1 << 22) as store:
        store.create_shard(SHARD)
        for n in range(40):
            store.append(SHARD, Record(bytes([n]) * 30_000, timestamp_ms=n))
        flat = opened(chunk_size=400_000, segment_size=1 << 20)
        upload(store, flat)
        assert read_all(flat, page=7) == store.read(SHARD, 0)


def test_the_units_of_a_chunk_are_derived_once(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived: list[int] = []

    def counted(
        shard: ShardId, kind: QueueKind, data: bytes | bytearray, position: int, offset: int
    ) -> bytes:
        derived.append(len(data))
        return derive_units(shard, kind, data, position, offset)

    monkeypatch.setattr("penstock.tiered.upload.staged_chunks.derive_units", counted)
    fill(store, 100)
    flat = CompositeFlatFile(memory_config(), SHARD)
    flat.acquire()
    upload_shard(store, flat)
    chunks = list(flat.manifest.chunks_from(-1))
    assert derived == [chunk.data_size for chunk in chunks]
    for chunk in chunks:
        data = flat.provider.get(f"{flat.manifest.prefix}{chunk.name}").data
        footer, _ = read_footer(chunk.name, data)
        records = data[: chunk.data_size]
        units = derive_units(SHARD, flat.kind, records, chunk.position, chunk.units_offset)
        assert footer.units == units
