"""Readers of a replicated shard whose leader has damaged records."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.engine.replication.simulated_log import SimulatedLog
from tests.engine.routing.test_replicated_entries import LED, NAME, cached

from penstock.engine.replication.runtime.shard_replica import ShardReplica
from penstock.engine.routing.damaged_reads import ResigningRead
from penstock.engine.routing.storage_cache import ShardEntry
from penstock.errors import BusyError, CorruptionError, NotLeaderError

DAMAGE = CorruptionError("log", position=7, reason="a flipped bit")


class Owner:
    def __init__(self) -> None:
        self.touched: list[str] = []

    def touch(self, shard: str) -> None:
        self.touched.append(shard)

    def lease_holds(self) -> bool:
        return True


@pytest.fixture
def log() -> SimulatedLog:
    log = SimulatedLog(is_sync=False)
    log.begin_epoch(4)
    for number in range(1, 6):
        log.append(number)
    return log


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def replica(log: SimulatedLog, owner: Owner) -> ShardReplica:
    return ShardReplica(NAME, 1, [log], owner, replace(LED, leader=1, in_sync=(1, 2)))


@pytest.fixture
def entry(replica: ShardReplica) -> ShardEntry:
    cache = cached()
    cache.set_replica(NAME, replica)
    return cache.shards[NAME]


def read(entry: ShardEntry, error: Exception = DAMAGE) -> None:
    with ResigningRead(entry, 2):
        raise error


def test_a_reader_is_sent_to_the_next_leader(
    entry: ShardEntry, log: SimulatedLog, owner: Owner
) -> None:
    log.damaged_at = 2
    with pytest.raises(NotLeaderError):
        read(entry)
    assert owner.touched == [NAME]


def test_damage_that_no_other_replica_can_repair_is_reported(
    entry: ShardEntry, replica: ShardReplica, log: SimulatedLog
) -> None:
    log.damaged_at = 2
    replica.assign(replace(replica.assignment, in_sync=(1,), partition_epoch=9))
    with pytest.raises(CorruptionError):
        read(entry)


def test_damage_outside_of_the_log_is_reported(
    entry: ShardEntry, log: SimulatedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the tier, or of a record that was given up."""
    monkeypatch.setattr(SimulatedLog, "find_damage", lambda _self, _offset: None)
    with pytest.raises(CorruptionError):
        read(entry)


def test_a_reader_of_a_former_leader_is_sent_away(entry: ShardEntry, replica: ShardReplica) -> None:
    replica.assign(replace(replica.assignment, leader=2, leader_epoch=9))
    with pytest.raises(NotLeaderError):
        read(entry)


def test_other_errors_and_shards_without_replicas_are_as_before(entry: ShardEntry) -> None:
    with pytest.raises(BusyError):
        read(entry, BusyError("later"))
    entry.replica = None
    with pytest.raises(CorruptionError):
        read(entry)


@pytest.mark.parametrize("leader", [1, 2])
def test_damage_that_no_reader_found_is_reported_whichever_node_leads(
    replica: ShardReplica, log: SimulatedLog, owner: Owner, leader: int
) -> None:
    replica.assign(replace(replica.assignment, leader=leader, leader_epoch=9))
    log.flip(2)
    replica.report_damage(2)
    assert log.damaged_at == 2
    assert owner.touched == [NAME]
