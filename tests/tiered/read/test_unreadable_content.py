"""Batches that are whole and that nobody can take apart: in the tier, too, they are no damage."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from tests.codec.kafka_builder import castagnoli, kafka_batch
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.read.test_batch_content import flagged_as_compressed
from tests.tiered.cold_engines import ColdEngine, ColdHarness
from tests.tiered.rig import SHARD, open_store

from penstock.engine.contract import AdapterOffsetStrategy, Cleanup, ShardConfig, ShardTiering
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError, UnreadableContentError
from penstock.record import Offset, QueueKind, Record, ShardId, StoredRecord
from penstock.tiered.admin import pull_shard
from penstock.tiered.chunk.chunk import ChunkEntry, ChunkRange, Footer, build_chunk, derive_units
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.compaction import rewrite_segments
from penstock.tiered.maintenance.scrubber import ScrubReport, verify_shard
from penstock.tiered.rocketmq.tier import RocketMqTier
from penstock.tiered.upload.dispatcher import upload_shard

EVENTS: Final = ShardId("events", 0)
COUNT: Final = 10
BEFORE: Final = [Record(b"b%d" % n, key=b"k", tags=("t",), timestamp_ms=5) for n in range(3)]
FIRST: Final = 3
"""The offset of the batch that nobody can take apart, between two others."""
BEHIND: Final = FIRST + COUNT
AFTER: Final = [Record(b"a%d" % n, key=b"k", tags=("t",), timestamp_ms=9) for n in range(2)]
END: Final = BEHIND + len(AFTER)
VALUES: Final = [record.value for record in BEFORE + AFTER]


def nonsense(count: int) -> bytes:
    """Return a Kafka batch with a good checksum and no messages inside, as nobody checks it on the
    way in."""
    batch = kafka_batch([Record(b"x" * 20)], last_delta=count - 1)
    checked = batch[21:61] + b"\xff" * (len(batch) - 61)
    return batch[:17] + struct.pack(">I", castagnoli(checked)) + checked


BODIES: Final = {"opaque": b"any opaque bytes", "kafka": nonsense(COUNT)}


@pytest.fixture(params=BODIES)
def body(request: pytest.FixtureRequest) -> bytes:
    return BODIES[request.param]


def append(store: SegmentStore, body: bytes, shard: ShardId = EVENTS) -> None:
    """Append a batch as brokers do: of one in Kafka's form they check no more than its sum."""
    if body == BODIES["kafka"]:
        store.kafka.append(shard, body, COUNT, 7, None, None)
    else:
        store.append_batch(shard, body, COUNT, born_ms=7)


def fill(store: SegmentStore, body: bytes) -> None:
    store.append_batch(EVENTS, inner_batch(BEFORE), len(BEFORE), born_ms=5)
    append(store, body)
    store.append_batch(EVENTS, inner_batch(AFTER), len(AFTER), born_ms=9)
    assert store.bounds(EVENTS).commit == END


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ColdEngine]:
    with closing(ColdHarness(tmp_path).make()) as found:
        assert isinstance(found, ColdEngine)
        found.create_shard(EVENTS, ShardConfig(kind=QueueKind.BATCH, cleanup=Cleanup.COMPACT))
        yield found


@pytest.fixture
def cold(engine: ColdEngine, body: bytes) -> ColdEngine:
    """An engine of which only the tier holds the batches."""
    fill(engine.store, body)
    engine.chill(EVENTS)
    assert engine.store.bounds(EVENTS).earliest == END
    return engine


def flat_of(engine: ColdEngine) -> CompositeFlatFile:
    flat = engine.tiers.flat(EVENTS)
    assert flat is not None
    return flat


def only_chunk(flat: CompositeFlatFile) -> tuple[ChunkEntry, Footer, bytes]:
    found = [(one.entry, one.footer, bytes(one.data)) for one in flat.reader.stream()]
    assert len(found) == 1
    entry, footer, data = found[0]
    return entry, footer, data[: entry.data_size]


def values(records: Sequence[StoredRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def is_unhurt(engine: ColdEngine) -> bool:
    report = ScrubReport()
    verify_shard(flat_of(engine), report)
    assert report.records == len(VALUES)
    return report.damage == []


# Uploads


def test_uploads_go_on_behind_content_that_nobody_can_take_apart(
    engine: ColdEngine, body: bytes
) -> None:
    for _ in range(3):
        append(engine.store, body)
    assert engine.upload_now().failed == {}
    engine.store.append_batch(EVENTS, inner_batch(AFTER), len(AFTER), born_ms=9)
    assert engine.upload_now().failed == {}
    assert engine.dispatcher.keep_from(EVENTS) == 3 * COUNT + len(AFTER)


def test_the_log_is_freed_of_what_nobody_can_take_apart(engine: ColdEngine, body: bytes) -> None:
    fill(engine.store, body)
    tiering = ShardTiering(local_retention_bytes=0)
    config = ShardConfig(kind=QueueKind.BATCH, retention_ms=1 << 50, tiering=tiering)
    engine.alter_shard(EVENTS, config)
    engine.upload_now()
    engine.apply_retention(EVENTS)
    assert engine.store.bounds(EVENTS).earliest == END


def test_bytes_and_units_of_a_chunk_are_those_of_the_log(engine: ColdEngine, body: bytes) -> None:
    fill(engine.store, body)
    engine.dispatcher.upload(EVENTS)
    entry, footer, data = only_chunk(flat_of(engine))
    assert footer.units == derive_units(EVENTS, QueueKind.BATCH, data, entry.position, 0)
    assert (entry.units, entry.min_ms, entry.max_ms) == (3, 5, 9)
    assert footer.units_of_key(b"k") == [2, 0]
    assert entry.may_hold_key(b"k")
    assert not entry.may_hold_key(b"another")


@pytest.mark.parametrize("where", ["before", "inside", "behind"])
def test_damage_beside_content_that_nobody_can_take_apart_is_refused(
    engine: ColdEngine, body: bytes, where: str
) -> None:
    fill(engine.store, body)
    engine.dispatcher.upload(EVENTS)
    entry, footer, good = only_chunk(flat_of(engine))
    place = ChunkRange(0, END, entry.position, 1, 0)
    build_chunk(EVENTS, QueueKind.BATCH, "x", good, footer.units, place)
    data = bytearray(good)
    data[good.index({"before": b"b1", "inside": body[-8:], "behind": b"a1"}[where])] ^= 1
    with pytest.raises(CorruptionError, match="events_0"):
        build_chunk(EVENTS, QueueKind.BATCH, "x", bytes(data), footer.units, place)


def test_a_unit_that_speaks_of_another_batch_is_damage(engine: ColdEngine, body: bytes) -> None:
    fill(engine.store, body)
    engine.dispatcher.upload(EVENTS)
    entry, footer, data = only_chunk(flat_of(engine))
    units = bytearray(footer.units)
    units[46 + 37] ^= 1  # the count of messages
    place = ChunkRange(0, END, entry.position, 1, 0)
    with pytest.raises(CorruptionError):
        build_chunk(EVENTS, QueueKind.BATCH, "x", data, bytes(units), place)


def test_keys_are_found_among_many_batches_that_nobody_can_take_apart(engine: ColdEngine) -> None:
    opaque = BODIES["opaque"]
    for _ in range(30):
        for _ in range(30):
            append(engine.store, opaque)
        engine.store.append_batch(EVENTS, inner_batch(AFTER), len(AFTER))
    engine.chill(EVENTS)
    assert len(engine.query_by_key(EVENTS, b"k", limit=100)) == 30 * len(AFTER)


# Reads


def test_cold_raw_reads_return_what_nobody_can_take_apart(cold: ColdEngine, body: bytes) -> None:
    found = cold.read_raw(EVENTS, 0, max_records=10, max_size=1 << 20)
    assert len(found) == 3
    assert body[-8:] in found[1]
    (one,) = cold.read_raw(EVENTS, FIRST + 4, max_records=1, max_size=1 << 20)
    assert one == found[1]


def test_kafka_gets_its_cold_batch_as_it_came(engine: ColdEngine) -> None:
    append(engine.store, BODIES["kafka"])
    engine.chill(EVENTS)
    page = engine.read_batches(EVENTS, 0, COUNT, 1 << 20)
    assert page.next_offset == COUNT
    assert bytes(page.parts[0])[16:] == BODIES["kafka"][16:]


def test_cold_reads_of_records_say_where_to_go_on(cold: ColdEngine) -> None:
    assert values(cold.read_by_offset(EVENTS, Offset(0))) == VALUES[:3]
    assert values(cold.read_by_offset(EVENTS, Offset(BEHIND))) == VALUES[3:]
    for offset in (FIRST, FIRST + 4):
        with pytest.raises(UnreadableContentError, match="continue at offset 13") as caught:
            cold.read_by_offset(EVENTS, Offset(offset))
        error = caught.value
        assert (error.offset, error.next_offset, error.timestamp_ms) == (FIRST, BEHIND, 7)
    assert is_unhurt(cold)


def test_cold_records_are_read_before_content_of_the_log_that_nobody_can_take_apart(
    engine: ColdEngine, body: bytes
) -> None:
    fill(engine.store, body)
    engine.dispatcher.upload(EVENTS)
    engine.store.delete_before(EVENTS, FIRST)
    assert values(engine.read_by_offset(EVENTS, Offset(0))) == VALUES[:3]
    with pytest.raises(UnreadableContentError, match="continue at offset 13"):
        engine.read_by_offset(EVENTS, Offset(FIRST))


def test_keys_tags_and_times_are_found_around_it(cold: ColdEngine) -> None:
    newest_first = [*reversed(VALUES[3:]), *reversed(VALUES[:3])]
    assert values(cold.query_by_key(EVENTS, b"k")) == newest_first
    assert values(cold.read_by_tag(EVENTS, "t")) == VALUES
    assert values(cold.read_by_tag(EVENTS, "t", start_offset=Offset(FIRST + 1))) == VALUES[3:]
    times = [
        cold.get_offset_by_timestamp(EVENTS, at, AdapterOffsetStrategy.LATEST)
        for at in (5, 6, 8, 10)
    ]
    assert times == [0, FIRST, BEHIND, END]


def test_what_was_deleted_is_in_nobodys_way(cold: ColdEngine) -> None:
    flat = flat_of(cold)
    flat.upkeep.delete_ranges([(FIRST, BEHIND - 1)])
    with pytest.raises(UnreadableContentError):
        cold.read_by_offset(EVENTS, Offset(FIRST))
    flat.upkeep.delete_ranges([(BEHIND - 1, BEHIND)])
    assert values(cold.read_by_offset(EVENTS, Offset(FIRST))) == VALUES[3:]
    assert values(cold.read_by_offset(EVENTS, Offset(0))) == VALUES


def test_where_batches_were_removed_behind_it_reads_go_on(engine: ColdEngine, body: bytes) -> None:
    append(engine.store, body)
    engine.store.append_batch(EVENTS, inner_batch(BEFORE), len(BEFORE))
    engine.store.append_batch(EVENTS, inner_batch(AFTER), len(AFTER))
    engine.chill(EVENTS)
    flat = flat_of(engine)
    flat.upkeep.delete_ranges([(COUNT, COUNT + len(BEFORE))])
    flat.upkeep.seal(only_if_due=False)
    assert rewrite_segments(flat, dead_ratio=0.1).size > 0
    for offset in range(COUNT, COUNT + len(BEFORE)):
        assert values(engine.read_by_offset(EVENTS, Offset(offset))) == VALUES[3:]
        (raw,) = engine.read_raw(EVENTS, offset, max_records=9, max_size=1 << 20)
        assert b"a1" in raw
    assert values(engine.read_by_tag(EVENTS, "t")) == VALUES[3:]


@pytest.mark.parametrize("log_start", [0, FIRST, END])
def test_compaction_passes_over_it_in_log_and_tier(
    engine: ColdEngine, body: bytes, log_start: int
) -> None:
    fill(engine.store, body)
    engine.dispatcher.upload(EVENTS)
    engine.store.delete_before(EVENTS, log_start)
    assert engine.compact(EVENTS).records == len(VALUES) - 1
    assert values(engine.query_by_key(EVENTS, b"k")) == VALUES[-1:]
    with pytest.raises(UnreadableContentError):
        engine.read_by_offset(EVENTS, Offset(FIRST))


def test_a_pulled_copy_lacks_it_and_a_warning_says_so(
    body: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TierConfig(url=f"file://{tmp_path}/tier")
    with open_store(tmp_path / "store") as store:
        store.create_shard(EVENTS, QueueKind.BATCH)
        fill(store, body)
        flat = CompositeFlatFile(config, EVENTS, QueueKind.BATCH)
        flat.acquire()
        upload_shard(store, flat)
    assert pull_shard(config, EVENTS, str(tmp_path / "copy")) == len(VALUES)
    assert "content_passed_over" in caplog.text
    with ReadOnlyStore.open(str(tmp_path / "copy")) as view:
        assert [one.offset for one in view.read(EVENTS, 0)] == [0, 1, 2, 13, 14]


# Records of simple queues


@pytest.fixture
def compressed(tmp_path: Path) -> Iterator[SegmentStore]:
    """A store whose second record does not decompress, although its flags say so."""
    with open_store(tmp_path / "source") as source, open_store(tmp_path / "store") as store:
        source.create_shard(SHARD)
        store.create_shard(SHARD)
        for value in (b"good", b"\x78\x9c none", b"too"):
            source.append(SHARD, Record(value, key=b"k", timestamp_ms=5))
        first, second, third = source.read_raw(SHARD, 0)
        for record in (first, flagged_as_compressed(second), third):
            store.append_encoded(SHARD, record)
        yield store


def test_a_record_that_does_not_decompress_is_no_damage_in_a_tier(
    compressed: SegmentStore, tmp_path: Path
) -> None:
    flat = CompositeFlatFile(TierConfig(url=f"file://{tmp_path}/tier"), SHARD)
    flat.acquire()
    upload_shard(compressed, flat)
    reader = flat.reader
    assert values([*reader.by_key(b"k")]) == [b"too", b"good"]
    entry, footer, _ = only_chunk(flat)
    assert footer.units_of_key(b"k") == [2, 0]
    assert (entry.min_ms, entry.max_ms) == (5, 5)
    report = ScrubReport()
    verify_shard(flat, report)
    assert (report.records, report.damage) == (2, [])


def test_a_record_that_does_not_decompress_is_no_damage_in_rocketmqs_layout(
    compressed: SegmentStore, tmp_path: Path
) -> None:
    tier = RocketMqTier(f"rocketmq+file://{tmp_path}/tier", broker="broker-a")
    queue = tier.queue(SHARD)
    for record in compressed.read_raw(SHARD, 0):
        queue.append(record)
    queue.commit()
    assert values(queue.read(0)) == [b"good"]
    with pytest.raises(UnreadableContentError, match="continue at offset 2"):
        queue.read(1)
    assert values(queue.read(2)) == [b"too"]
