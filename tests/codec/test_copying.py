"""Records of another log: copied, moved, and their checksum patched without being recomputed."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.codec.record_strategies import any_records
from tests.codec.test_batches import append_kafka
from tests.codec.test_replay import PLAIN
from tests.codec.workbench import HOST, HOST_IPV6, NOW, Workbench

from penstock.codec.format import FLAG_PREPARED, KIND_BATCH, KIND_SIMPLE, RawRecord
from penstock.codec.select import Core
from penstock.errors import BadRequestError, RecordTooLargeError
from penstock.record import Record


def follower(core: Core, *, kind: int = KIND_SIMPLE, first_offset: int = 0) -> Workbench:
    """Return a log that already holds a record of another queue, at another base."""
    bench = Workbench(core, base=1 << 30, kind=kind, first_offset=first_offset)
    other = bench.appender.add_queue("other", 9, KIND_SIMPLE, 0, 0)
    bench.appender.append(other, Record(value=b"other", key=b"o"), NOW + 100, 0)
    return bench


@given(
    groups=st.lists(st.lists(any_records, min_size=1, max_size=3), min_size=1, max_size=3),
    kind=st.sampled_from([KIND_SIMPLE, KIND_BATCH]),
)
def test_copied_records_differ_in_their_position_only(
    core: Core, groups: list[list[Record]], kind: int
) -> None:
    leader = Workbench(core, kind=kind, first_offset=20, hosts=(HOST_IPV6, HOST_IPV6))
    for group in groups:
        leader.append(*group, epoch=6)
    copy = follower(core, kind=kind, first_offset=20)
    start = copy.end
    assert copy.appender.append_encoded(copy.handle, leader.log[: leader.end]) == 20
    assert copy.end - start == leader.end
    shift = start - leader.base
    for ours, theirs in zip(copy.raws()[1:], leader.raws(), strict=True):
        assert ours.position == theirs.position + shift
        assert ours.properties[:-1] == theirs.properties[:-1]
        changed = {"position", "properties", "raw_properties"}
        for field in set(ours.__struct_fields__) - changed:
            assert getattr(ours, field) == getattr(theirs, field), field
    assert copy.records() == leader.records()
    rebuilt = copy.replayed()
    assert rebuilt.damage is None
    assert rebuilt.units_of("orders") == copy.units
    assert rebuilt.indexes == copy.indexes
    assert copy.appender.last_store_timestamp_ms == NOW + 100


def test_the_clock_of_another_node_does_not_move_that_of_this_log(core: Core) -> None:
    leader = Workbench(core)
    leader.appender.append(leader.handle, Record(value=b"a"), NOW + 1_000_000, 0)
    copy = follower(core)
    copy.appender.append_encoded(copy.handle, leader.log[: leader.appender.end])
    assert copy.appender.last_store_timestamp_ms == NOW + 100


def test_batches_are_copied_with_all_their_offsets(core: Core) -> None:
    leader = Workbench(core, kind=KIND_BATCH)
    append_kafka(leader, [Record(value=b"a"), Record(value=b"b")])
    leader.append(Record(value=b"c"))
    copy = follower(core, kind=KIND_BATCH)
    assert copy.appender.append_encoded(copy.handle, leader.log[: leader.end]) == 0
    assert copy.appender.next_offset(copy.handle) == 3
    assert copy.records() == leader.records()


def test_a_record_without_a_checksum_is_copied_without_one(core: Core) -> None:
    """As RocketMQ writes them by default."""
    copy = follower(core)
    data = core.encode_raw(replace(PLAIN, position=77), False)
    assert copy.appender.append_encoded(copy.handle, data) == 0
    assert copy.raws()[-1].raw_properties == b""


def test_every_flipped_bit_of_a_copy_is_refused(core: Core) -> None:
    """Only the position is not covered: it is replaced, and its change shows in the checksum."""
    leader = Workbench(core)
    leader.append(Record(value=b"v", key=b"k"))
    data = bytearray(leader.log[: leader.end])
    copy = follower(core)
    before = bytes(copy.log), copy.units, copy.end
    for bit in range(len(data) * 8):
        data[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BadRequestError):
            copy.appender.append_encoded(copy.handle, data)
        data[bit >> 3] ^= 1 << (bit & 7)
    assert (bytes(copy.log), copy.units, copy.end) == before
    assert copy.appender.append_encoded(copy.handle, data) == 0


def group_of(core: Core, **changes: object) -> bytes:
    """Return two records that follow each other, the second one changed."""
    first = core.encode_raw(PLAIN, True)
    second = replace(PLAIN, **{"queue_offset": 1, "position": len(first), **changes})
    return first + core.encode_raw(second, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "other"},
        {"queue_id": 1},
        {"queue_offset": 0},
        {"queue_offset": 2},
        {"sys_flag": FLAG_PREPARED},
        {"properties": (("PSTK_GRP", "0000009999"),)},
        {"properties": (("PSTK_GRP", "0000000010"),)},
        {"properties": (("PSTK_GRP", "x"),)},
    ],
)
def test_records_that_do_not_continue_the_queue_are_refused(
    core: Core, changes: dict[str, object]
) -> None:
    copy = follower(core)
    end = copy.end
    with pytest.raises(BadRequestError):
        copy.appender.append_encoded(copy.handle, group_of(core, **changes))
    assert (copy.end, copy.units) == (end, b"")
    assert copy.appender.append_encoded(copy.handle, group_of(core)) == 0


def test_part_of_a_group_is_refused(core: Core) -> None:
    leader = Workbench(core)
    leader.append(*[Record(value=b"v")] * 3)
    ends = [raw.position + raw.size for raw in leader.raws()]
    copy = follower(core)
    for end in (ends[0], ends[1], ends[2] - 1):
        with pytest.raises(BadRequestError):
            copy.appender.append_encoded(copy.handle, leader.log[:end])
    assert copy.appender.append_encoded(copy.handle, leader.log[: ends[2]]) == 0


@pytest.mark.parametrize("data", [b"", bytes(100), b"x"])
def test_what_is_no_record_is_refused(core: Core, data: bytes) -> None:
    copy = follower(core)
    with pytest.raises(BadRequestError):
        copy.appender.append_encoded(copy.handle, data)


def test_a_single_record_of_a_simple_queue_does_not_enter_a_batch_queue(core: Core) -> None:
    copy = follower(core, kind=KIND_BATCH)
    with pytest.raises(BadRequestError):
        copy.appender.append_encoded(copy.handle, core.encode_raw(PLAIN, True))


def test_copies_need_room_like_any_append(core: Core) -> None:
    data = core.encode_raw(replace(PLAIN, properties=(("KEYS", "k"),)), True)
    second = core.encode_raw(replace(PLAIN, queue_offset=1, properties=(("KEYS", "k"),)), True)
    bench = Workbench(core, size=len(data) + 100)
    assert bench.appender.append_encoded(bench.handle, data) == 0
    assert bench.appender.append_encoded(bench.handle, second) == -1
    with pytest.raises(RecordTooLargeError):
        bench.appender.append_encoded(
            bench.handle, second + core.encode_raw(replace(PLAIN, queue_offset=2), True)
        )
    unindexed = Workbench(core, indexes=())
    assert unindexed.appender.append_encoded(unindexed.handle, data) == -2
    assert unindexed.end == 0
    bench.appender.detach_log()
    assert bench.appender.append_encoded(bench.handle, second) == -1


def test_a_follower_takes_what_its_leader_took(core: Core) -> None:
    """The limit on record sizes is the leader's to apply."""
    appender = core.Appender(PLAIN.store_host, PLAIN.born_host, 10)
    appender.attach_log(bytearray(4096), 0, 0)
    handle = appender.add_queue("orders", 0, KIND_SIMPLE, 0, 0)
    assert appender.append_encoded(handle, core.encode_raw(PLAIN, True)) == 0


@given(
    message=st.binary(min_size=1, max_size=300),
    data=st.data(),
)
def test_a_checksum_is_patched_as_if_it_were_computed_again(
    core: Core, message: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(message)))
    delta = data.draw(st.binary(max_size=len(message) - start))
    changed = bytearray(message)
    for n, byte in enumerate(delta):
        changed[start + n] ^= byte
    size_after = len(message) - start - len(delta)
    assert core.crc_patch(zlib.crc32(message), size_after, delta) == zlib.crc32(changed)


def test_a_checksum_is_patched_far_from_the_end(core: Core) -> None:
    size = (3 << 20) + 5
    message = bytes(8) + bytes(size)
    changed = b"\xff" * 8 + bytes(size)
    assert core.crc_patch(zlib.crc32(message), size, b"\xff" * 8) == zlib.crc32(changed)


def test_the_checksum_of_a_moved_record_is_the_one_it_would_have_been_written_with(
    core: Core,
) -> None:
    leader = Workbench(core)
    leader.append(Record(value=b"v", key=b"k"))
    copy = follower(core)
    start = copy.end
    copy.appender.append_encoded(copy.handle, leader.log[: leader.end])
    raw = core.decode_raw(leader.log, 0, 0, True)
    assert isinstance(raw, RawRecord)
    index = start - copy.base
    rewritten = core.encode_raw(replace(raw, position=start), True)
    assert copy.log[index : index + leader.end] == rewritten


def test_records_with_news_for_their_shard_are_found(core: Core) -> None:
    bench = Workbench(core, base=1 << 20)
    positions = []
    producer = "7,0,0,1"
    for number, (epoch, sender) in enumerate(
        [(3, None), (3, None), (4, None), (4, producer), (4, None), (6, None)]
    ):
        positions.append(bench.end)
        bench.appender.append_many(bench.handle, [Record(value=b"%d" % number)], NOW, epoch, sender)
    found = [positions[number] for number in (2, 3, 5)]
    log, base, end = bench.log, bench.base, bench.end
    assert core.find_special(log, base, base, end, 3, "%ctl") == found
    assert core.find_special(log, base, base, end, 0, "%ctl") == [positions[0], *found]
    assert core.find_special(log, base, positions[3], end, 4, "%ctl") == found[1:]
    assert core.find_special(log, base, end, end, 4, "%ctl") == []
    assert core.find_special(log, base, base, end, 3, "ers") == positions


def test_news_are_not_looked_for_outside_the_records(core: Core) -> None:
    bench = Workbench(core)
    bench.append(Record(value=b"one"))
    with pytest.raises(BadRequestError, match="no record of a commit log at byte"):
        core.find_special(bench.log, 0, 1, bench.end, 0, "")
    with pytest.raises(BadRequestError, match="no record of a commit log at byte"):
        core.find_special(bench.log, 0, 0, bench.end + 100, 0, "")


def test_the_clock_of_another_node_does_not_move_that_of_this_log_after_a_replay(
    core: Core,
) -> None:
    leader = Workbench(core)
    leader.appender.append(leader.handle, Record(value=b"a"), NOW + 1_000_000, 0)
    copy = follower(core)
    copy.appender.append_encoded(copy.handle, leader.log[: leader.appender.end])
    for is_following, last_ms in ((True, NOW + 100), (False, NOW + 1_000_000)):
        again = core.Appender(HOST, HOST, 1 << 20)
        handle = again.add_queue("orders", 0, KIND_SIMPLE, 0, 0)
        again.set_admission(handle, False, False, 0, is_following)
        replayed = again.replay(copy.log, copy.base, copy.base, copy.appender.end, False, "%ctl")
        assert replayed[1] == 2
        assert again.last_store_timestamp_ms == last_ms
