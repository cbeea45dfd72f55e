"""A torn tail: whatever byte the log ends at, exactly the whole appends before it are left."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Record, ShardId
from penstock.testing import FaultyDisk, ManualClock

SETTINGS: Final = SegmentSettings(
    sizes=FileSizes(
        commit_log_file_size=4096,
        consume_queue_file_size=100,
        batch_queue_file_size=138,
        index_slots=4,
        index_entries_max=40,
    ),
    background=False,
)
FIRST: Final = ShardId("orders", 0)
SECOND: Final = ShardId("events", 0)


class Appended(NamedTuple):
    shard: ShardId
    records: list[Record]
    end: int
    """Where the log ended then."""


def write(store: SegmentStore) -> tuple[list[Appended], int]:
    """Append records and groups; return them, and up to where the log is synced."""
    for shard in (FIRST, SECOND):
        store.create_shard(shard)
    done: list[Appended] = []
    durable = 0
    for number in range(9):
        group = [Record(b"%d/%d" % (number, n), key=b"k%d" % n) for n in range(1 + number % 3)]
        shard = FIRST if number % 2 else SECOND
        store.append_many(shard, group)
        done.append(Appended(shard, group, store.bounds(shard).end_position))
        if number == 2:
            store.flush()
            durable = store.bounds(shard).end_position
    return done, durable


def killed_disk() -> tuple[FaultyDisk, list[Appended], int]:
    disk = FaultyDisk(clock=ManualClock())
    store = SegmentStore.open("store", SETTINGS, disk=disk, clock=ManualClock())
    done, durable = write(store)
    disk.kill()
    return disk, done, durable


def read(store: SegmentStore, shard: ShardId) -> list[bytes | None]:
    return [record.value for record in store.read(shard, 0)]


FILLS: Final = pytest.mark.parametrize("fill", [b"\0", b"\xff"], ids=["zeros", "garbage"])


@FILLS
@pytest.mark.timeout(300)
def test_a_cut_keeps_exactly_the_whole_appends(fill: bytes) -> None:
    """Cuts at and around the end of every append, and every 37th byte between."""
    _, done, durable = killed_disk()
    near = {each.end + n for each in done for n in (-1, 0, 1, 4, 8)}
    cuts = near | set(range(durable, done[-1].end, 37))
    check_cuts(sorted(cut for cut in cuts if durable <= cut <= done[-1].end), fill)


@FILLS
@pytest.mark.soak
def test_every_cut_keeps_exactly_the_whole_appends(fill: bytes) -> None:
    _, done, durable = killed_disk()
    check_cuts(list(range(durable, done[-1].end + 1)), fill)


def check_cuts(cuts: list[int], fill: bytes) -> None:
    disk, done, _ = killed_disk()
    end = done[-1].end
    path = "store/commitlog/00000000000000000000"
    assert end < 4096
    for cut in cuts:
        copy = disk.copy()
        file = copy.open(path)
        file.write_at(cut, fill * (end - cut))
        file.close()
        store = SegmentStore.open("store", SETTINGS, disk=copy, clock=ManualClock())
        kept = [each for each in done if each.end <= cut]
        for shard in (FIRST, SECOND):
            expected = [r.value for each in kept if each.shard == shard for r in each.records]
            found = read(store, shard)
            if fill == b"\0":
                assert found == expected, cut
            else:
                # Garbage over a checksum's very name makes a record look like a foreign one, which
                # has none: it may be kept, for all the rest of it is right.
                every = [r.value for each in done if each.shard == shard for r in each.records]
                assert found == every[: len(found)], cut
                assert len(found) >= len(expected), cut
                expected = found
            # The next record takes the place of what was cut, and nothing comes back behind it.
            assert store.append(shard, Record(b"next")) == len(expected), cut
        assert store.report.damaged == []
        store.close()
        again = SegmentStore.open("store", SETTINGS, disk=copy, clock=ManualClock())
        for shard in (FIRST, SECOND):
            assert read(again, shard)[-1] == b"next", cut


def test_a_cut_before_the_durable_point_is_reported_and_not_passed_over() -> None:
    disk, done, durable = killed_disk()
    first = done[0]
    copy = disk.copy()
    file = copy.open("store/commitlog/00000000000000000000")
    file.write_at(first.end - 30, b"\0" * 20)
    file.close()
    store = SegmentStore.open("store", SETTINGS, disk=copy, clock=ManualClock())
    assert store.report.damaged
    assert store.report.end_position >= durable
    later = [r.value for each in done[1:] if each.shard == FIRST for r in each.records]
    assert read(store, FIRST) == later
