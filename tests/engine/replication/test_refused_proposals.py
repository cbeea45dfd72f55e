"""What a leader does when the metadata group refuses a change of its in-sync set."""

from __future__ import annotations

import pytest
from tests.engine.replication.simulated_log import SimulatedLog

from penstock.engine.replication import Assignment, ProposeInSync, ReplicaCore
from penstock.engine.replication.messages import Fetch, ShardFetch, StreamPosition

SHARD = "t_0"
EPOCH = 3
BROKERS = {1: 10, 2: 20, 3: 30}
LED = Assignment(
    shard=SHARD,
    replicas=(1, 2, 3),
    in_sync=(1, 2),
    eligible=(),
    leader=1,
    leader_epoch=1,
    partition_epoch=EPOCH,
    min_insync=2,
)


@pytest.fixture
def log() -> SimulatedLog:
    return SimulatedLog(is_sync=False)


@pytest.fixture
def core(log: SimulatedLog) -> ReplicaCore:
    """A leader to which node 3 has caught up, so that it has proposed to add it."""
    core = ReplicaCore(1, lambda _: [log])
    core.registered(BROKERS[1])
    core.apply(0.0, [LED], BROKERS)
    log.append(7)
    core.receive(0.1, 2, fetch_of(2, log))
    core.receive(0.2, 3, fetch_of(3, log))
    return core


def fetch_of(node: int, log: SimulatedLog) -> Fetch:
    position = StreamPosition(log.end, log.last_epoch, log.end, 0)
    shard = ShardFetch(SHARD, 1, EPOCH, (position,))
    return Fetch(BROKERS[node], session=1, sequence=0, shards=(shard,), max_size=1 << 20)


def proposal_of(core: ReplicaCore) -> ProposeInSync:
    (proposal,) = [effect for effect in core.drain_effects() if isinstance(effect, ProposeInSync)]
    assert proposal.members == ((1, 10), (2, 20), (3, 30))
    return proposal


def test_a_refusal_at_a_later_epoch_does_not_take_an_added_replica_out(
    core: ReplicaCore, log: SimulatedLog
) -> None:
    """The group may have accepted the proposal, and refused its repetition: the replica may lead
    by now, so that it must have all that is committed."""
    proposal = proposal_of(core)
    core.refused(proposal, EPOCH + 1)
    assert core.leaders[SHARD].set.maximal == (1, 2, 3)
    log.append(8)
    core.appended(0.3, SHARD)
    position = StreamPosition(2, 1, 2, 1)
    shard = ShardFetch(SHARD, 1, EPOCH, (position,))
    core.receive(0.4, 2, Fetch(20, session=1, sequence=1, shards=(shard,), max_size=1 << 20))
    assert log.commit == 1  # node 3 has one record


def test_a_refusal_at_the_epoch_of_the_proposal_withdraws_it(core: ReplicaCore) -> None:
    core.refused(proposal_of(core), EPOCH)
    assert core.leaders[SHARD].set.maximal == (1, 2)


def test_the_refusal_of_another_proposal_changes_nothing(core: ReplicaCore) -> None:
    proposal = proposal_of(core)
    other = ProposeInSync(SHARD, 1, EPOCH, ((1, 10),))
    core.refused(other, EPOCH)
    assert core.leaders[SHARD].set.maximal == (1, 2, 3)
    assert core.leaders[SHARD].set.is_pending
    core.refused(proposal, EPOCH)
    assert not core.leaders[SHARD].set.is_pending
