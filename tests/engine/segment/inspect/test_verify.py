"""A full check of a store: silent about whole ones, and naming the place of any damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.codec.golden_store import GoldenStore
from tests.engine.segment.readonly.sample_store import (
    EMPTY,
    EVENTS,
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    QUIET,
    SMALL,
    fill,
    flip,
    tree,
)

from penstock.codec.format import INDEX_ENTRY, INDEX_HEADER
from penstock.engine.segment.inspect import VerifyReport, verify
from penstock.engine.segment.queue.state_files import bucket_of
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import NotAStoreError
from penstock.record import QueueKind, Record, ShardId

UNIT = 20


def check(path: Path) -> VerifyReport:
    return verify(str(path))


def places(report: VerifyReport, root: Path) -> list[tuple[str, int]]:
    """Return file and position of every finding."""
    return [(str(Path(each.path).relative_to(root)), each.position) for each in report.findings]


def place_of(path: Path, offset: int) -> tuple[str, int]:
    """Return the log file of a record of `ORDERS`, and where in it the record starts."""
    position = ReadOnlyStore.open(str(path)).snapshot().get(ORDERS).position_of(offset)
    assert position is not None
    inside = position % SMALL.commit_log_file_size
    return f"commitlog/{position - inside:020d}", inside


# Whole stores


def test_a_whole_store_of_ours_has_no_findings(written: Path) -> None:
    report = check(written)
    assert report.findings == []
    assert report.is_whole
    assert report.lost == []
    assert report.notes == []
    assert report.torn_tail is None
    checked = report.checked
    assert checked.records >= ORDERS_COUNT + EVENTS_COUNT
    assert checked.units == checked.records
    assert checked.index_entries > ORDERS_COUNT
    assert checked.control_records >= 1
    assert checked.states >= 3
    assert checked.pages > 0


def test_a_store_that_rocketmq_wrote_has_no_findings(golden: GoldenStore) -> None:
    report = check(golden.root)
    assert report.findings == []
    assert report.checked.records == len(list(golden.lines("msg")))
    assert report.checked.log_files == 3
    assert report.checked.index_files == 4
    assert report.checked.index_entries > 1_000


def test_a_check_changes_nothing(copy: Path) -> None:
    before = tree(copy)
    check(copy)
    assert tree(copy) == before


def test_an_empty_store_has_no_findings(tmp_path: Path) -> None:
    SegmentStore.open(str(tmp_path / "new"), QUIET).close()
    assert check(tmp_path / "new").findings == []


def test_progress_is_told_with_a_total(written: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    verify(str(written), progress=lambda what, done, total: calls.append((what, done, total)))
    assert calls
    assert all(0 <= done <= total for _, done, total in calls)
    assert "commit log" in {what for what, _, _ in calls}


def truncate(store: SegmentStore) -> None:
    store.truncate(ORDERS, 120)


def truncate_and_go_on(store: SegmentStore) -> None:
    store.truncate(ORDERS, 120)
    for number in range(250):
        store.append(ORDERS, Record(b"again %d" % number, key=b"again"))
    store.truncate(ORDERS, 200)
    store.append(ORDERS, Record(b"once more"))


def truncate_batches(store: SegmentStore) -> None:
    store.truncate(EVENTS, 25)
    store.append(EVENTS, Record(b"other", key=b"e-1"))


def delete_shard(store: SegmentStore) -> None:
    store.delete_shard(EVENTS)
    store.delete_shard(EMPTY)


def delete_and_create_again(store: SegmentStore) -> None:
    store.delete_shard(ORDERS)
    store.create_shard(ORDERS)
    store.append(ORDERS, Record(b"second life", key=b"k", tags=("t",)))


def remove_old_files(store: SegmentStore) -> None:
    while store.retention.remove_oldest_file():
        pass
    store.append(ORDERS, Record(b"goes on", key=b"k"))


def delete_before(store: SegmentStore) -> None:
    store.delete_before(ORDERS, 150)
    store.delete_before(EVENTS, 31)
    store.seal(EVENTS)


def append_much(store: SegmentStore) -> None:
    for number in range(3_000):
        store.append(ORDERS, Record(b"%d" % number, timestamp_ms=number, key=b"%d" % number))


@pytest.mark.parametrize(
    "change",
    [
        truncate,
        truncate_and_go_on,
        truncate_batches,
        delete_shard,
        delete_and_create_again,
        remove_old_files,
        delete_before,
        append_much,
    ],
)
def test_whatever_was_done_to_a_store_it_is_whole(
    tmp_path: Path, change: Callable[[SegmentStore], None]
) -> None:
    path = tmp_path / "store"
    with SegmentStore.open(str(path), QUIET) as store:
        fill(store)
        change(store)
        store.run_upkeep()
        beside = check(path)
        assert beside.findings == []
    assert check(path).findings == []


def test_an_index_of_batch_keys_whose_log_files_are_gone_is_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with SegmentStore.open(str(path), QUIET) as store:
        store.create_shard(EVENTS, QueueKind.BATCH)
        for number in range(3_000):
            store.append(EVENTS, Record(b"%d" % number, key=b"%d" % number))
        store.run_upkeep()
        before = sorted(each.name for each in (path / "penstock" / "index").iterdir())
        while store.retention.remove_oldest_file():
            pass
        store.run_upkeep()
        left = sorted(each.name for each in (path / "penstock" / "index").iterdir())
        assert set(left) < set(before), "the test needs index files that went with the log's"
    assert check(path).findings == []
    removed = path / "penstock" / "index" / left[0]
    assert left[0] != left[-1], "the test needs a sealed index file, too"
    removed.unlink()
    assert check(path).findings != []


def test_an_open_store_is_checked_up_to_what_it_has_published(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with SegmentStore.open(str(path), QUIET) as store:
        fill(store)
        store.run_upkeep()
        store.append_many(ORDERS, [Record(b"not published", key=b"k")] * 30)
        store.create_shard(ShardId("young", 0))
        store.append(ShardId("young", 0), Record(b"not published"))
        report = check(path)
        assert report.findings == []
        assert any("in use" in note for note in report.notes)


# The log


@pytest.mark.parametrize("shift", [0, 4, 20, 28, 60, 100, 140])
def test_a_damaged_record_is_named_and_its_offset_is_lost(copy: Path, shift: int) -> None:
    name, position = place_of(copy, 150)
    flip(copy / name, position + shift)
    report = check(copy)
    assert places(report, copy) == [(name, position)]
    assert [(each.shard, each.first, each.end) for each in report.lost] == [("orders_0", 150, 151)]
    # The records behind it are still checked.
    assert report.checked.records >= ORDERS_COUNT + EVENTS_COUNT - 1


def test_damage_to_the_last_record_of_a_closed_store_is_damage(copy: Path) -> None:
    view = ReadOnlyStore.open(str(copy))
    end = view.bounds(ORDERS).end_position
    name = f"commitlog/{end - end % SMALL.commit_log_file_size:020d}"
    flip(copy / name, end % SMALL.commit_log_file_size - 1)
    report = check(copy)
    # The end of the log does not move with it: the checkpoint is right.
    assert {path for path, _ in places(report, copy)} == {name}


def test_bytes_behind_the_end_of_a_closed_log_are_found(copy: Path) -> None:
    last = max((copy / "commitlog").iterdir())
    flip(last, SMALL.commit_log_file_size - 5)
    assert places(check(copy), copy) == [(f"commitlog/{last.name}", SMALL.commit_log_file_size - 5)]


def test_a_torn_tail_of_a_store_that_was_not_closed_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with SegmentStore.open(str(path), QUIET) as store:
        fill(store)
        store.run_upkeep()
        end = store.bounds(ORDERS).end_position
        shutil.copytree(path, tmp_path / "killed")
    killed = tmp_path / "killed"
    inside = end % SMALL.commit_log_file_size
    name = f"{end - inside:020d}"
    data = bytearray((killed / "commitlog" / name).read_bytes())
    data[inside : inside + 50] = b"\x00\x00\x01\x00" + b"torn" * 11 + b"!!"
    (killed / "commitlog" / name).write_bytes(data)
    report = check(killed)
    assert report.findings == []
    assert report.torn_tail is not None
    assert report.torn_tail.position == inside


def test_damage_before_the_durable_point_is_damage_also_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with SegmentStore.open(str(path), QUIET) as store:
        fill(store)
        store.run_upkeep()
        shutil.copytree(path, tmp_path / "killed")
    killed = tmp_path / "killed"
    name, position = place_of(killed, 40)
    flip(killed / name, position + 90)
    assert places(check(killed), killed) == [(name, position)]


def test_a_missing_log_file_is_named_and_the_rest_is_checked(copy: Path) -> None:
    victim = copy / "commitlog" / f"{SMALL.commit_log_file_size:020d}"
    victim.unlink()
    report = check(copy)
    assert (f"commitlog/{victim.name}", 0) in places(report, copy)
    assert report.checked.log_files >= 3


def test_a_log_file_of_a_wrong_size_is_named(copy: Path) -> None:
    victim = copy / "commitlog" / f"{0:020d}"
    victim.write_bytes(victim.read_bytes()[:-100])
    assert any(str(victim) in each.reason for each in check(copy).findings)


def test_zeros_in_the_middle_of_the_log_are_damage(copy: Path) -> None:
    name, position = place_of(copy, 60)
    data = bytearray((copy / name).read_bytes())
    data[position : position + 64] = bytes(64)
    (copy / name).write_bytes(data)
    assert places(check(copy), copy)[0] == (name, position)


# Queues


def test_a_wrong_unit_is_named(copy: Path) -> None:
    queue = "consumequeue/orders/0/00000000000000002000"
    flip(copy / queue, 5 * UNIT + 7)
    assert (queue, 5 * UNIT) in places(check(copy), copy)


def test_a_missing_unit_is_named(copy: Path) -> None:
    queue = "consumequeue/orders/0/00000000000000000000"
    data = bytearray((copy / queue).read_bytes())
    data[3 * UNIT : 4 * UNIT] = bytes(UNIT)
    (copy / queue).write_bytes(data)
    report = check(copy)
    assert any("no unit of offset 3" in each.reason for each in report.findings)


def test_a_missing_queue_file_is_named(copy: Path) -> None:
    queue = "consumequeue/orders/0/00000000000000002000"
    (copy / queue).unlink()
    assert (queue, 0) in places(check(copy), copy)


def test_a_wrong_batch_unit_is_named(copy: Path) -> None:
    queue = "batchconsumequeue/events/3/00000000000000000920"
    flip(copy / queue, 46 + 7)
    assert queue in {path for path, _ in places(check(copy), copy)}


def test_a_unit_behind_the_end_is_named(copy: Path) -> None:
    queue = max((copy / "consumequeue" / "orders%ctl" / "0").iterdir())
    flip(queue, 700)
    assert places(check(copy), copy) == [(str(queue.relative_to(copy)), 700)]


def test_a_queue_that_rocketmq_lost_is_named(golden_copy: Path) -> None:
    shutil.rmtree(golden_copy / "consumequeue" / "TopicA" / "1")
    assert ("consumequeue/TopicA/1", 0) in places(check(golden_copy), golden_copy)


def test_a_record_of_rocketmq_that_is_damaged_is_named(golden_copy: Path) -> None:
    flip(golden_copy / "commitlog" / f"{0:020d}", 194 + 100)
    report = check(golden_copy)
    assert places(report, golden_copy)[0] == (f"commitlog/{0:020d}", 194)
    assert report.lost[0].shard == "orders%RETRY_v1_0"


# The key index


def index_entry(number: int) -> int:
    return INDEX_HEADER.size + 4 * SMALL.index_slots + INDEX_ENTRY.size * number


def test_a_wrong_hash_is_named(copy: Path) -> None:
    index = min((copy / "index").iterdir())
    flip(index, index_entry(10) + 2)
    assert (f"index/{index.name}", index_entry(10)) in places(check(copy), copy)


def test_an_entry_to_nowhere_is_named(copy: Path) -> None:
    index = min((copy / "index").iterdir())
    flip(index, index_entry(10) + 4 + 6)
    found = places(check(copy), copy)
    assert (f"index/{index.name}", index_entry(10)) in found
    # One entry is wrong, not all behind it.
    assert len(found) <= 3


def test_a_broken_slot_is_named(copy: Path) -> None:
    index = min((copy / "index").iterdir())
    flip(index, INDEX_HEADER.size + 4 * 7 + 3)
    assert any("slot" in each.reason for each in check(copy).findings)


def test_a_broken_chain_is_named(copy: Path) -> None:
    index = min((copy / "index").iterdir())
    flip(index, index_entry(150) + 19)
    assert any("chain" in each.reason for each in check(copy).findings)


def test_a_missing_index_is_one_finding(copy: Path) -> None:
    shutil.rmtree(copy / "index")
    shutil.rmtree(copy / "penstock" / "sums" / "index")
    report = check(copy)
    assert places(report, copy) == [("index", 0)]
    assert "more of this kind" in report.findings[0].reason


def test_a_missing_index_file_is_named(copy: Path) -> None:
    index = sorted((copy / "index").iterdir())[1]
    index.unlink()
    assert (f"index/{index.name}", 0) in places(check(copy), copy)


# What RocketMQ's files cannot say


def test_a_damaged_checkpoint_is_named(copy: Path) -> None:
    flip(copy / "penstock" / "checkpoint", 20)
    assert ("penstock/checkpoint", 0) in places(check(copy), copy)


def test_a_damaged_durable_point_is_named(copy: Path) -> None:
    flip(copy / "penstock" / "durable", 3)
    assert ("penstock/durable", 0) in places(check(copy), copy)


def test_every_damaged_state_is_named(copy: Path) -> None:
    for path in sorted((copy / "penstock").glob("*/[0-9][0-9]")):
        flip(path, 30)
        assert str(path) in {each.path for each in check(copy).findings}
        flip(path, 30)


def test_every_missing_state_is_named(copy: Path) -> None:
    for path in sorted((copy / "penstock").glob("*/[0-9][0-9]")):
        whole = path.read_bytes()
        path.unlink()
        assert str(path) in {each.path for each in check(copy).findings}
        path.write_bytes(whole)


def test_a_full_queue_file_without_checksums_is_named(copy: Path) -> None:
    shutil.rmtree(copy / "penstock" / "sums" / "consumequeue" / "orders")
    found = places(check(copy), copy)
    assert ("consumequeue/orders/0/00000000000000000000", 0) in found


def test_a_damaged_sums_file_is_named(copy: Path) -> None:
    sums = min((copy / "penstock" / "sums" / "index").iterdir())
    flip(sums, 40)
    assert str(sums) in {each.path for each in check(copy).findings}


def test_a_state_that_forgot_a_deletion_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with SegmentStore.open(str(path), QUIET) as store:
        fill(store)
        store.run_upkeep()
        before = tmp_path / "before"
        shutil.copytree(path / "penstock", before)
        store.delete_offsets(ORDERS, [20])
    for file in (path / "penstock").glob(f"*/{bucket_of(ORDERS):02d}"):
        shutil.copy(before / file.parent.name / file.name, file)
    report = check(path)
    assert any("is not in the state of orders_0" in each.reason for each in report.findings)


def test_times_that_hide_a_record_are_named(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with SegmentStore.open(str(path), QUIET) as store:
        fill(store)
        append_much(store)
    times = path / "penstock" / "times" / "orders" / "0"
    assert check(path).checked.time_blocks == 3
    flip(times, 24 + 12 + 5)
    assert (str(times), 24 + 12) in {(each.path, each.position) for each in check(path).findings}


# Everything


def test_a_flipped_bit_anywhere_is_found_and_its_file_named(copy: Path) -> None:
    """Unused bytes are left out: what follows a blank record, padding, the reserve, and
    topics.json, which is RocketMQ's to read."""
    unseen: list[str] = []
    unused = {"checkpoint", "store.properties", "config/topics.json"}
    unused |= {"penstock/durable", "penstock/reserve"}
    for path in sorted(each for each in copy.rglob("*") if each.is_file()):
        name = str(path.relative_to(copy))
        if name in unused:
            continue
        whole = path.read_bytes()
        used = whole.rstrip(b"\0") if name.startswith("commitlog") else whole
        for position in range(11, len(used), max(1, len(used) // 12)):
            flip(path, position, bit=position % 8)
            if str(path) not in {each.path for each in check(copy).findings}:
                unseen.append(f"{name} at {position}")
            path.write_bytes(whole)
    assert unseen == []


def test_findings_are_bounded(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.segment.inspect.report.FINDINGS_MAX", 2)
    for number in range(0, 250, 20):
        name, position = place_of(copy, number)
        flip(copy / name, position + 90)
    report = check(copy)
    assert len(report.findings) == 2
    assert report.findings_left_out >= 10


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        check(tmp_path)


# Files without checksums of their own


@pytest.mark.parametrize("name", ["checkpoint", "store.properties", "config/topics.json"])
def test_every_bit_of_a_small_file_of_a_closed_store_counts(copy: Path, name: str) -> None:
    size = (copy / name).stat().st_size
    for number, at in enumerate([*range(0, min(size, 56), 5), size // 2, size - 1]):
        before = (copy / name).read_bytes()
        flip(copy / name, at, number % 8)
        assert name in {path for path, _ in places(check(copy), copy)}, at
        (copy / name).write_bytes(before)
    assert check(copy).is_whole


def test_a_store_that_was_not_closed_says_which_small_files_are_not_checked(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SegmentStore.open(str(path), QUIET)
    fill(store)
    store.run_upkeep()
    killed = tmp_path / "killed"
    shutil.copytree(path, killed)
    store.close()
    assert any("config/topics.json" in note for note in check(killed).notes)


def test_a_check_of_rocketmqs_store_says_what_it_cannot_check(golden_copy: Path) -> None:
    notes = "\n".join(check(golden_copy).notes)
    for text in ("checkpoint, store.properties, config/", "without a checksum of their own"):
        assert text in notes


@pytest.mark.parametrize("at", [1, 2, 3, 9, 19, 25, 50, 4095])
def test_an_impossible_checkpoint_of_rocketmq_is_named(golden_copy: Path, at: int) -> None:
    flip(golden_copy / "checkpoint", at, 4)
    assert "checkpoint" in {path for path, _ in places(check(golden_copy), golden_copy)}


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "subscriptionGroup.json"])
def test_a_configuration_of_rocketmq_that_is_no_json_is_named(golden_copy: Path, name: str) -> None:
    flip(golden_copy / "config" / name, 0, 5)
    assert [path for path, _ in places(check(golden_copy), golden_copy)] == [f"config/{name}"]


def test_a_wrong_time_in_an_index_file_of_rocketmq_is_named(golden_copy: Path) -> None:
    name = min(path.name for path in (golden_copy / "index").iterdir())
    data = (golden_copy / "index" / name).read_bytes()
    count = INDEX_HEADER.unpack_from(data)[-1]
    sizes = ReadOnlyStore.open(str(golden_copy)).snapshot().sizes
    entries = INDEX_HEADER.size + 4 * sizes.index_slots
    for number in (2, count // 2, count - 1):
        flip(golden_copy / "index" / name, entries + number * INDEX_ENTRY.size + 15, 1)
        assert [path for path, _ in places(check(golden_copy), golden_copy)] == [f"index/{name}"]
        (golden_copy / "index" / name).write_bytes(data)


def test_bytes_of_unused_index_entries_are_named(copy: Path) -> None:
    newest = max(path for path in (copy / "index").iterdir() if path.name.isdigit())
    flip(newest, newest.stat().st_size - 1, 1)
    assert f"index/{newest.name}" in {path for path, _ in places(check(copy), copy)}
