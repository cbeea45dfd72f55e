"""Batches that are not what they are said to be: refused, or kept as they are and never damage."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

import pytest
from tests.codec.kafka_builder import kafka_batch
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import EVENTS, ORDERS, Rig, create

from penstock.codec import format as fmt
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.retention import RetentionPolicy
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, CorruptionError, UnreadableContentError
from penstock.record import QueueKind, Record, ShardId, StoredRecord

OPAQUE: Final = b"any opaque bytes"
BEFORE: Final = [Record(b"b%d" % n, key=b"k", tags=("t",), timestamp_ms=5) for n in range(3)]
FIRST: Final = 3
"""The offset of the opaque batch, of 10 messages, between two others."""
BEHIND: Final = 13
AFTER: Final = [Record(b"a%d" % n, key=b"k", tags=("t",), timestamp_ms=9) for n in range(2)]
VALUES: Final = [record.value for record in BEFORE + AFTER]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    yield rig
    rig.close()


@pytest.fixture
def mixed(rig: Rig) -> Rig:
    rig.store.append_batch(EVENTS, inner_batch(BEFORE), 3, born_ms=5)
    assert rig.store.append_batch(EVENTS, OPAQUE, 10, born_ms=7) == FIRST
    assert rig.store.append_batch(EVENTS, inner_batch(AFTER), 2, born_ms=9) == BEHIND
    return rig


def values(records: Sequence[StoredRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def is_unhurt(store: SegmentStore) -> bool:
    metrics = store.metrics
    counts = [
        next(iter(each.collect())).samples[0].value
        for each in (metrics.rebuilt_files, metrics.damaged_reads)
    ]
    return counts == [0, 0] and not store.report.damaged


def test_an_opaque_batch_is_read_raw_and_never_taken_for_damage(mixed: Rig) -> None:
    for store in mixed.lives():
        raw = store.read_raw(EVENTS, FIRST, max_records=1)
        assert len(raw) == 1
        assert OPAQUE in raw[0]
        assert len(store.read_raw(EVENTS, 0)) == 3
        for offset in (FIRST, FIRST + 4):
            with pytest.raises(UnreadableContentError, match="continue at offset 13") as caught:
                store.read(EVENTS, offset)
            assert (caught.value.offset, caught.value.next_offset) == (FIRST, BEHIND)
        with pytest.raises(UnreadableContentError):
            list(store.read_arrow(EVENTS, FIRST))
        assert is_unhurt(store)


def test_what_lies_around_an_opaque_batch_is_read(mixed: Rig) -> None:
    for store in mixed.lives():
        page = store.read_page(EVENTS, 0)
        assert (values(page.records), page.next_offset) == (VALUES[:3], FIRST)
        assert values(store.read(EVENTS, BEHIND)) == VALUES[3:]
        rows = [row for batch in store.read_arrow(EVENTS, 0, until=FIRST) for row in batch["value"]]
        assert [row.as_py() for row in rows] == VALUES[:3]


def test_keys_tags_and_times_are_found_around_an_opaque_batch(mixed: Rig) -> None:
    for store in mixed.lives():
        for indexed in (False, True):
            if indexed:
                store.run_upkeep()
            assert values(store.query_by_key(EVENTS, b"k")) == [
                *reversed(VALUES[3:]),
                *reversed(VALUES[:3]),
            ]
            assert values(store.read_page(EVENTS, FIRST, tag="t").records) == VALUES[3:]
            rows = [row for batch in store.read_arrow(EVENTS, 0, tag="t") for row in batch["value"]]
            assert [row.as_py() for row in rows] == VALUES
            times = [store.offset_by_timestamp(EVENTS, at) for at in (5, 6, 8, 10)]
            assert times == [0, FIRST, BEHIND, None]
        assert is_unhurt(store)


class Collector:
    name: Final = "collector"

    def __init__(self) -> None:
        self.seen: list[bytes | None] = []

    def dispatch(self, shard: ShardId, records: Sequence[StoredRecord]) -> None:
        assert shard == EVENTS
        self.seen += values(records)


def test_dispatchers_pass_over_an_opaque_batch(mixed: Rig) -> None:
    collector = Collector()
    mixed.store.dispatch.register(collector)
    mixed.store.run_upkeep()
    assert collector.seen == VALUES
    assert is_unhurt(mixed.store)


def test_an_opaque_batch_that_was_deleted_is_in_nobodys_way(mixed: Rig) -> None:
    mixed.store.delete_offsets(EVENTS, range(FIRST, BEHIND))
    for store in mixed.lives():
        assert values(store.read(EVENTS, FIRST)) == VALUES[3:]
        assert values(store.read(EVENTS, 0)) == VALUES[:3]


def test_retention_keeps_an_opaque_batch_as_long_as_others(mixed: Rig) -> None:
    now = mixed.clock.now_ms()
    mixed.store.retention.set_policy(EVENTS, RetentionPolicy(time_ms=now - 6))
    mixed.store.retention.run()
    assert mixed.store.bounds(EVENTS).earliest == FIRST
    mixed.store.retention.set_policy(EVENTS, RetentionPolicy(time_ms=now - 8))
    mixed.store.retention.run()
    assert mixed.store.bounds(EVENTS).earliest == BEHIND


def test_a_readonly_store_knows_an_opaque_batch_from_damage(mixed: Rig) -> None:
    mixed.close()
    view = ReadOnlyStore.open(mixed.root, disk=mixed.disk, clock=mixed.clock)
    with pytest.raises(UnreadableContentError, match="continue at offset 13"):
        view.read(EVENTS, FIRST)
    assert values(list(view.by_key(EVENTS, b"k"))) == [*reversed(VALUES[3:]), *reversed(VALUES[:3])]
    assert len(view.read_raw(EVENTS, 0)) == 3


def test_a_damaged_opaque_batch_is_damage(mixed: Rig) -> None:
    mixed.close()
    path = f"{mixed.root}/commitlog/{0:020d}"
    with closing(mixed.disk.open(path)) as file:
        file.write_at(file.read_at(0, 8192).index(OPAQUE) + 3, b"\xff")
    with pytest.raises(CorruptionError):
        mixed.store.read(EVENTS, FIRST)


def cut_short(body: bytes) -> bytes:
    return body[:-1]


@pytest.mark.parametrize("change", [cut_short, lambda body: body + b"more", lambda _: b""])
def test_rocketmqs_form_must_be_messages_to_its_end(
    rig: Rig, change: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(BadRequestError):
        rig.store.append_batch(EVENTS, change(inner_batch(BEFORE)), 3)
    assert rig.store.bounds(EVENTS).next == 0


@pytest.mark.parametrize("count", [1, 2, 4, 32_767])
def test_a_count_that_the_batch_does_not_hold_is_refused(rig: Rig, count: int) -> None:
    with pytest.raises(BadRequestError, match=f"said to hold {count} messages, but holds 3"):
        rig.store.append_batch(EVENTS, inner_batch(BEFORE), count)
    with pytest.raises(BadRequestError, match=f"said to hold {count} messages, but holds 3"):
        rig.store.append_batch(EVENTS, kafka_batch(BEFORE), count, kafka=True)
    assert rig.store.bounds(EVENTS).next == 0


def test_what_is_no_kafka_batch_is_refused_as_one(rig: Rig) -> None:
    good = kafka_batch(BEFORE)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    for bad in (b"not a kafka batch at all" * 5, cut_short(good), bytes(flipped), good + b"x", b""):
        with pytest.raises(BadRequestError, match=r"no (Kafka|inner) batch"):
            rig.store.append_batch(EVENTS, bad, 3, kafka=True)
    assert rig.store.bounds(EVENTS).next == 0
    assert rig.store.append_batch(EVENTS, good * 2, 6, kafka=True) == 0
    assert values(rig.store.read(EVENTS, 0)) == VALUES[:3] * 2


def test_what_is_no_bytes_is_refused(rig: Rig) -> None:
    with pytest.raises(BadRequestError, match="bytes, not str"):
        rig.store.append_batch(EVENTS, "text", 1)  # type: ignore[arg-type] # on purpose


def test_a_body_that_does_not_decompress_is_no_damage() -> None:
    """As a faulty client of RocketMQ sends it: flagged as zlib, beginning like it, but none."""
    rig, source = Rig(), Rig()
    create(source.store)
    for record in (Record(b"\x78\x9c none", key=b"k"), Record(b"good")):
        source.store.append(ORDERS, record)
    (first, second) = source.store.read_raw(ORDERS, 0)
    create(rig.store)
    rig.store.append_encoded(ORDERS, flagged_as_compressed(first))
    rig.store.append_encoded(ORDERS, second)
    for store in rig.lives():
        with pytest.raises(UnreadableContentError, match="continue at offset 1"):
            store.read(ORDERS, 0)
        with pytest.raises(UnreadableContentError):
            store.read(ORDERS, 0, max_records=1)
        assert values(store.read(ORDERS, 1)) == [b"good"]
        assert store.newest_by_key(ORDERS, b"k") is None
        assert len(store.read_raw(ORDERS, 0)) == 2
        assert is_unhurt(store)


def flagged_as_compressed(record: bytes) -> bytes:
    at = fmt.RECORD_HEAD.position_of("sys_flag")
    flags = struct.pack(">i", fmt.FLAG_COMPRESSED | 3 << 8)
    head = record[:at] + flags + record[at + 4 : -20]
    digits = f"{zlib.crc32(head) & 0x7FFFFFFF:010d}"[::-1]
    return head + b"__CRC32#\x01" + digits.encode() + b"\x02"
