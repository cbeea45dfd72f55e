"""A replay derives from the log what the appends derived, and all that RocketMQ would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.codec.record_strategies import any_records
from tests.codec.test_batches import append_kafka
from tests.codec.workbench import HOST, NOW, Rebuilt, Workbench

from penstock.codec.codes import (
    REPLAY_DAMAGE,
    REPLAY_DONE,
    REPLAY_LEAP,
    REPLAY_NO_INDEX_ROOM,
    REPLAY_TRUNCATE_BATCH_QUEUE,
)
from penstock.codec.format import (
    BATCH_UNIT,
    DELAY_LEVELS_MS,
    FLAG_COMMIT,
    FLAG_PREPARED,
    FLAG_ROLLBACK,
    GAP_MAX,
    KIND_BATCH,
    KIND_SIMPLE,
    PRE_BLANK,
    QUEUE_UNIT,
    RawRecord,
    tag_code,
)
from penstock.codec.select import Appender, Core
from penstock.record import Record

PLAIN = RawRecord(
    topic="orders",
    queue_id=0,
    queue_offset=0,
    position=0,
    size=0,
    version=1,
    flag=0,
    sys_flag=0,
    born_timestamp_ms=NOW,
    born_host=HOST,
    store_timestamp_ms=NOW,
    store_host=HOST,
    reconsume_times=0,
    prepared_transaction_offset=0,
    body=b"body",
    body_crc=0,
    properties=(),
    raw_properties=b"",
)


def log_of(core: Core, *records: RawRecord, size: int = 4096) -> bytearray:
    """Return a log of the records, each put at its place."""
    data = b""
    for record in records:
        data += core.encode_raw(replace(record, position=len(data)), True)
    return bytearray(data + bytes(size - len(data)))


def fresh(core: Core) -> Appender:
    return core.Appender(HOST, HOST, 1 << 20)


@given(
    groups=st.lists(st.lists(any_records, min_size=1, max_size=4), min_size=1, max_size=4),
    kind=st.sampled_from([KIND_SIMPLE, KIND_BATCH]),
    first_offset=st.sampled_from([0, 1000, 1 << 40]),
)
def test_a_replay_derives_what_the_appends_derived(
    core: Core, groups: list[list[Record]], kind: int, first_offset: int
) -> None:
    bench = Workbench(core, kind=kind, first_offset=first_offset, indexes=((7, 3), (16, 500)))
    for group in groups:
        bench.append(*group)
    rebuilt = bench.replayed()
    end, records, status, damage, _ = rebuilt.outcome
    assert (end, records, status, damage) == (bench.end, sum(map(len, groups)), REPLAY_DONE, None)
    assert rebuilt.units_of("orders") == bench.units
    assert rebuilt.indexes == bench.indexes
    handle = rebuilt.handle_of("orders")
    ours, theirs = rebuilt.appender, bench.appender
    assert ours.block_max(handle) == theirs.block_max(bench.handle)
    assert ours.drain_times(handle) == theirs.drain_times(bench.handle)
    assert ours.last_store_timestamp_ms == theirs.last_store_timestamp_ms
    assert ours.queues()[0][1:] == theirs.queues()[0][1:]


def test_a_finished_file_is_replayed_to_its_end(core: Core) -> None:
    bench = Workbench(core, base=1 << 20)
    bench.append(Record(value=b"v"))
    bench.appender.finish_log()
    assert bench.end == (1 << 20) + len(bench.log)
    end, records, status, damage, _ = bench.replayed().outcome
    assert (end, records, status, damage) == (bench.end, 1, REPLAY_DONE, None)


def test_a_record_below_the_end_of_its_queue_replaces_what_lies_from_there_on(core: Core) -> None:
    offsets = (0, 1, 2, 3, 1, 2, 0)
    log = log_of(core, *(replace(PLAIN, queue_offset=offset) for offset in offsets))
    appender = fresh(core)
    *_, status, damage, _ = appender.replay(log, 0, 0, len(log), False, "")
    assert (status, damage) == (REPLAY_DONE, None)
    size = len(core.encode_raw(PLAIN, True))
    assert appender.peek_units(0) == (0, QUEUE_UNIT.pack(6 * size, size, 0))
    partly = fresh(core)
    partly.replay(log, 0, 0, 6 * size, False, "")
    positions = [unit[0] // size for unit in QUEUE_UNIT.iter_unpack(partly.peek_units(0)[1])]
    assert positions == [0, 4, 5]


def test_a_cut_below_what_is_held_reaches_into_the_file(core: Core) -> None:
    log = log_of(core, *(replace(PLAIN, queue_offset=offset) for offset in (5, 6, 7, 3)))
    appender = fresh(core)
    handle = appender.add_queue("orders", 0, KIND_SIMPLE, 5, 5)
    size = len(core.encode_raw(PLAIN, True))
    appender.replay(log, 0, 0, 3 * size, False, "")
    appender.drop_units(handle, 8)
    appender.replay(log, 0, 3 * size, len(log), False, "")
    assert appender.peek_units(handle) == (3, QUEUE_UNIT.pack(3 * size, size, 0))
    assert (appender.next_offset(handle), appender.next_unit(handle)) == (4, 4)


def test_a_queue_that_replay_finds_begins_where_its_first_record_says(core: Core) -> None:
    log = log_of(core, replace(PLAIN, queue_offset=70), replace(PLAIN, queue_offset=71))
    appender = fresh(core)
    appender.replay(log, 0, 0, len(log), False, "")
    assert appender.queues() == [(0, "orders", 0, KIND_SIMPLE, 72, 72)]
    assert appender.held_units(0) == (70, 2)


def test_a_gap_in_a_known_queue_is_filled_with_pre_blanks(core: Core) -> None:
    log = log_of(core, replace(PLAIN, queue_offset=3))
    appender = fresh(core)
    handle = appender.add_queue("orders", 0, KIND_SIMPLE, 1, 1)
    appender.replay(log, 0, 0, len(log), False, "")
    first, units = appender.peek_units(handle)
    assert first == 1
    assert units[:40] == PRE_BLANK * 2
    assert appender.next_offset(handle) == 4


def test_a_leap_ends_the_replay_before_the_record(core: Core) -> None:
    for kind in (KIND_SIMPLE, KIND_BATCH):
        inner = (("INNER_NUM", "1"), ("INNER_BASE", str(GAP_MAX + 1)))
        far = replace(PLAIN, queue_offset=GAP_MAX + 1, properties=inner)
        log = log_of(core, far)
        appender = fresh(core)
        handle = appender.add_queue("orders", 0, kind, 0, 0)
        replayed = appender.replay(log, 0, 0, len(log), False, "")
        assert replayed == (0, 0, REPLAY_LEAP, None, [(0, handle)])
        assert appender.next_offset(handle) == 0
        appender.remove_queue(handle)
        assert appender.replay(log, 0, 0, len(log), False, "")[1:3] == (1, REPLAY_DONE)
        assert appender.queues()[0][4] == GAP_MAX + 2


@pytest.mark.parametrize("offset", [-1, (1 << 63) - 1])
def test_an_offset_that_makes_no_sense_is_damage(core: Core, offset: int) -> None:
    log = log_of(core, replace(PLAIN, queue_offset=offset))
    *_, status, damage, _ = fresh(core).replay(log, 0, 0, len(log), False, "")
    assert status == REPLAY_DAMAGE
    assert damage is not None


def test_transactions_enter_queue_and_index_as_in_rocketmq(core: Core) -> None:
    keyed = (("KEYS", "k"),)
    prepared = replace(PLAIN, sys_flag=FLAG_PREPARED, properties=keyed)
    commit = replace(PLAIN, sys_flag=FLAG_COMMIT, prepared_transaction_offset=99, properties=keyed)
    rollback = replace(PLAIN, sys_flag=FLAG_ROLLBACK, properties=keyed)
    log = log_of(core, prepared, commit, rollback)
    bench = Workbench(core)
    rebuilt = bench.replayed(log=bytes(log))
    size = len(core.encode_raw(prepared, True))
    assert rebuilt.outcome[1] == 3
    assert rebuilt.units_of("orders") == QUEUE_UNIT.pack(size, size, 0)
    hits = core.index_lookup(rebuilt.indexes[0], 16, 1000, "orders#k", 0, 1 << 62, 9)
    assert hits == [size, 0]


def test_the_half_message_of_a_transaction_is_no_leader_epoch(core: Core) -> None:
    commit = replace(PLAIN, sys_flag=FLAG_COMMIT, prepared_transaction_offset=99)
    plain = replace(PLAIN, queue_offset=1, prepared_transaction_offset=99)
    log = log_of(core, commit, plain)
    appender = fresh(core)
    assert len(appender.replay(log, 0, 0, len(log), False, "")[4]) == 2
    units = appender.peek_units(0)[1]
    page = core.read_records(log, 0, units, 0, "orders", 0, 9, 9999, (), 0, None, None)
    assert [record.leader_epoch for record in page[0]] == [0, 99]


def test_a_prepared_record_alone_makes_no_queue(core: Core) -> None:
    log = log_of(core, replace(PLAIN, sys_flag=FLAG_PREPARED))
    appender = fresh(core)
    appender.replay(log, 0, 0, len(log), False, "")
    assert appender.queues() == []


@pytest.mark.parametrize(
    ("delay", "code"),
    [
        ("1", NOW + DELAY_LEVELS_MS[0]),
        ("3", NOW + 10_000),
        ("18", NOW + 7_200_000),
        ("99", NOW + 7_200_000),
        ("0", tag_code("t")),
        ("-1", tag_code("t")),
        ("soon", tag_code("t")),
        (None, tag_code("t")),
    ],
)
def test_units_of_delayed_records_hold_their_delivery_time(
    core: Core, delay: str | None, code: int
) -> None:
    properties = (("TAGS", "t"),) if delay is None else (("DELAY", delay), ("TAGS", "t"))
    record = replace(PLAIN, topic="SCHEDULE_TOPIC_XXXX", queue_id=2, properties=properties)
    log = log_of(core, record, replace(record, topic="orders"))
    rebuilt = Workbench(core).replayed(log=bytes(log))
    (unit,) = QUEUE_UNIT.iter_unpack(rebuilt.units_of("SCHEDULE_TOPIC_XXXX", 2))
    (other,) = QUEUE_UNIT.iter_unpack(rebuilt.units_of("orders", 2))
    assert (unit[2], other[2]) == (code, tag_code("t"))


# ------------------------------------------------------------------------------------ groups


def grouped(core: Core) -> tuple[Workbench, list[int]]:
    """Return a log of one record, a group of three, and one record."""
    bench = Workbench(core)
    bench.append(Record(value=b"before"))
    bench.append(*(Record(value=b"member %d" % n) for n in range(3)))
    bench.append(Record(value=b"behind"))
    return bench, [raw.position for raw in bench.raws()]


def test_the_first_record_of_a_group_says_how_many_bytes_belong_to_it(core: Core) -> None:
    bench, starts = grouped(core)
    marks = [dict(raw.properties).get("PSTK_GRP") for raw in bench.raws()]
    assert marks == [None, f"{starts[4] - starts[1]:010d}", None, None, None]


def test_an_incomplete_group_is_dropped_whole(core: Core) -> None:
    bench, starts = grouped(core)
    for cut in range(starts[1], starts[4]):
        log = bytes(bench.log[:cut]) + bytes(len(bench.log) - cut)
        position, records, status, damage, _ = bench.replayed(log=log).outcome
        assert (position, records) == (starts[1], 1), cut
        is_fresh = not any(log[starts[1] : starts[1] + 8])
        assert (status, damage is None) == ((0, True) if is_fresh else (REPLAY_DAMAGE, False)), cut
        assert bench.replayed(log=log).units_of("orders") == bench.units[:20]


def test_every_flipped_bit_of_a_group_drops_it_whole(core: Core) -> None:
    bench, starts = grouped(core)
    for index in range(starts[1], starts[4]):
        bench.log[index] ^= 0x40
        position, records, status, damage, _ = bench.replayed(index=False).outcome
        bench.log[index] ^= 0x40
        assert (position, records, status) == (starts[1], 1, REPLAY_DAMAGE), index
        assert damage is not None
        assert starts[1] <= damage.position <= index


def test_a_group_that_passes_the_end_is_incomplete(core: Core) -> None:
    bench, starts = grouped(core)
    for end in (starts[2], starts[3], starts[4] - 1):
        outcome = fresh(core).replay(bench.log, 0, 0, end, False, "")
        assert outcome[:3] == (starts[1], 1, REPLAY_DAMAGE)
    assert fresh(core).replay(bench.log, 0, 0, starts[4], False, "")[:3] == (starts[4], 4, 0)


def test_without_groups_what_is_left_of_one_is_taken(core: Core) -> None:
    bench, starts = grouped(core)
    log = bytearray(bench.log)
    log[starts[3] + 50] ^= 1
    position, records, status, _, _ = fresh(core).replay(log, 0, 0, len(log), False, "", False)
    assert (position, records, status) == (starts[3], 3, REPLAY_DAMAGE)
    again = fresh(core).replay(log, 0, starts[4], len(log), False, "", False)
    assert again[:3] == (bench.end, 1, REPLAY_DONE)


@pytest.mark.parametrize(
    "member",
    [
        replace(PLAIN, topic="other", queue_offset=1),
        replace(PLAIN, queue_id=1, queue_offset=1),
        replace(PLAIN, queue_offset=1, properties=(("PSTK_GRP", "0000000050"),)),
    ],
)
def test_a_group_holds_only_records_of_its_own(core: Core, member: RawRecord) -> None:
    first = replace(PLAIN, properties=(("PSTK_GRP", "0" * 10),))
    size = len(core.encode_raw(first, True)) + len(core.encode_raw(member, True))
    first = replace(PLAIN, properties=(("PSTK_GRP", f"{size:010d}"),))
    log = log_of(core, first, member)
    position, records, status, damage, _ = fresh(core).replay(log, 0, 0, len(log), False, "")
    assert (position, records, status) == (0, 0, REPLAY_DAMAGE)
    assert damage is not None
    assert damage.position == len(core.encode_raw(first, True))


@pytest.mark.parametrize("mark", ["", "12", "abcdefghij", "0000000001", "9999999999", "00000000١"])
def test_a_group_size_that_makes_no_sense_is_damage(core: Core, mark: str) -> None:
    log = log_of(core, replace(PLAIN, properties=(("PSTK_GRP", mark),)))
    position, _, status, _, _ = fresh(core).replay(log, 0, 0, len(log), False, "")
    # An empty value is no property: RocketMQ's readers would not see it either.
    assert status == (REPLAY_DAMAGE if mark else REPLAY_DONE)
    assert (position == 0) == bool(mark)


def test_a_group_must_end_with_a_record(core: Core) -> None:
    first_size = len(core.encode_raw(replace(PLAIN, properties=(("PSTK_GRP", "0" * 10),)), True))
    second = replace(PLAIN, queue_offset=1)
    whole = first_size + len(core.encode_raw(second, True))
    for size in range(first_size - 1, whole + 2):
        first = replace(PLAIN, properties=(("PSTK_GRP", f"{size:010d}"),))
        log = log_of(core, first, second)
        position, records, status, _, _ = fresh(core).replay(log, 0, 0, len(log), False, "")
        is_whole = size in (first_size, whole)
        assert status == (REPLAY_DONE if is_whole else REPLAY_DAMAGE), size
        assert (position, records) == ((whole, 2) if is_whole else (0, 0)), size


# ---------------------------------------------------------------------------- batches, index


def test_a_batch_queue_must_be_cut_by_the_caller(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    for count in (2, 3, 4):
        append_kafka(bench, [Record(value=b"v")] * count)
    bench.appender.truncate_queue(bench.handle, 2, 1)
    append_kafka(bench, [Record(value=b"w")] * 2)
    positions = [raw.position for raw in bench.raws()]
    appender = fresh(core)
    log = bytes(bench.log)
    position, records, status, damage, specials = appender.replay(log, 0, 0, len(log), False, "")
    assert (position, records, status, damage) == (
        positions[3],
        3,
        REPLAY_TRUNCATE_BATCH_QUEUE,
        None,
    )
    assert specials[-1] == (positions[3], 0)
    appender.truncate_queue(0, 2, 1)
    assert appender.replay(log, 0, position, len(log), False, "")[:3] == (bench.end, 1, REPLAY_DONE)
    bases = [unit[4:6] for unit in BATCH_UNIT.iter_unpack(appender.peek_units(0)[1])]
    assert bases == [(0, 2), (2, 2)]
    assert appender.peek_units(0)[1] == bench.units


def test_a_single_record_makes_a_batch_queue_when_it_says_so(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH, first_offset=5)
    bench.append(Record(value=b"v"))
    rebuilt = bench.replayed()
    assert rebuilt.appender.queues() == [(0, "orders", 0, KIND_BATCH, 6, 1)]
    assert rebuilt.units_of("orders") == bench.units


@pytest.mark.parametrize(
    "properties",
    [
        (),
        (("INNER_NUM", "2"),),
        (("INNER_NUM", "0"), ("INNER_BASE", "0")),
        (("INNER_NUM", "40000"), ("INNER_BASE", "0")),
        (("INNER_NUM", "x"), ("INNER_BASE", "0")),
        (("INNER_NUM", "2"), ("INNER_BASE", "-1")),
    ],
)
def test_a_batch_queue_passes_over_records_that_do_not_say_their_range(
    core: Core, properties: tuple[tuple[str, str], ...]
) -> None:
    log = log_of(core, replace(PLAIN, properties=properties))
    appender = fresh(core)
    handle = appender.add_queue("orders", 0, KIND_BATCH, 0, 0)
    assert appender.replay(log, 0, 0, len(log), False, "")[1:3] == (1, REPLAY_DONE)
    assert appender.peek_units(handle) == (0, b"")


def test_a_simple_queue_takes_inner_batches_as_single_records(core: Core) -> None:
    inner = (("INNER_NUM", "5"), ("INNER_BASE", "0"))
    log = log_of(core, replace(PLAIN, sys_flag=128, properties=inner))
    appender = fresh(core)
    handle = appender.add_queue("orders", 0, KIND_SIMPLE, 0, 0)
    appender.replay(log, 0, 0, len(log), False, "")
    assert appender.next_offset(handle) == 1


def test_replay_stops_when_the_index_is_full_and_goes_on(core: Core) -> None:
    bench = Workbench(core, indexes=((8, 100),))
    for n in range(6):
        bench.append(Record(value=b"v", key=b"k%d" % n, tags=("t",)))
    appender = fresh(core)
    small = [bytearray(40 + 8 * 4 + 4 * 20) for _ in range(9)]
    appender.attach_index(small[0], 8, 4)
    position, used = 0, 1
    seen: list[int] = []
    while True:
        position, records, status, damage, _ = appender.replay(
            bench.log, 0, position, bench.end, True, ""
        )
        assert damage is None
        seen.append(records)
        if status == REPLAY_DONE:
            break
        assert status == REPLAY_NO_INDEX_ROOM
        appender.attach_index(small[used], 8, 4)
        used += 1
    assert sum(seen) == 6
    assert seen[0] == 1  # three entries fit, and a record has two
    assert appender.peek_units(0)[1] == bench.units
    for n, raw in enumerate(bench.raws()):
        hits = [
            hit
            for index in small[:used]
            for hit in core.index_lookup(index, 8, 4, f"orders#k{n}", 0, 1 << 62, 99)
        ]
        assert hits == [raw.position]


def test_records_that_are_in_the_index_are_not_indexed_again(core: Core) -> None:
    bench = Workbench(core)
    for n in range(4):
        bench.append(Record(value=b"v", key=b"k%d" % n))
    before = [bytes(index) for index in bench.indexes]
    last = bench.raws()[-1].position
    appender = fresh(core)
    appender.attach_index(bench.indexes[0], 16, 1000)
    appender.replay(bench.log, 0, 0, last, True, "")
    assert [bytes(index) for index in bench.indexes] == before
    # The last record stands at the index's end: whether all its keys are in is not known.
    appender.replay(bench.log, 0, last, bench.end, True, "")
    assert core.index_lookup(bench.indexes[0], 16, 1000, "orders#k3", 0, 1 << 62, 9) == [last] * 2


@pytest.mark.parametrize("there", [0, 1, 2, 3])
def test_the_last_record_of_an_index_gets_the_entries_that_it_lacks(core: Core, there: int) -> None:
    bench = Workbench(core)
    for n in range(4):
        bench.append(Record(value=b"v", key=b"k%d" % n, tags=("t",)))
    (index,) = bench.indexes
    before = bytes(index)
    last = bench.raws()[-1].position
    core.index_relink(index, 16, 1000, 7 + min(there, 2))
    appender = fresh(core)
    appender.attach_index(index, 16, 1000)
    appender.set_index_end(last, there)
    appender.replay(bench.log, 0, 0, bench.end, True, "")
    assert bytes(index) == before


# ---------------------------------------------------------------------------------- specials


def test_replay_points_out_the_records_that_mean_more(core: Core) -> None:
    bench = Workbench(core)
    control = bench.appender.add_queue("orders%ctl", 0, KIND_SIMPLE, 0, 0)
    add = bench.appender.append_many
    record = Record(value=b"v")
    add(bench.handle, [record], NOW, 1, None)  # the first epoch seen
    add(bench.handle, [record], NOW, 1, None)
    add(bench.handle, [record, record], NOW, 1, "7,0,0,2")  # a producer's, first record only
    add(control, [record], NOW, 1, None)
    add(control, [record], NOW, 1, None)
    add(bench.handle, [record], NOW, 2, None)  # another epoch
    add(bench.handle, [record], NOW, 2, None)
    positions = [raw.position for raw in bench.raws()]
    rebuilt = bench.replayed()
    ours, theirs = rebuilt.handle_of("orders"), rebuilt.handle_of("orders%ctl")
    assert rebuilt.outcome[4] == [
        (positions[0], ours),
        (positions[2], ours),
        (positions[4], theirs),
        (positions[5], theirs),
        (positions[6], ours),
    ]
    assert len(fresh(core).replay(bench.log, 0, 0, bench.end, False, "")[4]) == 4


def test_after_a_cut_the_epoch_is_reported_again(core: Core) -> None:
    log = log_of(core, *(replace(PLAIN, queue_offset=offset) for offset in (0, 1, 1)))
    size = len(core.encode_raw(PLAIN, True))
    specials = fresh(core).replay(log, 0, 0, len(log), False, "")[4]
    assert specials == [(0, 0), (2 * size, 0)]


def test_replay_leaves_the_log_being_written_alone(core: Core) -> None:
    bench = Workbench(core)
    bench.append(Record(value=b"v"))
    end = bench.end
    other = log_of(core, replace(PLAIN, topic="other", store_timestamp_ms=NOW + 500))
    bench.appender.replay(other, 0, 0, len(other), False, "")
    assert bench.end == end
    assert bench.append(Record(value=b"w")) == 1
    assert bench.raws()[1].store_timestamp_ms == NOW + 500


def test_a_log_without_records_replays_to_nothing(core: Core) -> None:
    assert isinstance(Workbench(core).replayed(), Rebuilt)
    assert fresh(core).replay(bytes(100), 50, 50, 150, True, "") == (50, 0, REPLAY_DONE, None, [])
    assert fresh(core).replay(b"", 50, 50, 50, True, "") == (50, 0, REPLAY_DONE, None, [])
