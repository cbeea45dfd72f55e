"""The key index: chains, times, files that fill up, and the rebuilding of a damaged one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.workbench import HOST, NOW, Workbench

from penstock.codec.format import (
    INDEX_ENTRY,
    INDEX_HEADER,
    KIND_SIMPLE,
    index_file_size,
    index_hash,
    index_strings,
    is_plain_key,
    java_hash,
    key_token,
)
from penstock.codec.select import Core
from penstock.errors import BadRequestError
from penstock.record import Record

FOREVER = (1 << 63) - 1


def lookup(bench: Workbench, text: str, *, count_max: int = 999, number: int = 0) -> list[int]:
    slots, entries = bench.sizes[number]
    return bench.core.index_lookup(
        bench.indexes[number], slots, entries, f"{bench.topic}#{text}", 0, FOREVER, count_max
    )


def test_java_hashes_are_javas(core: Core) -> None:
    """Values that a Java shell prints for "...".hashCode()."""
    known = {
        "": 0,
        "a": 97,
        "TagA": 2_598_919,
        "标签": 857_175,
        "ZZZZZZZZ": -1_127_396_096,
        "polygenelubricants": -(1 << 31),
        "😀": 1_772_899,
    }
    assert {text: core.java_hash(text) for text in known} == known
    assert index_hash(core.java_hash("polygenelubricants")) == 0


@given(text=st.text(), more=st.text())
def test_a_java_hash_is_a_polynomial_over_utf16(core: Core, text: str, more: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for n in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[n : n + 2])) % (1 << 32)
    assert core.java_hash(text) % (1 << 32) == value
    assert -(1 << 31) <= core.java_hash(text) < 1 << 31
    assert core.java_hash(text) == java_hash(text)


def test_keys_are_found_newest_first(core: Core) -> None:
    bench = Workbench(core, indexes=((3, 100),))  # three slots: long chains
    for n in range(12):
        bench.append(Record(value=b"v", key=b"k%d" % (n % 4), tags=("t",)))
    positions = [raw.position for raw in bench.raws()]
    for n in range(4):
        assert lookup(bench, f"k{n}") == [positions[n + 8], positions[n + 4], positions[n]]
        assert lookup(bench, f"k{n}", count_max=2) == [positions[n + 8], positions[n + 4]]
    assert lookup(bench, "T#t") == positions[::-1]
    assert lookup(bench, "none") == []
    assert lookup(bench, "k1", count_max=0) == []


def test_a_lookup_between_the_writes_of_slot_and_count_finds_the_whole_chain(core: Core) -> None:
    """A writer sets the entry, then the slot, then the count in the header."""
    bench = Workbench(core)
    bench.append(Record(b"1", b"k"))
    header = bytes(bench.indexes[0][: INDEX_HEADER.size])
    bench.append(Record(b"2", b"k"))
    bench.indexes[0][: INDEX_HEADER.size] = header
    first, second = [raw.position for raw in bench.raws()]
    assert lookup(bench, "k") == [second, first]
    slots, entries = bench.sizes[0]
    assert core.index_newest(bench.indexes[0], slots, entries, bench.topic, b"k") == second


def test_entries_stand_in_rocketmqs_order(core: Core) -> None:
    """UNIQ_KEY, the words of KEYS, then the tag; ours have no UNIQ_KEY and one word."""
    bench = Workbench(core)
    bench.append(Record(value=b"v", key=b"k", tags=("t",)))
    hashes = [
        INDEX_ENTRY.unpack_from(bench.indexes[0], 40 + 16 * 4 + n * 20)[0] for n in (0, 1, 2, 3)
    ]
    expected = [index_hash(java_hash(text)) for text in ("orders#k", "orders#T#t")]
    assert hashes == [0, *expected, 0]


def test_times_are_whole_seconds_since_the_first_record(core: Core) -> None:
    bench = Workbench(core)
    for delay in (0, 999, 1000, 5500, 5400):
        bench.append(Record(value=b"v", key=b"k"), now_ms=NOW + delay)
    seconds = [
        INDEX_ENTRY.unpack_from(bench.indexes[0], 40 + 16 * 4 + n * 20)[2] for n in range(1, 6)
    ]
    assert seconds == [0, 0, 1, 5, 5]
    positions = [raw.position for raw in bench.raws()]

    def between(begin_ms: int, end_ms: int) -> list[int]:
        return core.index_lookup(bench.indexes[0], 16, 1000, "orders#k", begin_ms, end_ms, 9)

    assert between(NOW + 1000, NOW + 1000) == [positions[2]]
    assert between(NOW + 1001, FOREVER) == [positions[4], positions[3]]
    assert between(0, NOW) == [positions[1], positions[0]]


def test_a_header_spans_what_is_in_the_file(core: Core) -> None:
    bench = Workbench(core)
    bench.append(Record(value=b"v"), now_ms=NOW)
    bench.append(Record(value=b"v", key=b"a"), now_ms=NOW + 5)
    bench.append(Record(value=b"v", key=b"b", tags=("t",)), now_ms=NOW + 9)
    positions = [raw.position for raw in bench.raws()]
    used = len({index_hash(java_hash(f"orders#{text}")) % 16 for text in ("a", "b", "T#t")})
    header = INDEX_HEADER.unpack_from(bench.indexes[0])
    assert header == (NOW + 5, NOW + 9, positions[1], positions[2], used, 4)


def test_the_keys_of_one_record_may_straddle_two_files(core: Core) -> None:
    bench = Workbench(core, indexes=((4, 4), (4, 10)))
    bench.append(Record(value=b"v", key=b"a", tags=("t",)), now_ms=NOW)
    bench.append(Record(value=b"v", key=b"b", tags=("t",)), now_ms=NOW + 7000)
    first, second = (raw.position for raw in bench.raws())
    assert lookup(bench, "b") == [second]
    assert lookup(bench, "T#t") == [first]
    assert lookup(bench, "T#t", number=1) == [second]
    assert bench.appender.index_full == 1
    assert bench.appender.index_room == 8
    # Seeded with the end of the file before, so the first entry is zero seconds old; its own
    # record then becomes the beginning.
    assert INDEX_HEADER.unpack_from(bench.indexes[1]) == (
        *(NOW + 7000, NOW + 7000, second, second),
        *(1, 2),
    )


def test_the_first_entry_of_a_later_file_is_relative_to_the_end_of_the_one_before(
    core: Core,
) -> None:
    bench = Workbench(core, indexes=((4, 2), (4, 10)))
    bench.append(Record(value=b"v", key=b"a"), now_ms=NOW)
    bench.append(Record(value=b"v", key=b"b"), now_ms=NOW + 3000)
    bench.append(Record(value=b"v", key=b"c"), now_ms=NOW + 5000)
    seconds = [INDEX_ENTRY.unpack_from(bench.indexes[1], 40 + 16 + n * 20)[2] for n in (1, 2)]
    assert seconds == [3, 2]
    assert INDEX_HEADER.unpack_from(bench.indexes[1])[:2] == (NOW + 3000, NOW + 5000)


def test_a_file_is_seeded_from_one_that_was_released(core: Core) -> None:
    bench = Workbench(core, indexes=((4, 2),))
    bench.append(Record(value=b"v", key=b"a"), now_ms=NOW)
    bench.appender.release_index()
    later = bytearray(index_file_size(4, 9))
    bench.appender.attach_index(later, 4, 9)
    bench.append(Record(value=b"v", key=b"b"), now_ms=NOW + 3000)
    assert INDEX_ENTRY.unpack_from(later, 40 + 16 + 20)[2] == 3


def test_an_existing_file_goes_on(core: Core) -> None:
    bench = Workbench(core)
    records = [Record(value=b"v", key=b"k%d" % n, tags=("t",)) for n in range(6)]
    for record in records[:3]:
        bench.append(record)
    index, log = bench.indexes[0], bench.log
    again = core.Appender(HOST, HOST, 1 << 20)
    again.attach_log(log, 0, bench.end)
    again.attach_index(index, 16, 1000)
    handle = again.add_queue("orders", 0, KIND_SIMPLE, 3, 3)
    for record in records[3:]:
        again.append(handle, record, NOW, 0)
    whole = Workbench(core)
    for record in records:
        whole.append(record)
    assert index == whole.indexes[0]
    assert log == whole.log


def test_a_full_index_takes_nothing_of_an_append(core: Core) -> None:
    bench = Workbench(core, indexes=((4, 4),))
    record = Record(value=b"v", key=b"a", tags=("t",))
    assert bench.append(record) == 0
    before = bytes(bench.indexes[0]), bytes(bench.log)
    assert bench.append(record) == -2
    assert bench.append(record, record) == -2
    assert (bytes(bench.indexes[0]), bytes(bench.log)) == before
    assert bench.append(Record(value=b"v", key=b"b")) == 1
    assert bench.append(Record(value=b"v")) == 2  # no key needs no room
    assert (bench.appender.index_full, bench.appender.index_room) == (1, 0)


def test_without_an_index_only_records_without_keys_fit(core: Core) -> None:
    bench = Workbench(core, indexes=())
    assert bench.append(Record(value=b"v", key=b"a")) == -2
    assert bench.append(Record(value=b"v")) == 0
    assert (bench.appender.index_attached, bench.appender.index_room) == (0, 0)
    with pytest.raises(BadRequestError):
        bench.appender.release_index()


@pytest.mark.parametrize("slot", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x09"])
def test_an_entry_put_under_a_damaged_slot_begins_a_chain(core: Core, slot: bytes) -> None:
    bench = Workbench(core, indexes=((1, 20),))
    bench.indexes[0][40:44] = slot
    bench.append(Record(value=b"v", key=b"a"))
    assert INDEX_ENTRY.unpack_from(bench.indexes[0], 44 + 20)[3] == 0
    assert INDEX_HEADER.unpack_from(bench.indexes[0])[4:] == (1, 2)


@pytest.mark.parametrize("keep", [1, 2, 7, 13])
def test_a_relinked_index_is_what_it_was_when_it_had_those_entries(core: Core, keep: int) -> None:
    bench = Workbench(core, indexes=((5, 40),))
    snapshots = {1: bytes(bench.indexes[0])}
    for n in range(12):
        bench.append(Record(value=b"v", key=b"k%d" % (n % 5)), now_ms=NOW + n * 700)
        snapshots[n + 2] = bytes(bench.indexes[0])
    index = bytearray(bench.indexes[0])
    index[40:60] = b"\xff" * 20  # every slot damaged
    for n in range(1, keep):
        index[60 + n * 20 + 16 : 60 + n * 20 + 20] = b"\x7f" * 4  # and every chain
    core.index_relink(index, 5, 40, keep)
    expected = bytearray(snapshots[keep])
    if keep == 1:
        expected[36:40] = (1).to_bytes(4)
    # Begin and end belong to the caller, who knows the records; slots, chains and counts are here.
    assert index[32:] == expected[32:]
    index[:32] = expected[:32]
    assert index == expected


def test_relinking_leaves_alone_what_is_known_to_be_zeros(core: Core) -> None:
    bench = Workbench(core, indexes=((5, 40),))
    for n in range(12):
        bench.append(Record(value=b"v", key=b"k%d" % n), now_ms=NOW + n)
    stop = 60 + 10 * 20
    index = bytearray(bench.indexes[0])
    core.index_relink(index, 5, 40, 4, stop)
    assert not any(index[60 + 4 * 20 : stop])
    assert index[stop:] == bench.indexes[0][stop:], "entries 10 to 12 lie behind it"
    kept = bytearray(bench.indexes[0])
    core.index_relink(kept, 5, 40, 4, 0)
    assert kept[60:] == bench.indexes[0][60:]


def test_relinking_a_whole_index_restores_identical_bytes(core: Core) -> None:
    bench = Workbench(core, indexes=((5, 14),))
    for n in range(13):
        bench.append(Record(value=b"v", key=b"k%d" % (n % 5)), now_ms=NOW + n * 700)
    whole = bytes(bench.indexes[0])
    core.index_relink(bench.indexes[0], 5, 14, 14)
    assert bytes(bench.indexes[0]) == whole
    core.index_relink(bench.indexes[0], 5, 14, 99)
    assert bytes(bench.indexes[0]) == whole


def test_every_flipped_bit_of_an_index_leads_to_few_positions_and_an_end(core: Core) -> None:
    """Wrong positions are possible, for the reader looks at the record; endless walks are not."""
    bench = Workbench(core, indexes=((2, 12),))
    for n in range(11):
        bench.append(Record(value=b"v", key=b"k%d" % (n % 3)))
    index = bench.indexes[0]
    for bit in range(len(index) * 8):
        index[bit >> 3] ^= 1 << (bit & 7)
        for n in range(3):
            hits = core.index_lookup(index, 2, 12, f"orders#k{n}", 0, FOREVER, 999)
            assert len(hits) <= 11
        index[bit >> 3] ^= 1 << (bit & 7)


@given(data=st.binary(min_size=40 + 8 + 60, max_size=40 + 8 + 60), text=st.text(max_size=4))
def test_any_bytes_may_be_asked_for_a_key(core: Core, data: bytes, text: str) -> None:
    assert len(core.index_lookup(data, 2, 3, text, 0, FOREVER, 99)) <= 2
    relinked = bytearray(data)
    core.index_relink(relinked, 2, 3, 3)
    assert relinked[32 + 4 : 40] == (3).to_bytes(4)


@pytest.mark.parametrize(("slots", "entries"), [(0, 5), (5, 0), (100, 100)])
def test_a_file_too_small_for_its_sizes_is_refused(core: Core, slots: int, entries: int) -> None:
    small = bytearray(100)
    with pytest.raises(BadRequestError):
        core.index_lookup(small, slots, entries, "t#k", 0, 1, 1)
    with pytest.raises(BadRequestError):
        core.index_relink(small, slots, entries, 1)
    with pytest.raises(BadRequestError):
        core.Appender(HOST, HOST, 1 << 20).attach_index(small, slots, entries)


def test_a_query_looks_under_every_text_that_a_record_of_the_key_may_have() -> None:
    assert index_strings(b"order-1") == ("order-1", key_token(b"order-1"))
    assert index_strings(b"two words") == (key_token(b"two words"), "two")
    assert index_strings(b" two") == (key_token(b" two"), "two")
    assert index_strings(b"\xff") == (key_token(b"\xff"),)
    assert index_strings(b"") == (key_token(b""),)
    assert index_strings(b" ") == (key_token(b" "),)
    assert index_strings(b"a\x01b") == (key_token(b"a\x01b"),)


@given(key=st.binary(max_size=12))
def test_a_plain_key_is_one_word_of_utf8(key: bytes) -> None:
    assert is_plain_key(key) == (index_strings(key)[0] == key.decode("utf-8", "surrogateescape"))
