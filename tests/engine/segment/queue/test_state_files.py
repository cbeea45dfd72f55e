"""The states of many shards in bucket files: whole or refused, and cheap to save."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.state_files import (
    BUCKETS,
    PUBLISHED_SUFFIX,
    SHARD_STATES,
    StateFiles,
    bucket_of,
)
from penstock.engine.segment.recovery.checksummed_file import frame
from penstock.errors import CorruptionError, NotSupportedError
from penstock.platform.local_disk import LocalDisk
from penstock.record import Offset, QueueKind, ShardId
from penstock.testing import FaultyDisk, PowerCut

DIRECTORY = "store/penstock/shards"


def state_of(latest: int) -> ShardState:
    state = ShardState(QueueKind.SIMPLE)
    state.latest_offset = Offset(latest)
    return state


def ends(states: dict[ShardId, ShardState]) -> dict[ShardId, int]:
    return {shard: state.latest_offset for shard, state in states.items()}


def path_of(shard: ShardId) -> str:
    return f"{DIRECTORY}/{bucket_of(shard):02d}"


SHARDS = [ShardId(f"topic-{n % 7}", n) for n in range(120)]


class AgainstADictionary(RuleBasedStateMachine):
    """Some shards come, change and go; after any power cut, recovery finds what was saved durably
    last, and another process finds that or something newer."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.files = StateFiles(self.disk, DIRECTORY)
        self.states: dict[ShardId, ShardState] = {}
        self.durable: dict[ShardId, int] = {}
        self.dirty: set[ShardId] = set()

    @rule(numbers=st.lists(st.integers(0, len(SHARDS) - 1), min_size=1), latest=st.integers(0, 99))
    def change(self, numbers: list[int], latest: int) -> None:
        for number in numbers:
            shard = SHARDS[number]
            self.states.setdefault(shard, state_of(0)).latest_offset = Offset(latest)
            self.dirty.add(shard)

    @rule(number=st.integers(0, len(SHARDS) - 1))
    def remove(self, number: int) -> None:
        self.states.pop(SHARDS[number], None)
        self.dirty.add(SHARDS[number])

    @rule()
    def publish(self) -> None:
        self.files.save(self.dirty, self.states, durable=False)
        for shard in self.dirty:
            state = self.files.load(shard)
            expected = self.states.get(shard)
            assert (state and state.latest_offset) == (expected and expected.latest_offset)

    @rule()
    def save(self) -> None:
        self.files.save(self.dirty, self.states, durable=True)
        self.dirty.clear()
        self.durable = ends(self.states)

    @rule(seed=st.integers(0, 1000))
    def cut_power(self, seed: int) -> None:
        self.disk.crash(random.Random(seed))
        self.files = StateFiles(self.disk, DIRECTORY)
        states, damaged = self.files.load_all()
        assert damaged == []
        assert ends(states) == self.durable
        self.states = states
        self.dirty.clear()

    @invariant()
    def recovery_finds_what_was_saved_durably(self) -> None:
        states, damaged = StateFiles(self.disk, DIRECTORY).load_all()
        assert damaged == []
        assert ends(states) == self.durable


TestAgainstADictionary = AgainstADictionary.TestCase


NAMES = st.one_of(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1).map(str.encode),
    st.binary(min_size=1).filter(lambda name: 0 not in name),
)


@given(NAMES, st.integers(0, (1 << 31) - 1))
def test_any_name_of_a_topic_comes_back(name: bytes, partition: int) -> None:
    """Also one that a foreign log has as bytes that are no text."""
    topic = name.decode("utf-8", "surrogateescape")
    shard = ShardId(topic, partition)
    disk = FaultyDisk()
    StateFiles(disk, DIRECTORY).save([shard], {shard: state_of(5)}, durable=True)
    states, damaged = StateFiles(disk, DIRECTORY).load_all()
    assert (ends(states), damaged) == ({shard: 5}, [])


def saved() -> tuple[FaultyDisk, list[ShardId]]:
    """Return a disk on which one bucket holds three shards."""
    disk = FaultyDisk()
    bucket = bucket_of(SHARDS[0])
    together = [ShardId("t", n) for n in range(1000) if bucket_of(ShardId("t", n)) == bucket][:3]
    states = {shard: state_of(n + 1) for n, shard in enumerate(together)}
    StateFiles(disk, DIRECTORY).save(together, states, durable=True)
    return disk, together


def test_every_flipped_bit_of_a_bucket_is_found() -> None:
    disk, (shard, *_) = saved()
    size = len(disk.files()[path_of(shard)])
    for bit in range(size * 8):
        other = disk.copy()
        other.flip_bit(path_of(shard), bit)
        files = StateFiles(other, DIRECTORY)
        assert files.load_all() == ({}, [path_of(shard)])
        with pytest.raises(CorruptionError, match=DIRECTORY):
            files.load(shard)


def test_every_cut_of_a_bucket_is_found() -> None:
    disk, (shard, *_) = saved()
    size = len(disk.files()[path_of(shard)])
    for cut in range(size):
        other = disk.copy()
        other.open(path_of(shard)).truncate(cut)
        assert StateFiles(other, DIRECTORY).load_all() == ({}, [path_of(shard)])
        with pytest.raises(CorruptionError):
            StateFiles(other, DIRECTORY).load(shard)


def test_damage_in_one_bucket_leaves_the_others_readable() -> None:
    disk = FaultyDisk()
    states = {shard: state_of(n) for n, shard in enumerate(SHARDS)}
    StateFiles(disk, DIRECTORY).save(SHARDS, states, durable=True)
    disk.flip_bit(path_of(SHARDS[0]), 100)
    found, damaged = StateFiles(disk, DIRECTORY).load_all()
    assert damaged == [path_of(SHARDS[0])]
    lost = {shard for shard in SHARDS if bucket_of(shard) == bucket_of(SHARDS[0])}
    assert found.keys() == set(SHARDS) - lost


def test_a_bucket_under_the_name_of_another_is_damage() -> None:
    disk, (shard, *_) = saved()
    wrong = f"{DIRECTORY}/{(bucket_of(shard) + 1) % BUCKETS:02d}"
    disk.replace(wrong, disk.files()[path_of(shard)])
    assert StateFiles(disk, DIRECTORY).load_all()[1] == [wrong]


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:0],
        lambda body: body[:-1],
        lambda body: body + b"\0",
        lambda body: body[:3],
        lambda body: body[:1] + b"\xff" * (len(body) - 1),
        lambda body: body.replace(b"t_", b"t-"),
    ],
)
def test_a_checksum_over_nonsense_does_not_make_it_a_state(
    change: Callable[[bytes], bytes],
) -> None:
    disk, (shard, *_) = saved()
    body = disk.files()[path_of(shard)][24:-4]
    disk.replace(path_of(shard), frame(SHARD_STATES, 3, change(body)))
    assert StateFiles(disk, DIRECTORY).load_all() == ({}, [path_of(shard)])


def test_a_bucket_of_a_newer_release_is_not_taken_for_damage() -> None:
    disk, (shard, *_) = saved()
    disk.replace(path_of(shard), frame(SHARD_STATES._replace(version=2), 0, b""))
    with pytest.raises(NotSupportedError):
        StateFiles(disk, DIRECTORY).load_all()


def test_an_unknown_shard_has_no_state() -> None:
    disk, _ = saved()
    assert StateFiles(disk, DIRECTORY).load(ShardId("nobody", 0)) is None
    assert StateFiles(disk, "nowhere").load_all() == ({}, [])


def test_another_process_sees_what_was_published_and_recovery_does_not() -> None:
    disk, (shard, *_) = saved()
    writer = StateFiles(disk, DIRECTORY)
    states, _ = writer.load_all()
    states[shard].latest_offset = Offset(77)
    writer.save([shard], states, durable=False)
    reader = StateFiles(disk, DIRECTORY)
    state = reader.load(shard)
    assert state is not None
    assert state.latest_offset == 77
    assert reader.load_all(published=True)[0][shard].latest_offset == 77
    assert reader.load_all()[0][shard].latest_offset == 1


def test_a_torn_published_copy_gives_way_to_what_was_saved_durably() -> None:
    disk, (shard, *_) = saved()
    writer = StateFiles(disk, DIRECTORY)
    states, _ = writer.load_all()
    writer.save([shard], states, durable=False)
    disk.flip_bit(path_of(shard) + PUBLISHED_SUFFIX, 300)
    assert StateFiles(disk, DIRECTORY).load(shard) is not None
    assert StateFiles(disk, DIRECTORY).load_all(published=True)[1] == []


def test_a_published_copy_ends_with_the_next_durable_one() -> None:
    disk, (shard, *_) = saved()
    writer = StateFiles(disk, DIRECTORY)
    states, _ = writer.load_all()
    writer.save([shard], states, durable=False)
    writer.save([shard], states, durable=True)
    assert not disk.exists(path_of(shard) + PUBLISHED_SUFFIX)


def test_only_the_buckets_of_dirty_shards_are_written() -> None:
    disk = FaultyDisk()
    files = StateFiles(disk, DIRECTORY)
    states = {shard: state_of(0) for shard in SHARDS}
    files.save(SHARDS, states, durable=True)
    before = disk.counts["replace"]
    files.save([SHARDS[3], SHARDS[3]], states, durable=True)
    assert disk.counts["replace"] == before + 1


def test_a_shard_that_nobody_called_dirty_is_kept_all_the_same() -> None:
    disk, together = saved()
    states, _ = StateFiles(disk, DIRECTORY).load_all()
    forgetful = StateFiles(disk, DIRECTORY)
    forgetful.save([together[0]], states, durable=True)
    assert StateFiles(disk, DIRECTORY).load_all()[0].keys() == set(together)


def test_a_power_cut_at_any_call_leaves_the_old_state_or_the_new() -> None:
    disk, (shard, *_) = saved()
    for call in range(6):
        other = disk.copy()
        files = StateFiles(other, DIRECTORY)
        states, _ = files.load_all()
        states[shard].latest_offset = Offset(99)
        other.stop_at_call(call)
        try:
            files.save([shard], states, durable=True)
            finished = True
        except PowerCut:
            finished = False
        other.crash()
        found, damaged = StateFiles(other, DIRECTORY).load_all()
        assert damaged == []
        assert found[shard].latest_offset in ((99,) if finished else (1, 99))
        assert len(found) == 3


def test_the_states_of_ten_thousand_shards_are_written_without_quadratic_work(
    tmp_path: Path,
) -> None:
    states = {ShardId(f"topic-{n % 100}", n): state_of(n) for n in range(10_000)}
    files = StateFiles(LocalDisk(), str(tmp_path / "shards"))
    files.save(states, states, durable=False)
    took = []
    for _ in range(3):
        started = time.thread_time()
        files.save(states, states, durable=False)
        took.append(time.thread_time() - started)
    assert min(took) < 3, took
    assert ends(files.load_all(published=True)[0]) == ends(states)
