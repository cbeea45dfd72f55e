"""The getters of `CompositeAccess` keep to the bounds, return no deleted message, and never make
their caller wait; appends take no record of another queue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, fill, memory_config, open_store, record, upload

from penstock.codec.format import BATCH_UNIT, PRE_BLANK, QUEUE_UNIT
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, BusyError, ClosedError
from penstock.record import QueueKind, ShardId
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.read.async_reads import AsyncReads
from penstock.tiered.rocketmq.append_result import AppendResult, BoundaryType

OTHER = ShardId("orders", 1)
BORN_MS = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        yield store


@pytest.fixture
def flat(store: SegmentStore) -> CompositeFlatFile:
    """Offsets [50, 200), of which 130 to 134 were deleted and those below 120 cut off."""
    fill(store, 200)
    flat = CompositeFlatFile(memory_config(), SHARD)
    flat.acquire()
    flat.init_offset(50)
    upload(store, flat)
    flat.upkeep.truncate_before(120)
    flat.upkeep.delete_ranges([(130, 135)])
    return flat


def unit_of(flat: CompositeFlatFile, offset: int) -> tuple[int, int]:
    unit = flat.get_consume_queue_async(offset).result(60)
    position, size, _ = QUEUE_UNIT.unpack(unit)
    return position, size


def test_a_message_below_the_start_or_deleted_is_refused(flat: CompositeFlatFile) -> None:
    for offset in (-1, 0, 10, 50, 60, 119, 200, 1 << 40):
        with pytest.raises(BadRequestError, match=r"\[120, 200\)"):
            flat.get_message_async(offset).result(60)
        with pytest.raises(BadRequestError, match=r"\[120, 200\)"):
            flat.get_consume_queue_async(offset, 3).result(60)
    for offset in range(130, 135):
        with pytest.raises(BadRequestError, match="deleted"):
            flat.get_message_async(offset).result(60)
    for offset in (120, 129, 135, 199):
        assert f"value {offset} ".encode() in flat.get_message_async(offset).result(60)


def test_units_are_one_for_each_offset_and_empty_where_nothing_is(
    store: SegmentStore, flat: CompositeFlatFile
) -> None:
    units = flat.get_consume_queue_async(125, 1000).result(60)
    found = [units[at : at + QUEUE_UNIT.size] for at in range(0, len(units), QUEUE_UNIT.size)]
    assert len(found) == 75, "as many as there are"
    blank = {125 + n for n, unit in enumerate(found) if unit == PRE_BLANK}
    assert blank == set(range(130, 135))
    for n, unit in enumerate(found):
        if 125 + n not in blank:
            position, size, _ = QUEUE_UNIT.unpack(unit)
            whole = flat.get_commit_log_async(position, size).result(60)
            assert whole == flat.get_message_async(125 + n).result(60)
    for count in (0, -1):
        with pytest.raises(BadRequestError, match="count"):
            flat.get_consume_queue_async(125, count).result(60)


def test_a_hole_between_chunks_has_empty_units(store: SegmentStore) -> None:
    fill(store, 20)
    for first in range(20, 6020, 100):
        store.append_many(SHARD, [record(n) for n in range(first, first + 100)])
    store.delete_offsets(SHARD, range(10, 6000))
    flat = CompositeFlatFile(memory_config(), SHARD)
    flat.acquire()
    upload(store, flat)
    units = flat.get_consume_queue_async(5, 6000).result(60)
    assert len(units) == 6000 * QUEUE_UNIT.size
    live = {
        5 + n
        for n in range(6000)
        if units[n * QUEUE_UNIT.size : (n + 1) * QUEUE_UNIT.size] != PRE_BLANK
    }
    assert live == {*range(5, 10), *range(6000, 6005)}


def test_bytes_of_dead_messages_do_not_leave_the_commit_log(flat: CompositeFlatFile) -> None:
    first, _ = unit_of(flat, 125)
    last, size = unit_of(flat, 140)
    whole = flat.get_commit_log_async(first, last + size - first).result(60)
    assert b"value 129 " in whole
    assert b"value 135 " in whole
    assert not any(f"value {n} ".encode() in whole for n in range(130, 135))
    assert len(whole) == last + size - first
    after_129 = sum(unit_of(flat, 129))
    dead = unit_of(flat, 135)[0] - after_129
    with pytest.raises(BadRequestError, match="no live message"):
        flat.get_commit_log_async(after_129, dead).result(60)
    with pytest.raises(BadRequestError, match="no live message"):
        flat.get_commit_log_async(unit_of(flat, 120)[0] - 50, 50).result(60)
    for length in (0, -1, 1 << 40):
        with pytest.raises(BadRequestError, match="length"):
            flat.get_commit_log_async(first, length).result(60)


def test_the_upper_boundary_of_a_time_is_a_message_that_is_there(flat: CompositeFlatFile) -> None:
    found = flat.get_offset_in_consume_queue_by_time(BORN_MS + 132_000, BoundaryType.UPPER)
    assert found == 129
    assert flat.get_offset_in_consume_queue_by_time(0, BoundaryType.UPPER) == 120
    assert flat.get_offset_in_consume_queue_by_time(1 << 50, BoundaryType.UPPER) == 199


def test_units_of_batches_leave_out_what_is_deleted(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD, QueueKind.BATCH)
        for first in range(0, 60, 10):
            store.append_many(SHARD, [record(n) for n in range(first, first + 10)])
        flat = CompositeFlatFile(memory_config(), SHARD, QueueKind.BATCH)
        flat.acquire()
        upload(store, flat)
        flat.upkeep.truncate_before(15)
        flat.upkeep.delete_ranges([(20, 30), (35, 36)])
        units = flat.get_consume_queue_async(15, 100).result(60)
        bases = [
            BATCH_UNIT.unpack_from(units, at)[4] for at in range(0, len(units), BATCH_UNIT.size)
        ]
        # Records that are appended by themselves are batches of one.
        assert bases == [*range(15, 20), *range(30, 35), *range(36, 60)]
        with pytest.raises(BadRequestError, match="deleted"):
            flat.get_message_async(35).result(60)
        assert b"value 36 " in flat.get_message_async(36).result(60)


class StandingStill(MemoryProvider):
    """Answers no request for bytes before it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.goes_on = threading.Event()
        self.asked = 0

    def get_range(self, key: str, start: int, size: int) -> bytes:
        self.asked += 1
        assert self.goes_on.wait(60)
        return super().get_range(key, start, size)


def test_getters_return_before_the_tier_answers_and_can_be_cancelled(
    store: SegmentStore, flat: CompositeFlatFile
) -> None:
    slow = StandingStill(flat.config.url.removeprefix("memory://"))
    other = CompositeFlatFile(flat.config, SHARD, provider=slow)
    first = other.get_message_async(150)
    futures = [other.get_message_async(150 + n) for n in range(40)]
    assert not first.done()
    assert not any(future.done() for future in futures)
    assert all(future.cancel() for future in futures), "also those under way"
    with pytest.raises(CancelledError):
        futures[0].result(1)
    asked = slow.asked
    slow.goes_on.set()
    assert b"value 150 " in first.result(60)
    assert slow.asked <= asked + 2, "what was cancelled before it began asks for nothing"
    other.fetcher.close()
    with pytest.raises(ClosedError):
        other.get_message_async(150).result(60)


def test_open_reads_are_bounded_and_end_when_the_pool_is_closed() -> None:
    reads = AsyncReads(threads=1, pending_max=3)
    goes_on = threading.Event()
    open_reads = [reads.submit(lambda _: goes_on.wait(60)) for _ in range(3)]
    with pytest.raises(BusyError, match="3 reads"):
        reads.submit(lambda _: True).result(60)
    reads.close()
    for future in open_reads:
        with pytest.raises(ClosedError):
            future.result(60)
    goes_on.set()


def test_records_of_another_queue_are_refused_and_nothing_is_appended(
    store: SegmentStore,
) -> None:
    fill(store, 10)
    store.create_shard(OTHER)
    store.create_shard(ShardId("others", 0))
    for n in range(10):
        store.append(OTHER, record(n))
        store.append(ShardId("others", 0), record(n))
    own = store.read_raw(SHARD, 0)
    flat = CompositeFlatFile(memory_config(), SHARD)
    flat.acquire()
    for stranger in (OTHER, ShardId("others", 0)):
        foreign = store.read_raw(stranger, 0)
        assert flat.append(foreign[0]) is AppendResult.WRONG_QUEUE
        assert flat.append_commit_log(foreign[0]) is AppendResult.WRONG_QUEUE
        assert flat.append_many(foreign) == 0
        assert flat.append_range(b"".join(foreign)) == 0
        assert flat.append_many([*own[:3], foreign[3], *own[4:]]) == 3, "up to the first of them"
        flat.reset()
    assert flat.dispatch_offset == 0
    flat.commit(sync=True)
    assert flat.commit_offset == 0
    assert flat.append(own[0]) is AppendResult.SUCCESS
    assert flat.append(own[0]) is AppendResult.OFFSET_INCORRECT
    flat.shutdown()
    with pytest.raises(ClosedError):
        flat.get_message_async(0).result(60)
