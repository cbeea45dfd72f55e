"""The state of a shard: folding commands, cutting, and coming back from bytes."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.segment.control.control_records import DeleteBefore, DeleteOffsets, Seal
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.errors import NotSupportedError
from penstock.record import Offset, Position, Producer, QueueKind

OFFSET_END = 30


def same(one: ShardState, other: ShardState) -> bool:
    return one.to_bytes() == other.to_bytes()


class AgainstTheHistory(RuleBasedStateMachine):
    """The model holds the epochs of the records that are there, and the set of deleted offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ShardState(QueueKind.SIMPLE)
        self.epochs: list[int] = []
        self.deleted: set[int] = set()
        self.floor = 0
        self.commands = 0

    @rule(count=st.integers(1, 5), step=st.integers(0, 1))
    def append(self, count: int, step: int) -> None:
        epoch = (self.epochs[-1] if self.epochs else 0) + step
        first = len(self.epochs)
        self.state.epochs.add(epoch, first)
        self.state.producers.remember(Producer(1, 0, first), count, first, first)
        self.state.latest_offset = Offset(first + count)
        self.epochs += [epoch] * count

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        low, high = self.state.commit_offset, self.state.latest_offset
        self.state.commit_offset = Offset(data.draw(st.integers(low, high)))

    @rule(start=st.integers(0, OFFSET_END), size=st.integers(1, 5))
    def delete(self, start: int, size: int) -> None:
        command = DeleteOffsets(ranges=((start, start + size),))
        assert self.state.apply(command, self.commands)
        self.deleted |= set(range(start, start + size))
        self.commands += 1
        assert not self.state.apply(Seal(), self.commands - 1), "folded before"

    @rule(offset=st.integers(0, OFFSET_END))
    def delete_before(self, offset: int) -> None:
        assert self.state.apply(DeleteBefore(offset=offset), self.commands)
        self.commands += 1
        self.floor = max(self.floor, offset)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.state.commit_offset, self.state.latest_offset))
        self.state.truncate_from(offset)
        del self.epochs[offset:]

    @rule()
    def restore(self) -> None:
        other = ShardState.from_bytes(self.state.to_bytes())
        assert same(self.state, other)
        self.state = other

    @invariant()
    def hides_what_is_deleted_and_nothing_else(self) -> None:
        hidden = {o for o in range(OFFSET_END + 10) if self.state.is_deleted(o)}
        assert hidden == self.deleted | set(range(self.floor))
        found = self.state.deleted_between(0, OFFSET_END + 10)
        live = {o for o in self.deleted if o >= self.floor}
        assert {o for span in found for o in range(*span)} == live

    @invariant()
    def the_ends_are_in_order(self) -> None:
        state = self.state
        assert state.latest_offset == len(self.epochs)
        assert state.earliest_offset == min(self.floor, len(self.epochs))
        assert 0 <= state.commit_offset <= state.latest_offset

    @invariant()
    def knows_the_epochs_of_what_is_there(self) -> None:
        for offset in range(self.state.earliest_offset, len(self.epochs)):
            assert self.state.epochs.epoch_at(offset) == self.epochs[offset]


TestAgainstTheHistory = AgainstTheHistory.TestCase


def test_a_seal_stays() -> None:
    state = ShardState(QueueKind.BATCH)
    state.apply(Seal(), 0)
    assert ShardState.from_bytes(state.to_bytes()).sealed


def test_a_deletion_outlives_the_wrong_record_at_its_offset() -> None:
    """A replica learns of a deletion while it still has another leader's record there."""
    state = ShardState(QueueKind.SIMPLE)
    state.latest_offset = Offset(60)
    state.apply(DeleteOffsets(ranges=((50, 51),)), 0)
    state.truncate_from(45)
    state.latest_offset = Offset(100)
    assert state.is_deleted(50)


def test_a_replica_that_lags_hides_what_was_deleted_before_it_came() -> None:
    state = ShardState(QueueKind.SIMPLE)
    state.epochs.add(1, 0)
    state.epochs.add(2, 50)
    state.latest_offset = Offset(80)
    state.apply(DeleteBefore(offset=100), 0)
    assert state.earliest_offset == 80
    assert state.epochs.end_of(1, 80) == (1, 80)
    state.latest_offset = Offset(120)
    assert state.earliest_offset == 100


def test_a_shard_may_begin_past_zero() -> None:
    state = ShardState(QueueKind.SIMPLE, start_offset=7)
    assert (state.earliest_offset, state.commit_offset, state.latest_offset) == (7, 7, 7)


def test_all_plain_fields_come_back() -> None:
    state = ShardState(QueueKind.BATCH)
    state.latest_offset = Offset(1 << 40)
    state.commit_offset = Offset(1 << 39)
    state.floor_offset = Offset(1 << 38)
    state.control_offset = Offset(12)
    state.folded_until = Position(1 << 50)
    state.queue_first, state.queue_units, state.queue_crc = 20_000, 123, 0xFFFFFFFF
    other = ShardState.from_bytes(state.to_bytes())
    for name in ShardState.__slots__:
        assert getattr(other, name) == getattr(state, name), name


def test_an_idle_shard_takes_little_room() -> None:
    state = ShardState(QueueKind.SIMPLE)
    state.latest_offset = state.commit_offset = Offset(1 << 62)
    state.folded_until = Position(1 << 62)
    state.queue_crc = 0xFFFFFFFF
    assert len(state.to_bytes()) <= 100
    assert state.deleted_between(0, 1 << 62) == []
    gc.collect()
    tracemalloc.start()
    try:
        states = [ShardState.from_bytes(state.to_bytes()) for _ in range(1000)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(states) == 1000
    assert used / 1000 < 400
    assert sys.getsizeof(states[0]) <= 200


@given(st.binary(max_size=80))
def test_random_bytes_are_no_state(data: bytes) -> None:
    with pytest.raises((ValueError, NotSupportedError)):
        ShardState.from_bytes(data)


def test_every_cut_of_a_state_is_refused() -> None:
    state = ShardState(QueueKind.SIMPLE)
    state.deleted.add(3, 5)
    state.epochs.add(1, 0)
    data = state.to_bytes()
    for size in range(len(data)):
        with pytest.raises(ValueError, match="no shard state"):
            ShardState.from_bytes(data[:size])


def test_a_state_of_a_newer_release_is_refused_as_such() -> None:
    fields = msgspec.msgpack.decode(ShardState(QueueKind.SIMPLE).to_bytes(), type=list[object])
    fields[0] = 2
    with pytest.raises(NotSupportedError, match="newer release"):
        ShardState.from_bytes(msgspec.msgpack.encode(fields))


def test_a_field_that_a_newer_release_added_is_passed_over() -> None:
    fields = msgspec.msgpack.decode(ShardState(QueueKind.SIMPLE).to_bytes(), type=list[object])
    ShardState.from_bytes(msgspec.msgpack.encode([*fields, "new"]))


def test_a_commit_offset_past_the_end_is_never_written() -> None:
    state = ShardState(QueueKind.SIMPLE)
    state.commit_offset = Offset(1)
    with pytest.raises(AssertionError):
        state.to_bytes()
