"""Where one file ends and the next begins: in the log, in queues and in the key index."""

from __future__ import annotations

import pytest
from tests.engine.segment.rig import EVENTS, ORDERS, Rig, create, fill, record
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.codec.format import MAGIC_BLANK
from penstock.errors import RecordTooLargeError
from penstock.record import QueueKind, Record

FILE = 8192
BLANK = 8


def overhead(rig: Rig) -> int:
    """Return how many bytes a record takes beyond its value."""
    before = rig.store.bounds(ORDERS).end_position
    rig.store.append(ORDERS, Record(b"", timestamp_ms=1))
    return rig.store.bounds(ORDERS).end_position - before


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9, 90, 91, 92, 200])
def test_a_record_goes_where_it_leaves_room_for_the_blank(left: int) -> None:
    """`left` bytes are left behind it, if it fits: less than a blank means that it does not."""
    rig = Rig()
    create(rig.store)
    model = ShardModel()
    each = overhead(rig)
    model.append([Record(b"", timestamp_ms=1)])
    room = FILE - rig.store.bounds(ORDERS).end_position
    large = Record(b"x" * (room - each - left), timestamp_ms=2)
    rig.store.append(ORDERS, large)
    model.append([large])
    end = rig.store.bounds(ORDERS).end_position
    if left >= BLANK:
        assert end == FILE - left
    else:
        assert end > FILE
    model.append(fill(rig.store, ORDERS, 2, first=10))
    for store in rig.lives():
        check_shard(store, ORDERS, model)
        assert store.report.damaged == []


def test_the_rest_of_a_file_is_a_blank_record_of_its_size() -> None:
    rig = Rig()
    create(rig.store)
    each = overhead(rig)
    room = FILE - rig.store.bounds(ORDERS).end_position
    rig.store.append(ORDERS, Record(b"x" * (room - each - BLANK)))
    rig.store.append(ORDERS, Record(b"next"))
    log = rig.disk.files()["store/commitlog/00000000000000000000"]
    size, magic = int.from_bytes(log[-8:-4], "big"), int.from_bytes(log[-4:], "big")
    assert (size, magic) == (BLANK, MAGIC_BLANK & 0xFFFF_FFFF)
    assert rig.store.bounds(ORDERS).end_position == FILE + each + len(b"next")


def test_the_largest_record_fills_a_file_but_for_the_blank() -> None:
    rig = Rig()
    create(rig.store)
    each = overhead(rig)
    largest = Record(b"x" * (FILE - BLANK - each), timestamp_ms=3)
    rig.store.append(ORDERS, largest)
    assert rig.store.bounds(ORDERS).end_position == 2 * FILE - BLANK
    with pytest.raises(RecordTooLargeError):
        rig.store.append(ORDERS, Record(b"x" * (FILE - BLANK - each + 1)))
    rig.store.append(ORDERS, largest)
    assert [len(r.value or b"") for r in rig.kill().read(ORDERS, 1)] == [FILE - BLANK - each] * 2


def test_a_group_is_never_split_over_two_files() -> None:
    rig = Rig()
    create(rig.store)
    model = ShardModel()
    for number in range(40):
        group = [record(number * 10 + n, size=97 * (number % 7), key=b"k") for n in range(3)]
        first = rig.store.append_many(ORDERS, group)
        model.append(group)
        end = rig.store.bounds(ORDERS).end_position
        size = sum(map(len, rig.store.read_raw(ORDERS, first)))
        assert (end - size) // FILE == (end - 1) // FILE
    for store in rig.lives():
        check_shard(store, ORDERS, model)


def test_queues_roll_at_every_number_of_records() -> None:
    """20 units of a simple queue and of a batch queue fill a file."""
    rig = Rig()
    create(rig.store)
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    orders, events = ShardModel(), ShardModel()
    for number in range(62):
        each = [record(number, key=b"k%d" % (number % 4), tag="t")]
        rig.store.append(ORDERS, each[0])
        rig.store.append(EVENTS, each[0])
        orders.append(each)
        events.append(each)
        if number in (18, 19, 20, 21, 38, 39, 40, 41, 61):
            for store in rig.lives():
                check_shard(store, ORDERS, orders)
                check_shard(store, EVENTS, events)
    files = [path for path in rig.disk.files() if path.startswith("store/consumequeue/orders/")]
    assert len(files) == 4


def test_the_key_index_rolls_at_every_number_of_entries() -> None:
    """59 entries fill a file; a record with a key and a tag has two."""
    rig = Rig()
    create(rig.store)
    model = ShardModel()
    for number in range(125):
        each = record(number, key=b"key-%d" % number, tag="t" if number % 3 == 0 else "")
        rig.store.append(ORDERS, each)
        model.append([each])
        if 36 <= number <= 48:
            rig.store.run_upkeep()
            store = rig.restart() if number % 2 else rig.kill()
            found = store.newest_by_key(ORDERS, b"key-%d" % (number // 2))
            assert found is not None, number
    for store in rig.lives():
        check_shard(store, ORDERS, model)
    assert len([path for path in rig.disk.files() if path.startswith("store/index/")]) == 3


def test_a_group_with_more_keys_than_an_index_file_holds() -> None:
    rig = Rig()
    create(rig.store)
    group = [Record(b"", key=b"%d" % n, timestamp_ms=n) for n in range(50)]
    model = ShardModel()
    for _ in range(3):
        rig.store.append_many(ORDERS, group[:35])
        model.append(group[:35])
    for store in rig.lives():
        check_shard(store, ORDERS, model)


def test_files_are_really_allocated_and_the_next_one_is_prepared() -> None:
    rig = Rig()
    create(rig.store)
    rig.store.append(ORDERS, record(0, size=FILE // 2))
    assert len(rig.disk.list("store/commitlog")) == 1
    rig.store.run_upkeep()
    assert len(rig.disk.list("store/commitlog")) == 2
    sizes = {len(data) for path, data in rig.disk.files().items() if "/commitlog/" in path}
    assert sizes == {FILE}
    rig.store.append(ORDERS, record(1, size=FILE // 2))
    assert [each.offset for each in rig.kill().read(ORDERS, 0)] == [0, 1]
