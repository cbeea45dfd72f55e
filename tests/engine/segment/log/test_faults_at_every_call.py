"""A history of everything a store can do, in which one call to the disk fails, whichever.

What fails is refused with an error of ours, or is not needed; what was done before it is there, is
read on, and is found by the next start; what failed was done or was not, never in part.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import QUIET, Rig, record
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.engine.segment.retention import RetentionPolicy
from penstock.engine.segment.store import SegmentStore
from penstock.errors import DiskFailedError, StoreError, UnknownShardError
from penstock.record import Flush, Producer, QueueKind, Record, ShardId
from penstock.testing import CHANGES, FOREVER, OPERATIONS, FaultyDisk, PowerCut

SAFE = ShardId("safe", 0)
QUICK = ShardId("quick", 0)
BATCHED = ShardId("batched", 0)
Models = dict[ShardId, ShardModel]


class Step(NamedTuple):
    do: Callable[[SegmentStore], object]
    expect: Callable[[Models], object]


def create(shard: ShardId, kind: QueueKind, flush: Flush) -> Step:
    return Step(
        lambda store: store.create_shard(shard, kind, flush),
        lambda models: models.update({shard: ShardModel()}),
    )


def append(shard: ShardId, first: int, count: int, size: int = 0) -> Step:
    records = [record(first + n, size=size, key=b"k%d" % n, tag="t") for n in range(count)]
    return Step(
        lambda store: store.append_many(shard, records, Producer(first, 0, 0)),
        lambda models: models[shard].append(records),
    )


def append_batch(first: int) -> Step:
    batch = [Record(b"%d" % (first + n), key=b"k", timestamp_ms=5) for n in range(3)]
    return Step(
        lambda store: store.append_batch(BATCHED, inner_batch(batch), 3, born_ms=5),
        lambda models: models[BATCHED].append(batch),
    )


def upkeep() -> Step:
    return Step(lambda store: store.run_upkeep(), len)


def delete(shard: ShardId, offset: int) -> Step:
    return Step(
        lambda store: store.delete_offsets(shard, [offset]),
        lambda models: models[shard].deleted.add(offset),
    )


def truncate(shard: ShardId, offset: int) -> Step:
    return Step(
        lambda store: store.truncate(shard, offset),
        lambda models: models[shard].truncate(offset),
    )


def keep(shard: ShardId, count: int) -> Step:
    def do(store: SegmentStore) -> None:
        store.retention.set_policy(shard, RetentionPolicy(records=count))
        store.run_upkeep()

    def expect(models: Models) -> None:
        models[shard].raise_floor(models[shard].next_offset - count)

    return Step(do, expect)


STEPS = [
    create(SAFE, QueueKind.SIMPLE, Flush.SYNC),
    create(QUICK, QueueKind.SIMPLE, Flush.ASYNC),
    create(BATCHED, QueueKind.BATCH, Flush.ASYNC),
    append(SAFE, 0, 1),
    append(QUICK, 100, 3),
    append_batch(0),
    upkeep(),
    append(QUICK, 110, 2, size=2_500),
    append(SAFE, 10, 2),
    delete(QUICK, 1),
    delete(SAFE, 0),
    append_batch(10),
    truncate(QUICK, 4),
    append(QUICK, 120, 2, size=1_500),
    append(SAFE, 20, 20),
    upkeep(),
    append_batch(20),
    keep(QUICK, 2),
    append(SAFE, 50, 1),
    append(QUICK, 130, 1),
]


def states_after() -> list[Models]:
    """Return what the shards should hold before the first step and after each."""
    models: Models = {}
    states: list[Models] = [{}]
    for step in STEPS:
        step.expect(models)
        states.append({shard: model.copy() for shard, model in models.items()})
    return states


STATES = states_after()


class Outcome(NamedTuple):
    done: int
    """How many steps were done."""
    error: BaseException | None


def run(rig: Rig) -> Outcome:
    """Do the steps up to the first that fails, which must be with an error of ours."""
    for number, step in enumerate(STEPS):
        try:
            step.do(rig.store)
        except (StoreError, PowerCut) as error:
            return Outcome(number, error)
    return Outcome(len(STEPS), None)


def holds(store: SegmentStore, models: Models) -> bool:
    with suppress(AssertionError, UnknownShardError):
        for shard, model in models.items():
            check_shard(store, shard, model)
        return set(store.shards()) == set(models)
    return False


def check_reads(rig: Rig, outcome: Outcome) -> None:
    """While the disk takes no writes, all is read that the failed step has nothing to do with."""
    before, after = STATES[outcome.done], STATES[min(outcome.done + 1, len(STEPS))]
    for shard, model in before.items():
        if vars(after[shard]) == vars(model):
            check_shard(rig.store, shard, model)


def check_next_start(rig: Rig, outcome: Outcome) -> None:
    store = rig.store
    assert store.report.damaged == []
    possible = STATES[outcome.done : outcome.done + 2]
    assert any(holds(store, models) for models in possible), outcome


def calls() -> int:
    rig = Rig(QUIET)
    assert run(rig).error is None
    assert holds(rig.store, STATES[-1])
    return rig.disk.call_count()


def try_fault(call: int, error: int, times: float, landed: int) -> None:
    rig = Rig(QUIET)
    # One call may be of any kind; a disk that fails for ever is one that takes no writes.
    operations = OPERATIONS if times == 1 else CHANGES
    rule = rig.disk.fail_at_call(call, error, times=times, operations=operations)
    rule.landed = landed
    try:
        outcome = run(rig)
    except StoreError as failure:
        outcome = Outcome(0, failure)  # the store could not be opened
    if outcome.error is not None and rig._store is not None:
        check_reads(rig, outcome)
    rig.disk.heal()
    rig.abandon()
    rig.disk.kill()
    check_next_start(rig, outcome)


FAULTS = {
    "once": (errno.EIO, 1, 0),
    "for ever": (errno.EIO, FOREVER, 0),
    "disk full": (errno.ENOSPC, FOREVER, 0),
    "short write": (errno.ENOSPC, 1, 7),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_call_fails(name: str) -> None:
    error, times, landed = FAULTS[name]
    for call in range(len(name) % 5, calls(), 17):
        try_fault(call, error, times, landed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FAULTS)
def test_every_call_fails(name: str) -> None:
    error, times, landed = FAULTS[name]
    for call in range(calls()):
        try_fault(call, error, times, landed)


def try_power_cut(call: int, seed: int) -> None:
    rig = Rig(QUIET, disk=FaultyDisk(page_size=512))
    rig.disk.stop_at_call(call, operations=CHANGES)
    try:
        outcome = run(rig)
    except PowerCut as stop:
        outcome = Outcome(0, stop)
    rig.abandon()
    rig.disk.crash(random.Random(seed))
    store = rig.store
    assert store.report.damaged == []
    # What was acknowledged on the device is there; of the rest, a prefix of the history.
    assert any(holds(store, models) for models in STATES[synced(outcome.done) : outcome.done + 2])


def synced(done: int) -> int:
    """Return how many of the steps done a power cut cannot take."""
    durable = [number + 1 for number, step in enumerate(STEPS[:done]) if number in SYNCED]
    return max(durable, default=0)


SYNCED = {3, 6, 8, 10, 12, 14, 15, 17, 18}
"""Steps that return when everything is on the device."""


def test_the_power_fails_at_one_call() -> None:
    rig = Rig(QUIET)
    run(rig)
    for call in range(3, rig.disk.call_count(CHANGES), 9):
        try_power_cut(call, call)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_power_fails_at_every_call() -> None:
    rig = Rig(QUIET)
    run(rig)
    for call in range(rig.disk.call_count(CHANGES)):
        for seed in range(4):
            try_power_cut(call, seed)


def test_a_failed_sync_of_the_log_is_final_and_of_derived_files_is_not() -> None:
    rig = Rig(QUIET)
    run(rig)
    rig.disk.fail("sync", "*/consumequeue/*")
    rig.disk.fail("sync", "*/index/*")
    rig.store.append(QUICK, record(1))
    for _ in range(3):
        with suppress(StoreError):
            rig.store.checkpoint()
    assert rig.store.append(SAFE, record(2)) == rig.store.bounds(SAFE).next - 1
    rig.disk.fail("sync", "*/commitlog/*")
    with pytest.raises(DiskFailedError):
        rig.store.append(SAFE, record(3))
    with pytest.raises(DiskFailedError):
        rig.store.append(QUICK, record(4))
    assert rig.store.read(QUICK, 0)
