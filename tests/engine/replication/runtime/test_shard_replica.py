"""Writers that wait for replicas: when they are answered, and with what."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace
from tests.engine.replication.simulated_log import SimulatedLog

from penstock.engine.contract import Acks
from penstock.engine.replication import Assignment
from penstock.engine.replication.runtime import shard_replica
from penstock.engine.replication.runtime.shard_replica import ShardReplica
from penstock.errors import (
    DeadlineError,
    NotEnoughReplicasError,
    NotLeaderError,
    StoreError,
)

LED = Assignment(
    shard="orders_0",
    replicas=(1, 2, 3),
    in_sync=(1, 2, 3),
    eligible=(),
    leader=1,
    leader_epoch=4,
    partition_epoch=7,
    min_insync=2,
)


class Owner:
    def __init__(self) -> None:
        self.touched: list[str] = []
        self.has_lease = True

    def touch(self, shard: str) -> None:
        self.touched.append(shard)

    def lease_holds(self) -> bool:
        return self.has_lease


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def log() -> SimulatedLog:
    log = SimulatedLog(is_sync=False)
    log.begin_epoch(4)
    return log


@pytest.fixture
def replica(owner: Owner, log: SimulatedLog) -> ShardReplica:
    replica = ShardReplica("orders_0", 1, [log], owner, LED)
    replica.set_ready(4)
    return replica


def test_a_leader_without_a_lease_shows_readers_nothing(
    replica: ShardReplica, owner: Owner
) -> None:
    replica.check_lease()
    owner.has_lease = False
    assert not replica.may_serve
    with pytest.raises(NotLeaderError):
        replica.check_lease()
    replica.assign(replace(LED, leader=2, leader_epoch=5, partition_epoch=8))
    replica.check_lease()  # the leader answers


def outcomes_of(replica: ShardReplica, end: int, epoch: int = 4) -> list[StoreError | None]:
    outcomes: list[StoreError | None] = []
    replica.call_when_committed(end, epoch, outcomes.append)
    return outcomes


def test_a_write_is_answered_when_its_records_are_committed(
    replica: ShardReplica, log: SimulatedLog
) -> None:
    log.append(1)
    log.append(2)
    first, second = outcomes_of(replica, 1), outcomes_of(replica, 2)
    log.set_commit(1)
    replica.committed()
    assert (first, second) == ([None], [])
    log.set_commit(2)
    replica.committed()
    assert second == [None]


def test_a_write_that_is_committed_already_is_answered_immediately(
    replica: ShardReplica, log: SimulatedLog
) -> None:
    log.append(1)
    log.set_commit(1)
    assert outcomes_of(replica, 1) == [None]


def test_a_write_under_an_older_epoch_is_not_answered_with_the_records_of_a_newer_one(
    replica: ShardReplica, log: SimulatedLog
) -> None:
    log.append(1)
    waiting = outcomes_of(replica, 1)
    replica.assign(replace(LED, leader_epoch=6, partition_epoch=9))
    replica.set_ready(6)
    log.set_commit(1)  # another leader's record, since
    replica.committed()
    late = outcomes_of(replica, 1, epoch=4)
    assert [type(error) for error in waiting + late] == [DeadlineError, DeadlineError]


def test_waits_end_when_another_node_leads(replica: ShardReplica, log: SimulatedLog) -> None:
    log.append(1)
    waiting = outcomes_of(replica, 1)
    replica.assign(replace(LED, leader=2, leader_epoch=5, partition_epoch=8))
    assert isinstance(waiting[0], DeadlineError), "the records are in the log"
    with pytest.raises(NotLeaderError, match="leader: 2"):
        replica.check(Acks.LEADER)


def test_waits_end_when_too_few_replicas_are_left(replica: ShardReplica, log: SimulatedLog) -> None:
    log.append(1)
    waiting = outcomes_of(replica, 1)
    replica.assign(replace(LED, in_sync=(1,), partition_epoch=8))
    assert isinstance(waiting[0], NotEnoughReplicasError)
    assert waiting[0].is_appended
    with pytest.raises(NotEnoughReplicasError, match=r"1 replicas .* min_insync is 2"):
        replica.check(Acks.ALL)
    assert replica.check(Acks.LEADER) == 4


def test_a_new_leader_serves_only_when_it_is_ready(owner: Owner, log: SimulatedLog) -> None:
    replica = ShardReplica("orders_0", 1, [log], owner, LED)
    with pytest.raises(NotLeaderError):
        replica.check(Acks.ALL)
    replica.set_ready(3)  # of an earlier epoch
    assert not replica.is_ready
    replica.set_ready(4)
    assert replica.check(Acks.ALL) == 4


def test_a_leader_without_its_lease_acknowledges_nothing_that_it_alone_has(
    replica: ShardReplica, owner: Owner, log: SimulatedLog
) -> None:
    log.append(1)
    replica.wait(1, 4, Acks.LEADER, 1.0)
    owner.has_lease = False
    with pytest.raises(DeadlineError, match="may not lead"):
        replica.wait(1, 4, Acks.LEADER, 1.0)


def test_a_wait_ends_with_its_deadline_and_says_that_the_outcome_is_unknown(
    replica: ShardReplica, owner: Owner, log: SimulatedLog
) -> None:
    log.append(1)
    with pytest.raises(DeadlineError, match="unknown"):
        replica.wait(1, 4, Acks.ALL, 0.01)
    assert owner.touched == ["orders_0"]


def test_a_write_that_may_not_wait_has_an_unknown_outcome(
    replica: ShardReplica, log: SimulatedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_replica, "WAITERS_MAX", 1)
    log.append(1)
    first, second = outcomes_of(replica, 1), outcomes_of(replica, 1)
    assert not first
    assert [type(one) for one in second] == [DeadlineError]


def test_a_thread_that_waits_is_woken_by_the_commit(
    replica: ShardReplica, log: SimulatedLog
) -> None:
    log.append(1)
    done: list[bool] = []

    def write() -> None:
        replica.wait(1, 4, Acks.ALL, 30)
        done.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    log.set_commit(1)
    while thread.is_alive():
        replica.committed()
        thread.join(0.01)
    assert done


def test_all_waits_end_when_the_replica_is_removed(
    replica: ShardReplica, log: SimulatedLog
) -> None:
    log.append(1)
    waiting = outcomes_of(replica, 1)
    replica.close()
    assert isinstance(waiting[0], DeadlineError)


def test_a_new_leader_knows_where_its_epoch_begins_and_when_that_is_committed(
    replica: ShardReplica, log: SimulatedLog
) -> None:
    log.append(1)
    log.append(2)
    replica.assign(replace(LED, leader_epoch=6, partition_epoch=9))
    assert (replica.epoch_start, replica.end, replica.is_settled) == (2, 2, False)
    log.append(3)
    replica.assign(replace(LED, leader_epoch=6, partition_epoch=10, in_sync=(1, 2)))
    assert (replica.epoch_start, replica.end) == (2, 3)
    log.set_commit(2)
    assert replica.is_settled


def test_a_copy_serves_readers_while_it_follows_in_sync_and_hears_of_the_metadata(
    owner: Owner, log: SimulatedLog
) -> None:
    followed = replace(LED, leader=2)
    replica = ShardReplica("orders_0", 1, [log], owner, followed)
    served = [replica.may_serve_readers]
    owner.has_lease = False
    served.append(replica.may_serve_readers)  # it may be out of sync by now
    owner.has_lease = True
    for other in (
        replace(followed, in_sync=(2, 3), partition_epoch=8),
        replace(followed, leader=None, leader_epoch=5),
        replace(LED, leader_epoch=6),
    ):
        replica.assign(other)
        served.append(replica.may_serve_readers)
    assert served == [True, False, False, False, False]
