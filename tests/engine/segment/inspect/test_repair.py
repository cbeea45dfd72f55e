"""A log that lacks bytes which were on the device: refused, listed, and repaired when told to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import EVENTS, ORDERS, QUIET, SIZES, Rig, create, record

from penstock.engine.segment.inspect import RepairReport, rebuild, repair, verify
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError, LockedError, NotAStoreError
from penstock.record import QueueKind, ShardId
from penstock.testing import PowerCut

FILE = SIZES.commit_log_file_size
LOG = "store/commitlog/"
COUNT = 60
BATCHES = (5, 3, 7, 4)


class Written:
    """A store of several files, with a simple shard, a batch shard, and one that ends early."""

    def __init__(self, *, clean: bool, publish: bool = True) -> None:
        self.rig = Rig()
        self.clean = clean
        store = self.rig.store
        early = ShardId("early", 0)
        create(store)
        create(store, early)
        create(store, EVENTS, kind=QueueKind.BATCH)
        self.positions: dict[ShardId, dict[int, tuple[int, int]]] = {}
        """Of each shard: offset -> (start, end) in the log."""
        for number in range(COUNT):
            self._put(ORDERS, partial(store.append, ORDERS, record(number, size=350)))
            if number < 20:
                self._put(early, partial(store.append, early, record(number)))
            if number % 15 == 5:
                count = BATCHES[number // 15]
                body = inner_batch([record(1000 * number + n) for n in range(count)])
                self._put(EVENTS, partial(store.append_batch, EVENTS, body, count), count)
            if number == COUNT - 12:
                store.run_upkeep()
        store.flush()
        self.end = int(store.bounds(ORDERS).end_position)
        if publish:  # as the background does a few times a second
            store._parts.checkpointer.publish()
        if clean:
            self.rig.close()
        else:
            self.rig.abandon()
            self.rig.disk.kill()

    def _put(self, shard: ShardId, append: Callable[[], int], count: int = 1) -> None:
        store = self.rig.store
        start = int(store.bounds(shard).end_position)
        first = append()
        end = int(store.bounds(shard).end_position)
        start = start if start // FILE == (end - 1) // FILE else end - end % FILE
        for offset in range(first, first + count):
            self.positions.setdefault(shard, {})[offset] = (start, end)

    def lost(self, start: int, stop: int) -> dict[ShardId, set[int]]:
        """Return the offsets of the records that need a byte of [start, stop)."""
        return {
            shard: {n for n, (low, high) in places.items() if low < stop and start < high}
            for shard, places in self.positions.items()
        }


@pytest.fixture(scope="module", params=["closed", "killed"])
def written(request: pytest.FixtureRequest) -> Written:
    return Written(clean=request.param == "closed")


def mend(rig: Rig, *, apply: bool = False) -> RepairReport:
    return repair("store", apply=apply, disk=rig.disk, clock=rig.clock, settings=QUIET)


def name(base: int) -> str:
    return f"{LOG}{base:020}"


def listed(report: RepairReport) -> dict[ShardId, set[int]]:
    found: dict[ShardId, set[int]] = {}
    for each in report.lost:
        if not each.is_control:
            offsets = set(range(each.first, each.end))
            assert each.records == len(offsets)
            found.setdefault(ShardId(each.topic, each.partition), set()).update(offsets)
    return found


def check_opened(
    rig: Rig, written: Written, lost: dict[ShardId, set[int]], *, exact: bool = True
) -> None:
    """Everything but `lost` is there, what is lost raises, and no offset is given again. When it is
    not `exact`, more may be taken for lost at the ends than was there."""
    for store in rig.lives():
        for shard, places in written.positions.items():
            assert store.bounds(shard).next >= len(places), shard
            assert not exact or store.bounds(shard).next == len(places), shard
            for offset in places:
                _check_read(store, shard, offset, is_lost=offset in lost[shard])
    for shard, places in written.positions.items():
        put = inner_batch([record(9)])
        simple = rig.store.kind(shard) is QueueKind.SIMPLE
        first = (
            rig.store.append(shard, record(9)) if simple else rig.store.append_batch(shard, put, 1)
        )
        assert first >= len(places)
        assert [each.offset for each in rig.store.read(shard, first)] == [first]


def _check_read(store: SegmentStore, shard: ShardId, offset: int, *, is_lost: bool) -> None:
    if is_lost:
        with pytest.raises(CorruptionError):
            store.read(shard, offset, max_records=1)
    else:
        assert [each.offset for each in store.read(shard, offset, max_records=1)] == [offset]


def cases(written: Written) -> Iterator[tuple[str, Callable[[Rig], None], tuple[int, int]]]:
    """Yield ways to take bytes from the log, and the bytes that are gone."""
    end = written.end
    last = end - end % FILE
    start = max(low for places in written.positions.values() for low, _ in places.values())

    def cut(base: int, size: int) -> Callable[[Rig], None]:
        return lambda rig: rig.disk.open(name(base)).truncate(size)

    def remove(*bases: int) -> Callable[[Rig], None]:
        def run(rig: Rig) -> None:
            for base in bases:
                rig.disk.remove(name(base))

        return run

    yield "the last byte", cut(last, end - last - 1), (end - 1, end)
    yield "the last record", cut(last, start - last), (start, end)
    yield "nearly all of the last file", cut(last, 100), (last + 100, end)
    yield "all of the last file", cut(last, 0), (last, end)
    yield "the last file", remove(last), (last, end)
    yield "the last two files", remove(last, last - FILE), (last - FILE, end)
    yield "a file in between", remove(FILE), (FILE, 2 * FILE)
    yield "half of a file in between", cut(FILE, FILE // 2), (FILE + FILE // 2, 2 * FILE)
    yield "the last bytes of a file", cut(FILE, FILE - 5), (0, 0)


def test_a_log_that_lacks_bytes_is_refused_and_the_error_names_the_command(
    written: Written,
) -> None:
    for label, damage, (start, stop) in cases(written):
        rig = written.rig.copy()
        damage(rig)
        before = rig.disk.files()
        with pytest.raises((CorruptionError, NotAStoreError), match="penstock store repair store"):
            _ = rig.store
        with pytest.raises((CorruptionError, NotAStoreError), match="penstock store repair store"):
            rebuild("store", disk=rig.disk, clock=rig.clock, settings=QUIET)
        assert rig.disk.files() == before, label
        assert start <= stop


def test_without_being_told_a_repair_changes_nothing_and_lists_what_is_lost(
    written: Written,
) -> None:
    for label, damage, (start, stop) in cases(written):
        rig = written.rig.copy()
        damage(rig)
        before = rig.disk.files()
        report = mend(rig)
        assert rig.disk.files() == before, label
        assert report.is_needed
        assert not report.applied
        lost = {shard: offsets for shard, offsets in written.lost(start, stop).items() if offsets}
        assert listed(report) == lost, label
        sizes = {place for shard, some in lost.items() for place in _places(written, shard, some)}
        assert sum(each.size for each in report.lost if not each.is_control) == sum(
            high - low for low, high in sizes
        )


def _places(written: Written, shard: ShardId, offsets: set[int]) -> set[tuple[int, int]]:
    return {written.positions[shard][offset] for offset in offsets}


def test_a_repaired_store_has_all_other_records_and_gives_no_offset_twice(
    written: Written,
) -> None:
    for _, damage, (start, stop) in cases(written):
        rig = written.rig.copy()
        damage(rig)
        report = mend(rig, apply=True)
        assert report.applied
        assert not mend(rig).is_needed
        check_opened(rig, written, written.lost(start, stop), exact=is_exact(written, report))
        ends = {shard: rig.store.bounds(shard).next for shard in written.positions}
        rig.close()
        rebuild("store", disk=rig.disk, clock=rig.clock, settings=QUIET)
        assert ends == {shard: rig.store.bounds(shard).next for shard in written.positions}


def is_exact(written: Written, report: RepairReport) -> bool:
    """A store that was closed knows its ends; of one that was killed, queues must account for all
    that is missing."""
    return written.clean or not report.unaccounted_size


def test_a_check_of_a_repaired_store_names_the_holes_and_what_is_lost(written: Written) -> None:
    for label, damage, (start, stop) in cases(written):
        rig = written.rig.copy()
        damage(rig)
        exact = is_exact(written, mend(rig, apply=True))
        report = verify("store", disk=rig.disk, clock=rig.clock, settings=QUIET)
        lost: dict[str, set[int]] = {}
        for each in report.lost:
            lost.setdefault(each.shard, set()).update(range(each.first, each.end))
        expected = {s.name: found for s, found in written.lost(start, stop).items() if found}
        if exact:
            assert lost == expected, label
        assert all(offsets <= lost[name] for name, offsets in expected.items()), label
        assert {each.reason for each in report.findings} <= {
            "a repair found the rest of this file gone"
        }, label
        assert bool(report.findings) == (start < stop), label


def test_a_repair_that_was_interrupted_is_finished_by_the_next(written: Written) -> None:
    for number, (_, damage, (start, stop)) in enumerate(cases(written)):
        base = written.rig.copy()
        damage(base)
        probe = base.copy()
        before = probe.disk.call_count()
        mend(probe, apply=True)
        count = probe.disk.call_count() - before
        for call in range(number % 3, count, max(1, count // 12)):
            rig = base.copy()
            rig.disk.stop_at_call(call)
            try:
                mend(rig, apply=True)
            except PowerCut:
                rig.disk.crash(random.Random(call))
            mend(rig, apply=True)
            check_opened(rig, written, written.lost(start, stop), exact=False)


def test_what_is_overwritten_is_saved(written: Written) -> None:
    rig = written.rig.copy()
    last = written.end - written.end % FILE
    whole = rig.disk.files()[name(last)]
    rig.disk.open(name(last)).truncate(written.end - last - 1)
    report = mend(rig, apply=True)
    (saved,) = [path for path in rig.disk.files() if path.startswith(f"{report.backup}/{last:020}")]
    at = int(saved.rpartition(".")[2])
    assert rig.disk.files()[saved] == whole[at : written.end - last - 1]


def test_offsets_that_no_queue_knows_of_are_not_given_again() -> None:
    written = Written(clean=False, publish=False)
    for label, damage, (start, stop) in cases(written):
        rig = written.rig.copy()
        damage(rig)
        report = mend(rig, apply=True)
        lost = written.lost(start, stop)
        assert report.unaccounted_size >= 0
        for shard, places in written.positions.items():
            assert rig.store.bounds(shard).next >= len(places), label
            for offset in places:
                _check_read(rig.store, shard, offset, is_lost=offset in lost[shard])


def test_the_record_that_was_cut_is_named_without_a_queue() -> None:
    written = Written(clean=False, publish=False)
    last = written.end - written.end % FILE
    written.rig.disk.open(name(last)).truncate(written.end - last - 1)
    assert listed(mend(written.rig)) == {ORDERS: {COUNT - 1}}
    mend(written.rig, apply=True)
    check_opened(written.rig, written, {**written.lost(0, 0), ORDERS: {COUNT - 1}})


def test_a_log_without_any_file_goes_on_after_its_end() -> None:
    written = Written(clean=True)
    rig = written.rig
    for path in [path for path in rig.disk.files() if path.startswith(LOG)]:
        rig.disk.remove(path)
    assert listed(mend(rig)) != {}
    mend(rig, apply=True)
    for shard, places in written.positions.items():
        assert rig.store.bounds(shard).next == len(places)
        with pytest.raises(CorruptionError):
            rig.store.read(shard, rig.store.bounds(shard).earliest)
    assert rig.store.append(ORDERS, record(1)) == COUNT


def test_bytes_after_the_end_of_a_file_are_saved_and_cut_off(written: Written) -> None:
    rig = written.rig.copy()
    rig.disk.open(name(0)).write_at(FILE, b"surplus")
    with pytest.raises(NotAStoreError):
        _ = rig.store
    mend(rig, apply=True)
    assert rig.disk.files()[f"store/penstock/repair/{0:020}.{FILE}"] == b"surplus"
    check_opened(rig, written, written.lost(0, 0))


def test_a_whole_store_needs_no_repair_and_one_in_use_is_refused(written: Written) -> None:
    rig = written.rig.copy()
    before = rig.disk.files()
    report = mend(rig, apply=True)
    assert not report.is_needed
    assert {path: data for path, data in rig.disk.files().items() if "/lock" not in path} == {
        path: data for path, data in before.items() if "/lock" not in path
    }
    _ = rig.store
    with pytest.raises(LockedError):
        mend(rig)


def test_a_damaged_durable_point_is_listed_and_written_again(written: Written) -> None:
    rig = written.rig.copy()
    rig.disk.flip_bit("store/penstock/durable", 70)
    rig.disk.flip_bit("store/penstock/durable", 8 * 512 + 70)
    report = mend(rig)
    assert [each.path for each in report.steps] == ["store/penstock/durable"]
    mend(rig, apply=True)
    assert not mend(rig).is_needed
    check_opened(rig, written, written.lost(0, 0))
