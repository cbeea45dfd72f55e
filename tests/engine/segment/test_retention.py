"""What goes by time, size, number, disk space and by hand; floors survive, live records too."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from tests.engine.segment.rig import EVENTS, ORDERS, QUIET, Rig, create, fill, record
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.engine.segment.retention import RetentionPolicy
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError, DiskFullError, SettingsError
from penstock.platform.disk import Usage
from penstock.record import QueueKind, ShardId
from penstock.testing import FaultyDisk, ManualClock, PowerCut

FILE = 8192
HOUR_S = 3600


class Full:
    """A shard with some files of records of about 1 KB, and its model."""

    def __init__(self, settings: SegmentSettings = QUIET, count: int = 40) -> None:
        self.rig = Rig(settings)
        create(self.rig.store)
        self.model = ShardModel()
        self.write(count)

    def write(self, count: int) -> None:
        first = self.model.next_offset
        now = self.rig.clock.now_ms()
        for number in range(first, first + count):
            each = record(number, size=900, key=b"k%d" % (number % 3), tag="t")
            each = msgspec.structs.replace(each, timestamp_ms=now + number)
            self.rig.store.append(ORDERS, each)
            self.model.append([each])

    def keep(self, policy: RetentionPolicy) -> None:
        self.rig.store.retention.set_policy(ORDERS, policy)

    @property
    def files(self) -> int:
        return len(self.rig.disk.list("store/commitlog"))

    def check(self) -> None:
        self.model.floor = int(self.rig.store.bounds(ORDERS).earliest)
        for store in self.rig.lives():
            check_shard(store, ORDERS, self.model)


@pytest.fixture
def full() -> Full:
    return Full()


def test_by_number(full: Full) -> None:
    full.keep(RetentionPolicy(records=10))
    before = full.files
    report = full.rig.store.retention.run()
    assert report.records == 30
    assert full.rig.store.bounds(ORDERS).earliest == 30
    full.rig.store.run_upkeep()
    assert full.files < before
    full.check()


def test_by_size(full: Full) -> None:
    size = len(full.rig.store.read_raw(ORDERS, 0, max_records=1)[0])
    full.keep(RetentionPolicy(size=7 * size + size // 2))
    full.rig.store.run_upkeep()
    assert 32 <= full.rig.store.bounds(ORDERS).earliest <= 33
    full.check()


def test_by_time(full: Full) -> None:
    full.rig.clock.advance(2 * HOUR_S)
    full.write(5)
    full.keep(RetentionPolicy(time_ms=HOUR_S * 1000))
    full.rig.store.run_upkeep()
    assert full.rig.store.bounds(ORDERS).earliest == 40
    full.check()


def test_a_policy_that_keeps_enough_removes_nothing(full: Full) -> None:
    full.keep(RetentionPolicy(records=1_000, size=1 << 30, time_ms=1 << 40))
    before = full.files
    assert full.rig.store.retention.run().records == 0
    assert full.files == before
    full.check()


def test_by_the_stores_own_time(full: Full) -> None:
    full.rig.clock.advance(71 * HOUR_S)
    full.write(3)
    full.rig.store.run_upkeep()
    assert full.rig.store.bounds(ORDERS).earliest == 0
    full.rig.clock.advance(2 * HOUR_S)
    before = full.files
    for _ in range(before):
        full.rig.store.run_upkeep()
    assert full.files < before
    assert 0 < full.rig.store.bounds(ORDERS).earliest <= 40
    full.check()


def test_only_at_its_hour() -> None:
    clock = ManualClock()
    full = Full(msgspec.structs.replace(QUIET, delete_when="04"))
    full.rig.clock.advance(100 * HOUR_S)
    full.write(3)
    hours = []
    for hour in range(24):
        before = full.rig.store.bounds(ORDERS).earliest
        full.rig.store.run_upkeep()
        if full.rig.store.bounds(ORDERS).earliest > before:
            hours.append(hour)
        full.rig.clock.advance(HOUR_S)
    assert len(hours) == 1
    with pytest.raises(SettingsError, match="delete_when"):
        _ = Rig(msgspec.structs.replace(QUIET, delete_when="noon"), clock=clock).store


def test_by_hand(full: Full) -> None:
    before = full.files
    removed = 0
    while full.rig.store.retention.remove_oldest_file():
        removed += 1
    assert removed >= before - 2
    assert full.files >= 1
    full.check()
    full.write(3)
    full.check()


def test_a_file_stays_while_any_shard_has_a_live_record_in_it(full: Full) -> None:
    rig = Rig()
    create(rig.store)
    create(rig.store, EVENTS)
    quiet = ShardModel()
    quiet.append(fill(rig.store, EVENTS, 1))
    for number in range(40):
        rig.store.append(ORDERS, record(number, size=900))
    rig.store.retention.set_policy(ORDERS, RetentionPolicy(records=2))
    before = len(rig.disk.list("store/commitlog"))
    rig.store.run_upkeep()
    assert len(rig.disk.list("store/commitlog")) >= before
    check_shard(rig.store, EVENTS, quiet)
    rig.store.delete_before(EVENTS, 1)
    rig.store.run_upkeep()
    assert len(rig.disk.list("store/commitlog")) < before
    assert [each.offset for each in rig.kill().read(ORDERS, 0)] == [38, 39]
    assert rig.store.append(EVENTS, record(1)) == 1


def test_queue_and_index_files_go_with_the_log(full: Full) -> None:
    def count(directory: str) -> int:
        return len(
            [path for path in full.rig.disk.files() if path.startswith(f"store/{directory}")]
        )

    full.rig.store.run_upkeep()
    queues, sums = count("consumequeue/orders"), count("penstock/sums/consumequeue/orders")
    full.write(60)
    full.rig.store.run_upkeep()
    index = count("index")
    full.keep(RetentionPolicy(records=5))
    full.rig.store.run_upkeep()
    assert count("consumequeue/orders") <= queues
    assert count("penstock/sums/consumequeue/orders") <= sums + 1
    assert count("index") < index
    full.check()


def test_batch_shards_lose_whole_batches_by_retention() -> None:
    rig = Rig()
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    model = ShardModel()
    for number in range(40):
        each = record(number, size=900, key=b"k")
        rig.store.append(EVENTS, each)
        model.append([each])
    rig.store.retention.set_policy(EVENTS, RetentionPolicy(records=10))
    rig.store.run_upkeep()
    model.floor = int(rig.store.bounds(EVENTS).earliest)
    assert model.floor == 30
    for store in rig.lives():
        check_shard(store, EVENTS, model)


def test_an_emptied_shard_goes_on_where_it_was(full: Full) -> None:
    full.keep(RetentionPolicy(records=0))
    full.rig.store.run_upkeep()
    for store in full.rig.lives():
        assert store.bounds(ORDERS).earliest == store.bounds(ORDERS).next == 40
        assert store.read(ORDERS, 0) == []
    full.rig.close()
    full.rig.disk.remove("store/penstock/checkpoint")
    assert full.rig.store.append(ORDERS, record(0)) == 40


def test_floors_are_on_the_device_before_files_go() -> None:
    """A power cut at any moment: what is below a floor may be gone, nothing else is."""
    for call in range(0, 130, 3):
        full = Full(count=24)
        full.rig.store.flush()
        full.rig.store.checkpoint()
        full.keep(RetentionPolicy(records=3))
        full.rig.disk.stop_at_call(call)
        with suppress(PowerCut):
            full.rig.store.run_upkeep()
        store = full.rig.crash(call)
        assert store.report.damaged == []
        full.model.floor = int(store.bounds(ORDERS).earliest)
        check_shard(store, ORDERS, full.model)


def test_a_truncated_shard_stays_cut_when_the_files_before_the_cut_go(full: Full) -> None:
    full.rig.store.truncate(ORDERS, 35)
    full.model.truncate(35)
    full.write(40)
    full.keep(RetentionPolicy(records=20))
    full.rig.store.run_upkeep()
    full.check()
    full.rig.close()
    full.rig.disk.remove("store/penstock/checkpoint")
    full.check()


# A disk that fills up


def small_disk(files: int) -> tuple[Rig, ShardModel]:
    clock = ManualClock()
    disk = FaultyDisk(clock=clock, capacity=files * FILE, page_size=512)
    rig = Rig(QUIET, disk=disk, clock=clock)
    create(rig.store)
    return rig, ShardModel()


def fill_disk(rig: Rig, model: ShardModel, shard: ShardId = ORDERS) -> int:
    """Append until the store refuses; return how many were taken."""
    for number in range(1_000):
        each = record(model.next_offset, size=900, key=b"k")
        try:
            rig.store.append(shard, each)
        except DiskFullError:
            return number
        model.append([each])
    raise AssertionError("the disk never filled up")


def test_the_oldest_goes_at_85_percent() -> None:
    rig, model = small_disk(12)
    for _ in range(90):
        each = record(model.next_offset, size=900, key=b"k")
        rig.store.append(ORDERS, each)
        model.append([each])
        rig.store.run_upkeep()
        assert rig.disk.usage("store").ratio < 0.97
    model.floor = int(rig.store.bounds(ORDERS).earliest)
    assert model.floor > 0
    for store in rig.lives():
        check_shard(store, ORDERS, model)


def test_writes_are_refused_at_90_percent_and_taken_again_when_there_is_room() -> None:
    rig, model = small_disk(20)
    rig.store.retention.set_policy(ORDERS, RetentionPolicy(keep=True))
    model.append(fill(rig.store, ORDERS, 5))
    rig.disk.occupy(int(20 * FILE * 0.85))
    rig.store.retention.run()
    with pytest.raises(DiskFullError, match="90"):
        rig.store.append(ORDERS, record(5))
    with pytest.raises(DiskFullError):
        rig.store.create_shard(EVENTS)
    check_shard(rig.store, ORDERS, model)
    rig.disk.occupy(0)
    rig.store.retention.run()
    model.append(fill(rig.store, ORDERS, 2, first=5))
    create(rig.store, EVENTS)
    check_shard(rig.kill(), ORDERS, model)


class Disks(FaultyDisk):
    """Queues lie on a disk of their own, which is nearly full."""

    full = False

    def usage(self, path: str) -> Usage:
        found = super().usage(path)
        return Usage(100, 95) if self.full and path.endswith("/consumequeue") else found


def test_writes_are_refused_also_when_only_the_disk_of_the_queues_is_full() -> None:
    disk = Disks()
    rig = Rig(disk=disk)
    create(rig.store)
    model = ShardModel()
    model.append(fill(rig.store, ORDERS, 5))
    rig.store.run_upkeep()
    disk.full = True
    rig.store.retention.run()
    with pytest.raises(DiskFullError, match="the disk of store/consumequeue is 95 % full"):
        rig.store.append(ORDERS, record(5))
    check_shard(rig.store, ORDERS, model)
    disk.full = False
    rig.store.retention.run()
    model.append(fill(rig.store, ORDERS, 1, first=5))
    check_shard(rig.store, ORDERS, model)


def test_policies_free_space_on_a_disk_that_takes_no_writes() -> None:
    rig, model = small_disk(16)
    for _ in range(40):
        each = record(model.next_offset, size=900, key=b"k")
        rig.store.append(ORDERS, each)
        model.append([each])
    rig.disk.occupy(8 * FILE)
    rig.store.retention.set_policy(ORDERS, RetentionPolicy(keep=True))
    rig.store.retention.run()
    with pytest.raises(DiskFullError):
        rig.store.append(ORDERS, record(0))
    rig.store.retention.set_policy(ORDERS, RetentionPolicy(records=4, keep=True))
    rig.store.retention.run()
    rig.store.retention.run()
    model.append(fill(rig.store, ORDERS, 1, first=500))
    model.floor = int(rig.store.bounds(ORDERS).earliest)
    assert model.floor >= 36
    check_shard(rig.kill(), ORDERS, model)


def test_a_full_disk_refuses_and_forgets_nothing() -> None:
    rig, model = small_disk(9)
    assert fill_disk(rig, model) > 10
    check_shard(rig.store, ORDERS, model)
    with pytest.raises(DiskFullError):
        rig.store.append(ORDERS, record(0, size=900))
    rig.disk.capacity = 40 * FILE
    model.append(fill(rig.store, ORDERS, 2, first=900))
    for store in rig.lives():
        check_shard(store, ORDERS, model)


def test_retention_never_hides_damage(full: Full) -> None:
    full.rig.store.flush()
    full.rig.store.checkpoint()
    full.rig.close()
    full.rig.disk.flip_bit("store/commitlog/00000000000000008192", 8 * 2_000)
    full.rig.clock.advance(10 * HOUR_S)
    full.keep(RetentionPolicy(time_ms=HOUR_S * 1000))
    full.rig.store.run_upkeep()
    full.rig.store.run_upkeep()
    store = full.rig.store
    lost = next(n for n in range(store.bounds(ORDERS).earliest, 40) if not reads(store, n))
    store.delete_offsets(ORDERS, [lost])
    store.run_upkeep()
    assert store.bounds(ORDERS).earliest == 40, "once somebody has seen it, time goes on"


def reads(store: SegmentStore, offset: int) -> bool:
    with suppress(CorruptionError):
        store.read(ORDERS, offset, max_records=1)
        return True
    return False


def test_a_shard_that_was_cut_and_ends_where_it_did_is_sized_again() -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 10)
    rig.store.retention.set_policy(ORDERS, RetentionPolicy(size=5_000))
    rig.store.retention.run()
    assert rig.store.bounds(ORDERS).earliest == 0
    rig.store.truncate(ORDERS, 5)
    for n in range(5):
        rig.store.append(ORDERS, record(n, size=2_000))
    rig.store.retention.run()
    assert rig.store.bounds(ORDERS).earliest == 8


@pytest.mark.parametrize("moved", [0, 3, 10])
def test_by_size_counts_units_wherever_they_are(moved: int) -> None:
    """In files, in memory, or some here and some there."""
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, moved)
    rig.store._parts.checkpointer.publish()
    for n in range(moved, 12):
        rig.store.append(ORDERS, record(n, size=2_000))
    rig.store.retention.set_policy(ORDERS, RetentionPolicy(size=3_000))
    rig.store.retention.run()
    assert rig.store.bounds(ORDERS).earliest == 11


@pytest.mark.timeout(60)
def test_a_look_for_the_first_record_ends_when_the_shard_is_cut_meanwhile() -> None:
    """It would keep the thread that does the upkeep, for ever."""
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 5)
    log = rig.store._table.get(ORDERS)
    stop = log.next_unit
    rig.store.truncate(ORDERS, 2)
    assert log._record_from(3, stop) == (stop, None)
