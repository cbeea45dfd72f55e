"""What `penstock cluster` says of replicas: which shards are at risk, and what an election gives
up."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.cli.commands.cluster.known_ends import KnownEnd, known_ends
from penstock.cli.commands.cluster.replicas import (
    Positions,
    _position_lines,
    _risk,
    replica_lines,
)
from penstock.engine.replication.runtime.shard_replica import ReplicaPosition
from penstock.errors import DeadlineError
from penstock.meta import NewOffset, Shard, StandaloneMetaClient, Topic, TopicConfig
from penstock.meta.controller.replica_status import replicas_of

SHARD = Shard(
    topic_id="t",
    partition=0,
    replicas=(1, 2, 3),
    in_sync=(1, 2, 3),
    leader=1,
    leader_epoch=4,
    active_segment=0,
    first_segment=0,
    status="active",
    revision=1,
)
TOPIC = Topic(
    topic_id="t",
    namespace="default",
    name="orders",
    partitions=1,
    config=TopicConfig(replication=3),
    status="active",
    created_at_ms=1,
    revision=1,
)
POSITIONS: Positions = {
    1: {0: ReplicaPosition(0, 100, 98, 4)},
    2: {0: ReplicaPosition(0, 103, 98, 4)},
    3: DeadlineError("it is offline"),
}


@pytest.mark.parametrize(
    ("in_sync", "leader", "said"),
    [
        ((1, 2, 3), 1, "all in sync"),
        ((1, 2), 1, "1 under-replicated, 1 at risk"),
        ((1,), 1, "1 under-replicated, 1 refusing writes"),
        ((), None, "1 offline"),
    ],
)
def test_status_says_how_many_replicas_more_may_be_lost(
    in_sync: tuple[int, ...], leader: int | None, said: str
) -> None:
    shard = replace(SHARD, in_sync=in_sync, leader=leader)
    first = next(iter(replica_lines([replicas_of(TOPIC, [shard])])))
    assert first == f"topic orders (1 shards): replication 3, min_insync 2: {said}"


def test_a_dry_run_shows_each_replica_and_what_is_given_up() -> None:
    assert list(_position_lines(SHARD, POSITIONS)) == [
        "node 1: end offset 100, epoch 4, commit offset 98",
        "node 2: end offset 103, epoch 4, commit offset 98",
        "node 3: not reached: it is offline",
    ]
    unknown = ", and all that only node 3 has, which is not known"
    assert list(_risk(SHARD, 1, POSITIONS, None)) == [
        f"with node 1, 3 records of the replicas that answered are given up{unknown}"
    ]
    assert list(_risk(SHARD, 2, POSITIONS, KnownEnd(103, "x"))) == [
        f"with node 2, 0 records of the replicas that answered are given up{unknown}"
    ]
    (said,) = _risk(SHARD, 3, POSITIONS, None)
    assert "is not known: node 3 did not say" in said


def test_a_dry_run_counts_committed_records_that_no_replica_has() -> None:
    end = KnownEnd(120, "the committed offset of group 'g'")
    assert list(_risk(SHARD, 2, POSITIONS, end))[1:] == [
        (
            "17 committed records from offset 103 on are on no replica that answered: "
            "the committed offset of group 'g' is 120"
        )
    ]
    cut: Positions = {1: {0: ReplicaPosition(0, 90, 98, 4)}}
    assert list(_risk(SHARD, 1, cut, None))[1:] == [
        (
            "8 committed records from offset 90 on are on no replica that answered: "
            "the commit offset of a replica is 98"
        )
    ]


def test_the_end_of_a_shard_is_the_greatest_that_groups_and_segments_know(tmp_path: Path) -> None:
    with StandaloneMetaClient.open(str(tmp_path / "meta")) as client:
        topic = client.create_topic("orders", partitions=2)
        shards = client.list_shards(topic.topic_id)
        client.next_segment(shards[1].id, 0, 30)
        client.reset_offsets("default", "a", [NewOffset(shards[0].name, 7)])
        client.reset_offsets("other", "b", [NewOffset(shards[0].name, 9)])
        client.reset_offsets("default", "c", [NewOffset(shards[1].name, 29)])
        assert known_ends(client, shards) == (
            {
                shards[0].name: KnownEnd(9, "the committed offset of group 'b'"),
                shards[1].name: KnownEnd(30, "the end of segment 0"),
            },
            "",
        )
