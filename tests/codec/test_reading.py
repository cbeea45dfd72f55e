"""Pages: where they stop, what they skip, and what they say about the next one."""

from __future__ import annotations

import pytest
from tests.codec.workbench import NOW, Workbench

from penstock.codec.format import MULTI_TAG, PRE_BLANK, QUEUE_UNIT, tag_code
from penstock.codec.interface import ReadPage
from penstock.codec.select import Core
from penstock.record import Record


def offsets(page: ReadPage) -> list[int]:
    return [record.offset for record in page[0]]


def filled(core: Core, count: int = 10) -> Workbench:
    bench = Workbench(core)
    for n in range(count):
        tag = "odd" if n % 2 else "even"
        bench.append(Record(value=b"v", key=b"k%d" % (n % 3), tags=(tag,), timestamp_ms=NOW + n))
    return bench


def test_a_page_stops_at_its_record_limit(core: Core) -> None:
    bench = filled(core)
    page = bench.read(2, max_records=3)
    assert (offsets(page), page[1]) == ([2, 3, 4], 5)
    assert bench.read(max_records=0)[:3] == ([], 0, 0)


def test_a_page_stops_before_its_size_limit_but_never_empty(core: Core) -> None:
    bench = filled(core)
    size = sum(raw.size for raw in bench.raws()[:3])
    assert offsets(bench.read(max_size=1)) == [0]
    assert offsets(bench.read(max_size=size - 1)) == [0, 1]
    page = bench.read(max_size=size)
    assert offsets(page) == [0, 1, 2]
    assert page[1:] == (3, size, None)
    assert bench.read(max_size=0)[:3] == ([], 0, 0)


def test_what_is_skipped_does_not_count(core: Core) -> None:
    bench = filled(core)
    size = 2 * bench.raws()[1].size
    page = bench.read(max_size=size, tag="odd")
    assert (offsets(page), page[1], page[2]) == ([1, 3], 5, size)


def test_a_page_ends_where_the_next_file_begins(core: Core) -> None:
    bench = filled(core, 4)
    units = list(QUEUE_UNIT.iter_unpack(bench.units))
    moved = [*units[:2], (1 << 40, 10, 0), units[3]]
    page = bench.read(units=b"".join(QUEUE_UNIT.pack(*unit) for unit in moved))
    assert (offsets(page), page[1], page[3]) == ([0, 1], 2, None)


def test_deleted_ranges_are_skipped(core: Core) -> None:
    bench = filled(core)
    page = bench.read(deleted=((0, 2), (4, 5), (8, 100)))
    assert (offsets(page), page[1]) == ([2, 3, 5, 6, 7], 10)
    page = bench.read(deleted=((0, 2), (4, 5), (8, 100)), max_records=3)
    assert (offsets(page), page[1]) == ([2, 3, 5], 6)


def test_deleted_records_may_be_damaged(core: Core) -> None:
    bench = filled(core, 3)
    bench.log[bench.raw(0).size + 60] ^= 1
    page = bench.read(deleted=((1, 2),))
    assert (offsets(page), page[3]) == ([0, 2], None)


def test_expired_records_are_skipped_without_ending_the_page(core: Core) -> None:
    bench = Workbench(core)
    for expires in (NOW + 1, NOW, NOW - 1, None, NOW + 2):
        bench.append(Record(value=b"v", expires_at_ms=expires))
    assert offsets(bench.read(now_ms=NOW)) == [0, 3, 4]
    assert offsets(bench.read(now_ms=NOW + 2)) == [3]


def test_pre_blank_units_are_holes(core: Core) -> None:
    bench = filled(core, 2)
    page = bench.read(0, units=PRE_BLANK * 3)
    assert (page[0], page[1], page[3]) == ([], 3, None)


def test_a_tag_finds_exactly_its_records(core: Core) -> None:
    bench = Workbench(core)
    tag_sets = [("a",), ("a/b",), ("a", "b"), (), (MULTI_TAG,), ("b", "a"), ("Aa",), ("BB",)]
    for tags in tag_sets:
        bench.append(Record(value=b"v", tags=tags))
    for tag in ("a", "b", "a/b", MULTI_TAG, "Aa", "BB", "none", ""):
        expected = [n for n, tags in enumerate(tag_sets) if tag in tags]
        assert offsets(bench.read(tag=tag)) == expected, tag
    # "Aa" and "BB" have the same hash; only the records tell them apart.
    assert tag_code("Aa") == tag_code("BB")


def test_units_of_other_tags_are_not_looked_at(core: Core) -> None:
    bench = filled(core, 2)
    bench.log[60] ^= 1  # a record of the other tag
    page = bench.read(tag="odd")
    assert (offsets(page), page[3]) == ([1], None)


@pytest.mark.parametrize("code", [-(1 << 63) + 100, 1 << 40])
def test_a_code_that_is_no_hash_leaves_the_decision_to_the_record(core: Core, code: int) -> None:
    """Addresses of extension units, and delivery times of delayed records."""
    bench = filled(core, 2)
    units = [(position, size, code) for position, size, _ in QUEUE_UNIT.iter_unpack(bench.units)]
    page = bench.read(units=b"".join(QUEUE_UNIT.pack(*unit) for unit in units), tag="odd")
    assert offsets(page) == [1]


def test_a_key_finds_its_records_plain_or_not(core: Core) -> None:
    bench = Workbench(core)
    keys = [b"k", None, b"k", b"", b"\xff", b"a b"]
    for key in keys:
        bench.append(Record(value=b"v", key=key))
    bench.append(Record(value=None, key=b"k"))
    for key, expected in ((b"k", [0, 2, 6]), (b"", [3]), (b"\xff", [4]), (b"a b", [5]), (b"a", [])):
        assert offsets(bench.read(key=key)) == expected, key


def test_reading_nothing_is_no_error(core: Core) -> None:
    bench = Workbench(core)
    assert bench.read() == ([], 0, 0, None)
    assert bench.read(5, units=b"") == ([], 5, 0, None)


def test_half_a_unit_is_not_read(core: Core) -> None:
    bench = filled(core, 2)
    page = bench.read(units=bench.units[:-1])
    assert (offsets(page), page[1]) == ([0], 1)
