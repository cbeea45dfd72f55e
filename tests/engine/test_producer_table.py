"""The producer table against a list of everything that was ever written."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.producer_table import SEQUENCES, WRITES_MAX, ProducerTable, Write
from penstock.errors import BadRequestError, ProducerFencedError, SequenceGapError
from penstock.record import Producer

SHARD = "orders_0"
LAST_SEQUENCE = SEQUENCES - 1


class Written(NamedTuple):
    producer: Producer
    record_count: int
    first_offset: int


class AgainstTheLog(RuleBasedStateMachine):
    """The model keeps every write; what the table may remember is computed from it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ProducerTable()
        self.log: list[Written] = []
        self.next_offset = 0

    def remembered(self, producer_id: int) -> list[Written]:
        own = [each for each in self.log if each.producer.id == producer_id]
        return own[-WRITES_MAX:]

    @rule(
        producer_id=st.integers(1, 3),
        count=st.integers(1, 4),
        near_the_wrap=st.booleans(),
        epoch_step=st.sampled_from([0, 0, 0, 1]),
    )
    def write_the_next(
        self, producer_id: int, count: int, near_the_wrap: bool, epoch_step: int
    ) -> None:
        known = self.remembered(producer_id)
        if known and epoch_step:
            producer = Producer(producer_id, known[-1].producer.epoch + 1, 0)
        elif known:
            last = known[-1]
            sequence = (last.producer.sequence + last.record_count) % SEQUENCES
            producer = Producer(producer_id, last.producer.epoch, sequence)
        else:
            producer = Producer(producer_id, 0, LAST_SEQUENCE - 3 if near_the_wrap else 0)
        assert self.table.check(producer, count, SHARD) is None
        self.table.remember(producer, count, self.next_offset, self.next_offset)
        self.log.append(Written(producer, count, self.next_offset))
        self.next_offset += count

    @rule(back=st.integers(1, 12), producer_id=st.integers(1, 3))
    def repeat(self, back: int, producer_id: int) -> None:
        own = [each for each in self.log if each.producer.id == producer_id]
        if back > len(own):
            return
        written = own[-back]
        newest_epoch = own[-1].producer.epoch
        if written.producer.epoch < newest_epoch:
            with pytest.raises(ProducerFencedError) as fenced:
                self.table.check(written.producer, written.record_count, SHARD)
            assert fenced.value.newest_epoch == newest_epoch
        elif written in self.remembered(producer_id):
            found = self.table.check(written.producer, written.record_count, SHARD)
            assert found == written.first_offset
            with pytest.raises(SequenceGapError):
                self.table.check(written.producer, written.record_count + 1, SHARD)
        else:
            with pytest.raises(SequenceGapError):
                self.table.check(written.producer, written.record_count, SHARD)

    @rule(producer_id=st.integers(1, 3), gap=st.integers(1, 3))
    def leave_a_gap(self, producer_id: int, gap: int) -> None:
        known = self.remembered(producer_id)
        if known:
            last = known[-1]
            expected = (last.producer.sequence + last.record_count) % SEQUENCES
            wrong = last.producer._replace(sequence=(expected + gap) % SEQUENCES)
            with pytest.raises(SequenceGapError) as caught:
                self.table.check(wrong, 1, SHARD)
            assert caught.value.expected == expected

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(0, self.next_offset - 10), self.next_offset))
        before = {each.producer.id for each in self.log}
        # What is kept of a producer is what was remembered of it and is not cut: older writes
        # cannot come back.
        kept = [
            each
            for producer_id in before
            for each in self.remembered(producer_id)
            if each.first_offset + each.record_count <= offset
        ]
        forgotten = self.table.truncate_from(offset)
        self.log = sorted(kept, key=lambda each: each.first_offset)
        self.next_offset = offset
        assert set(forgotten) == before - {each.producer.id for each in kept}

    @rule()
    def remember_again(self) -> None:
        if self.log:
            last = self.log[-1]
            before = self.table.to_list()
            self.table.remember(
                last.producer, last.record_count, last.first_offset, last.first_offset
            )
            assert self.table.to_list() == before

    @rule()
    def restore(self) -> None:
        other = ProducerTable.from_list(self.table.to_list())
        assert other.to_list() == self.table.to_list()
        self.table = other

    @invariant()
    def remembers_the_last_writes_of_each(self) -> None:
        for producer_id in range(1, 4):
            held = [
                Written(Producer(producer_id, w.epoch, w.sequence), w.record_count, w.first_offset)
                for w in self.table.writes_of(producer_id)
            ]
            assert held == self.remembered(producer_id)

    @invariant()
    def producers_are_in_the_order_of_their_last_writes(self) -> None:
        last_offsets = [writes[-1].first_offset for _, writes in self.table.to_list()]
        assert last_offsets == sorted(last_offsets)


TestAgainstTheLog = AgainstTheLog.TestCase


def test_zero_follows_the_largest_sequence() -> None:
    table = ProducerTable()
    table.remember(Producer(7, 0, LAST_SEQUENCE), 1, 0, 0)
    assert table.check(Producer(7, 0, 0), 1, SHARD) is None


def test_a_write_may_run_across_the_largest_sequence() -> None:
    table = ProducerTable()
    table.remember(Producer(7, 0, LAST_SEQUENCE - 1), 5, 100, 0)
    assert table.check(Producer(7, 0, 3), 1, SHARD) is None
    assert table.check(Producer(7, 0, LAST_SEQUENCE - 1), 5, SHARD) == 100
    with pytest.raises(SequenceGapError):
        table.check(Producer(7, 0, 0), 1, SHARD)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerTable().check(Producer(7, 3, 12345), 1, SHARD) is None


def test_a_new_epoch_must_begin_at_zero() -> None:
    table = ProducerTable()
    table.remember(Producer(7, 0, 0), 5, 0, 0)
    with pytest.raises(SequenceGapError) as caught:
        table.check(Producer(7, 1, 5), 1, SHARD)
    assert caught.value.expected == 0
    assert table.check(Producer(7, 1, 0), 1, SHARD) is None


def test_a_cut_brings_the_epoch_before_back() -> None:
    table = ProducerTable()
    table.remember(Producer(7, 0, 0), 5, 0, 0)
    table.remember(Producer(7, 1, 0), 5, 5, 0)
    table.truncate_from(5)
    assert table.check(Producer(7, 0, 5), 1, SHARD) is None


def test_a_write_that_is_cut_in_part_is_forgotten() -> None:
    table = ProducerTable()
    table.remember(Producer(7, 0, 0), 5, 0, 0)
    table.remember(Producer(7, 0, 5), 5, 5, 0)
    assert table.truncate_from(7) == []
    assert table.check(Producer(7, 0, 5), 5, SHARD) is None


def test_the_producer_that_was_silent_longest_goes_when_there_are_too_many() -> None:
    table = ProducerTable(producers_max=3)
    for producer_id in (1, 2, 3):
        table.remember(Producer(producer_id, 0, 0), 1, producer_id, producer_id)
    table.remember(Producer(1, 0, 1), 1, 4, 4)
    table.remember(Producer(9, 0, 0), 1, 5, 5)
    assert [producer_id for producer_id, _ in table.to_list()] == [3, 1, 9]
    assert len(ProducerTable.from_list(table.to_list(), producers_max=2)) == 2


@pytest.mark.parametrize(
    ("producer", "count"),
    [
        (Producer(1, 0, -1), 1),
        (Producer(1, 0, SEQUENCES), 1),
        (Producer(1, -1, 0), 1),
        (Producer(1, 0, 0), 0),
    ],
)
def test_numbers_that_no_producer_can_have_are_refused(producer: Producer, count: int) -> None:
    with pytest.raises(BadRequestError):
        ProducerTable().check(producer, count, SHARD)


@pytest.mark.parametrize(
    "writes",
    [
        [],
        [Write(0, 0, 0, 0, 0)],
        [Write(0, 5, 1, 5, 0), Write(0, 0, 1, 0, 0)],
        [Write(0, n, 1, n, 0) for n in range(6)],
    ],
)
def test_writes_that_no_table_can_hold_are_refused(writes: list[Write]) -> None:
    with pytest.raises(ValueError, match="producer 7"):
        ProducerTable.from_list([(7, writes)])
