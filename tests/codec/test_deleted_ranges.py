"""Deleted ranges against a plain set of offsets."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.codec.deleted_ranges import DeletedRanges, coalesce, cover

OFFSET_END = 40
offsets = st.integers(0, OFFSET_END)
ranges = st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair)))


class AgainstASet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deleted = DeletedRanges()
        self.model: set[int] = set()

    @rule(span=ranges)
    def add(self, span: tuple[int, int]) -> None:
        self.deleted.add(*span)
        self.model |= set(range(*span))

    @rule(spans=st.lists(ranges, max_size=30))
    def add_ranges(self, spans: list[tuple[int, int]]) -> None:
        self.deleted.add_ranges(spans)
        for span in spans:
            self.model |= set(range(*span))

    @rule(offset=offsets)
    def drop_before(self, offset: int) -> None:
        self.deleted.drop_before(offset)
        self.model = {each for each in self.model if each >= offset}

    @rule(offset=offsets)
    def truncate_from(self, offset: int) -> None:
        self.deleted.truncate_from(offset)
        self.model = {each for each in self.model if each < offset}

    @rule(span=ranges)
    def overlapping(self, span: tuple[int, int]) -> None:
        asked = set(range(*span))
        expected = [each for each in self.deleted.to_list() if asked & set(range(*each))]
        assert self.deleted.overlapping(*span) == expected

    @rule()
    def restore(self) -> None:
        for other in (
            DeletedRanges.from_list(self.deleted.to_list()),
            DeletedRanges.from_steps(self.deleted.to_steps()),
        ):
            assert other.to_list() == self.deleted.to_list()
            self.deleted = other

    @invariant()
    def holds_the_same_offsets(self) -> None:
        held = [offset for span in self.deleted for offset in range(*span)]
        assert held == sorted(self.model)
        assert self.deleted.count == len(self.model)
        assert {o for o in range(OFFSET_END + 2) if o in self.deleted} == self.model

    @invariant()
    def ranges_neither_overlap_nor_touch(self) -> None:
        spans = self.deleted.to_list()
        assert all(before[1] < after[0] for before, after in pairwise(spans))
        assert all(start < end for start, end in spans)
        assert len(self.deleted) == len(spans)


TestAgainstASet = AgainstASet.TestCase


@given(st.lists(ranges))
def test_coalesced_ranges_hold_the_same_offsets_in_the_fewest_ranges(
    spans: list[tuple[int, int]],
) -> None:
    merged = coalesce(spans)
    assert {o for span in merged for o in range(*span)} == {o for s in spans for o in range(*s)}
    assert all(before[1] < after[0] for before, after in pairwise(merged))


@given(st.lists(ranges), ranges)
def test_ranges_cover_a_span_when_they_hold_all_of_its_offsets(
    spans: list[tuple[int, int]], span: tuple[int, int]
) -> None:
    held = {o for each in spans for o in range(*each)}
    assert cover(coalesce(spans), *span) == (set(range(*span)) <= held)


def test_a_hundred_thousand_single_offsets_are_deleted_without_quadratic_work() -> None:
    singles = range(0, 200_000, 2)
    started = time.thread_time()
    together = DeletedRanges()
    together.add_ranges((offset, offset + 1) for offset in singles)
    one_by_one = DeletedRanges()
    for offset in singles:
        one_by_one.add(offset, offset + 1)
    in_tens = DeletedRanges()
    for at in range(0, 100_000, 10):
        in_tens.add_ranges((offset, offset + 1) for offset in singles[at : at + 10])
    for _ in range(1000):
        assert together.overlapping(100_000, 100_010) == [
            (n, n + 1) for n in range(100000, 100010, 2)
        ]
    elapsed = time.thread_time() - started
    assert together.to_list() == one_by_one.to_list() == in_tens.to_list()
    assert together.count == 100_000
    assert elapsed < 30, f"took {elapsed:.1f} s"


def test_offsets_up_to_the_largest_of_64_bits_can_be_deleted() -> None:
    largest = (1 << 63) - 1
    deleted = DeletedRanges.from_list([(0, 1), (largest - 1, largest)])
    assert largest - 1 in deleted
    assert DeletedRanges.from_steps(deleted.to_steps()).to_list() == deleted.to_list()


@pytest.mark.parametrize("steps", [[-1, 2], [0, 0], [3, 1, 0, 1], [3], [0, 1, -1, 5], [1, 1 << 63]])
def test_steps_that_are_no_ranges_are_refused(steps: list[int]) -> None:
    with pytest.raises(ValueError, match="range"):
        DeletedRanges.from_steps(steps)


def test_a_range_that_ends_before_it_starts_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        DeletedRanges().add(5, 4)


def test_readers_beside_a_writer_never_miss_what_was_deleted_before() -> None:
    deleted = DeletedRanges.from_list([(1_000_000, 1_000_001)])
    stop = threading.Event()
    missed: list[object] = []

    def look() -> None:
        while not stop.is_set():
            found = deleted.overlapping(999_990, 1_000_010)
            if found != [(1_000_000, 1_000_001)] or 1_000_000 not in deleted:
                missed.append(found)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for offset in range(0, 20_000, 2):
        deleted.add(offset, offset + 1)
    deleted.drop_before(20_000)
    stop.set()
    for reader in readers:
        reader.join()
    assert missed == []
