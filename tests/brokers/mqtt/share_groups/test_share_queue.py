"""Which messages of a shard a group has delivered: random operations against a plain model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.brokers.mqtt.share_groups.share_queue import ShareQueue

OWNERS = st.integers(1, 4)


class ShareQueueMachine(RuleBasedStateMachine):
    """The model has a state for each offset; the queue must agree, and lose or repeat nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ShareQueue()
        self.queue.fall_behind(0)
        self.owner: dict[int, int] = {}
        self.released: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.next = 0

    def owned(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.owner)))

    @rule(owner=OWNERS)
    def acquire_next(self, owner: int) -> None:
        offset = self.queue.next
        assert offset == self.next
        self.queue.acquire(offset, owner)
        self.queue.pass_to(offset + 1)
        self.owner[offset] = owner
        self.next += 1

    @rule()
    def pass_over_what_does_not_match(self) -> None:
        self.acknowledged.add(self.next)
        self.next += 1
        self.queue.pass_to(self.next)

    @precondition(lambda self: self.owner)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        offset = self.owned(data)
        self.queue.acknowledge(offset)
        del self.owner[offset]
        self.acknowledged.add(offset)

    @precondition(lambda self: self.owner)
    @rule(data=st.data())
    def release_all_of_an_owner(self, data: st.DataObject) -> None:
        owner = self.owner[self.owned(data)]
        for offset in [offset for offset, has in self.owner.items() if has == owner]:
            self.queue.release(offset)
            self.released[offset] = self.owner.pop(offset)

    @precondition(lambda self: self.released)
    @rule(owner=OWNERS)
    def acquire_released(self, owner: int) -> None:
        offset = self.queue.released[0]
        assert offset == min(self.released), "the oldest goes first"
        had_it = self.queue.acquire_released(owner)
        assert had_it == (self.released.pop(offset) == owner)
        self.owner[offset] = owner

    @precondition(lambda self: self.released)
    @rule()
    def drop_released(self) -> None:
        offset = min(self.released)
        self.queue.drop_released()
        del self.released[offset]
        self.acknowledged.add(offset)

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data())
    def acknowledge_or_release_what_is_acknowledged(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.acknowledged)))
        self.queue.acknowledge(offset)
        self.queue.release(offset)

    @invariant()
    def every_offset_has_one_state(self) -> None:
        assert self.queue.in_flight == self.owner
        assert self.queue.released == sorted(self.released)
        assert self.queue.pending() == sorted([*self.owner, *self.released])
        assert self.queue.next == self.next
        everything = [*self.owner, *self.released, *self.acknowledged]
        assert sorted(everything) == list(range(self.next))


TestShareQueue = ShareQueueMachine.TestCase
TestShareQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_must_not_be_delivered_again_is_not_pending() -> None:
    queue = ShareQueue()
    queue.acquire(3, 1)
    queue.acquire(4, 1)
    queue.mark_final(3)
    assert queue.pending() == [4]
    queue.acknowledge(3)
    assert not queue.final


def test_excluded_offsets_are_claimed_once() -> None:
    queue = ShareQueue()
    queue.fall_behind(5)
    queue.excluded.add(6)
    assert not queue.is_idle
    assert queue.claim_exclusion(6)
    assert not queue.claim_exclusion(6)
    queue.catch_up()
    assert queue.is_idle
