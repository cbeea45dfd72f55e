"""A store whose writer was killed at any moment of its upkeep is whole: a check finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import EVENTS, LOGS, ORDERS, Rig, create, fill, record

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.retention import RetentionPolicy
from penstock.record import QueueKind, Record
from penstock.testing import PowerCut


def written() -> Rig:
    """A store of several log files, with deletions, batches and what was published."""
    rig = Rig()
    create(rig.store)
    create(rig.store, LOGS)
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    for turn in range(3):
        for number in range(8):
            rig.store.append(ORDERS, record(turn * 8 + number, size=900, key=b"k"))
        batch = [Record(b"%d" % n, key=b"b", timestamp_ms=5) for n in range(3)]
        rig.store.append_batch(EVENTS, inner_batch(batch), 3, born_ms=5)
        fill(rig.store, LOGS, 30, first=turn * 30)
        rig.store.delete_offsets(LOGS, [turn, turn * 3 + 5])
        rig.store.run_upkeep()
    fill(rig.store, LOGS, 7)
    return rig


def remove_by_hand(rig: Rig) -> None:
    rig.store.retention.remove_oldest_file()


def remove_by_number(rig: Rig) -> None:
    for shard in (ORDERS, LOGS, EVENTS):
        rig.store.retention.set_policy(shard, RetentionPolicy(records=2))
    rig.store.run_upkeep()


def truncate(rig: Rig) -> None:
    rig.store.truncate(LOGS, 40)
    rig.store.run_upkeep()


def delete_a_shard(rig: Rig) -> None:
    rig.store.delete_shard(LOGS)
    rig.store.delete_shard(EVENTS)
    rig.store.run_upkeep()


def delete_and_push_out(rig: Rig) -> None:
    rig.store.delete_shard(LOGS)
    remove_by_number(rig)


def publish(rig: Rig) -> None:
    rig.store.delete_before(LOGS, 45)
    rig.store.run_upkeep()


CHANGES = [remove_by_hand, remove_by_number, truncate, delete_a_shard, delete_and_push_out, publish]


def kill_at(change: Callable[[Rig], None], call: int) -> bool:
    """Kill a writer at a call of a change; return whether it came to that."""
    rig = written()
    rig.disk.stop_at_call(call)
    killed = False
    try:
        change(rig)
    except PowerCut:
        killed = True
    rig.abandon()
    rig.disk.kill()
    report = verify("store", disk=rig.disk, clock=rig.clock, settings=rig.settings)
    assert report.findings == [], f"killed at call {call}"
    assert report.lost == []
    with suppress(StopIteration):
        rig.store.close()
    report = verify("store", disk=rig.disk, clock=rig.clock, settings=rig.settings)
    assert report.findings == [], f"killed at call {call}, opened and closed"
    return killed


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_a_check_finds_nothing_after_a_kill_in_the_midst_of(change: Callable[[Rig], None]) -> None:
    call = 0
    while kill_at(change, call):
        call += 7
    assert call


def test_a_check_finds_nothing_when_the_checksums_of_a_file_behind_a_cut_are_left() -> None:
    assert kill_at(truncate, 15)


@pytest.mark.soak
@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_a_check_finds_nothing_after_a_kill_at_any_call(change: Callable[[Rig], None]) -> None:
    call = 0
    while kill_at(change, call):
        call += 1
