"""What the cache of shards says of those that have replicas."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.engine.replication.runtime.test_assignments import SHARD, TOPIC
from tests.engine.replication.simulated_log import SimulatedLog

from penstock.engine.replication import Assignment
from penstock.engine.replication.runtime.shard_replica import ShardReplica
from penstock.engine.routing.storage_cache import StorageCacheManager
from penstock.errors import NotEnoughReplicasError, NotLeaderError
from penstock.meta import Update
from penstock.meta.events import ShardPut, TopicPut

NAME = SHARD.name
LED = Assignment(
    shard=NAME,
    replicas=(1, 2, 3),
    in_sync=(1, 2, 3),
    eligible=(),
    leader=1,
    leader_epoch=4,
    partition_epoch=7,
    min_insync=2,
)


class Owner:
    def touch(self, shard: str) -> None:
        raise AssertionError(shard)

    def lease_holds(self) -> bool:
        return True


def cached() -> StorageCacheManager:
    cache = StorageCacheManager()
    cache.apply(Update(1, (TopicPut(TOPIC), ShardPut(SHARD))))
    return cache


def led_copy(records: int) -> ShardReplica:
    log = SimulatedLog(is_sync=False)
    log.begin_epoch(4)
    for number in range(records):
        log.append(number)
    return ShardReplica(NAME, 1, [log], Owner(), LED)


def test_a_transaction_begins_no_later_than_the_log_of_a_new_leader_ends() -> None:
    cache = cached()
    assert cache.first_possible(NAME, 70) == 70
    cache.set_replica(NAME, led_copy(50))
    assert cache.first_possible(NAME, 70) == 50  # after an unclean election
    assert cache.first_possible(NAME, 20) == 20
    assert cache.first_possible("other_0", 20) == 20


def test_a_shard_can_be_served_when_its_leader_is_ready() -> None:
    cache, replica = cached(), led_copy(0)
    assert not cache.wait_until_led([NAME], 1, 0.0)
    cache.set_replica(NAME, replica)
    assert not cache.wait_until_led([NAME], 1, 0.0)
    replica.set_ready(4)
    assert cache.wait_until_led([NAME], 1, 0.0)
    assert cache.wait_until_led([NAME], 2, 0.0)  # another node's business


def test_a_new_leader_is_asked_by_key_when_it_knows_what_is_committed() -> None:
    replica = led_copy(50)
    with pytest.raises(NotLeaderError):
        replica.check_settled()
    replica.assign(replace(LED, in_sync=(1,), partition_epoch=8))
    with pytest.raises(NotEnoughReplicasError, match="1 replica"):
        replica.check_settled()
    replica.assign(replace(LED, leader=2, leader_epoch=5, partition_epoch=9))
    replica.check_settled()  # the leader is asked
    replica.assign(replace(LED, leader_epoch=6, partition_epoch=10))
    replica.logs[0].set_commit(50)
    replica.check_settled()
