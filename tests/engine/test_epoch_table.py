"""The epoch table against the list of every record's epoch."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.epoch_table import NO_EPOCH, EpochTable


class AgainstTheRecords(RuleBasedStateMachine):
    """The model is the log itself: the epoch of each record, from `earliest` on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = EpochTable()
        self.earliest = 0
        self.epochs: list[int] = []
        self.newest_dropped = NO_EPOCH

    @property
    def next_offset(self) -> int:
        return self.earliest + len(self.epochs)

    @rule(step=st.integers(0, 3), count=st.integers(1, 5))
    def write(self, step: int, count: int) -> None:
        epoch = max(self.table.latest, 0) + step
        for _ in range(count):
            self.table.add(epoch, self.next_offset)
            self.epochs.append(epoch)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.earliest, self.next_offset))
        self.table.truncate_from(offset)
        del self.epochs[offset - self.earliest :]
        if offset <= self.earliest:
            self.newest_dropped = NO_EPOCH

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.earliest, self.next_offset))
        if offset > self.earliest:
            self.newest_dropped = self.epochs[offset - self.earliest - 1]
        self.table.drop_before(offset)
        del self.epochs[: offset - self.earliest]
        self.earliest = offset

    @rule(data=st.data(), step=st.integers(0, 2))
    def replace_a_tail(self, data: st.DataObject, step: int) -> None:
        """A record that goes back in offset replaces all from there on, without a cut."""
        if not self.epochs:
            return
        index = data.draw(st.integers(0, len(self.epochs) - 1))
        before = self.epochs[index - 1] if index else self.newest_dropped
        epoch = max(before, 0) + step
        if index == 0:
            self.table.truncate_from(self.earliest)
        self.table.add(epoch, self.earliest + index)
        self.epochs[index:] = [epoch]
        if index == 0:
            self.newest_dropped = NO_EPOCH

    @rule()
    def restore(self) -> None:
        other = EpochTable.from_list(self.table.to_list())
        assert other.to_list() == self.table.to_list()
        self.table = other

    @invariant()
    def knows_the_epoch_of_every_record(self) -> None:
        held = [self.table.epoch_at(self.earliest + n) for n in range(len(self.epochs))]
        assert held == self.epochs

    @invariant()
    def says_where_every_epoch_ends(self) -> None:
        if not self.epochs:
            return
        for asked in range(max(self.epochs) + 3):
            epoch, end = self.table.end_of(asked, self.next_offset)
            not_above = [n for n, each in enumerate(self.epochs) if each <= asked]
            if not_above:
                assert epoch == self.epochs[not_above[-1]]
                assert end == self.earliest + not_above[-1] + 1
            else:
                assert (epoch, end) == (asked, self.earliest)

    @invariant()
    def knows_who_wrote_last(self) -> None:
        if self.epochs:
            assert self.table.latest == self.epochs[-1]


TestAgainstTheRecords = AgainstTheRecords.TestCase


def test_a_shard_into_which_nothing_was_written_ends_where_it_ends() -> None:
    table = EpochTable()
    assert table.latest == NO_EPOCH
    assert table.end_of(3, 0) == (NO_EPOCH, 0)
    assert table.epoch_at(0) == NO_EPOCH


def test_an_epoch_newer_than_all_records_ends_with_the_shard() -> None:
    """A new leader that has not written yet sends a replica of a lost epoch to its own end."""
    table = EpochTable.from_list([(1, 0), (3, 40)])
    assert table.end_of(4, 100) == (3, 100)
    assert table.end_of(2, 100) == (1, 40)


def test_an_epoch_older_than_all_that_are_kept_ends_where_those_begin() -> None:
    table = EpochTable.from_list([(5, 70)])
    assert table.end_of(2, 100) == (2, 70)


def test_a_shard_that_retention_emptied_still_knows_who_wrote_last() -> None:
    table = EpochTable.from_list([(1, 0), (3, 40)])
    table.drop_before(100)
    assert table.to_list() == [(3, 100)]


def test_an_older_epoch_behind_a_newer_one_replaces_it() -> None:
    table = EpochTable.from_list([(1, 0), (5, 10), (7, 20)])
    table.add(2, 30)
    assert table.to_list() == [(1, 0), (2, 30)]


@pytest.mark.parametrize(
    "entries", [[(1, 0), (1, 5)], [(2, 0), (1, 5)], [(1, 5), (2, 5)], [(-1, 0)]]
)
def test_entries_that_do_not_ascend_are_refused(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        EpochTable.from_list(entries)
