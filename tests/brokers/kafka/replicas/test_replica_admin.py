"""Replicas as Kafka's administrators see and change them: assignments, moves, elections, epochs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kio.schema.errors import ErrorCode
from msgspec.structs import replace
from tests.brokers.kafka.replicas.replicated_topics import (
    FOLLOWER,
    LEADER,
    NO_UUID,
    WAIT_S,
    client,
    create,
    fetch,
    partition_of,
    produce,
    topic_id,
)
from tests.brokers.kafka.transactions.test_transactions_across_nodes import TwoNodes
from tests.brokers.kafka.wire.test_data_requests import batch
from tests.kafka_clients import AdminClient

from penstock.meta import ReplicaMove, Shard
from penstock.meta.state.metadata.commands import Election
from penstock.record import ShardId

pytestmark = pytest.mark.timeout(300)


def admin_of(nodes: TwoNodes) -> AdminClient:
    return AdminClient({"bootstrap.servers": nodes.addresses[LEADER]})


def code_of_creation(nodes: TwoNodes, name: str, replicas: list[list[int]]) -> int:
    new = NewTopic(name, num_partitions=len(replicas), replica_assignment=replicas)
    admin = admin_of(nodes)
    try:
        admin.create_topics([new])[name].result(WAIT_S)
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


def replicas_of(nodes: TwoNodes, name: str) -> list[list[int]]:
    topic = admin_of(nodes).list_topics(name, timeout=WAIT_S).topics[name]
    return [topic.partitions[index].replicas for index in sorted(topic.partitions)]


def shard_of(nodes: TwoNodes, name: str, partition: int = 0) -> Shard:
    node = nodes.servers[LEADER].node
    topic = node.broker_cache.get_topic(name)
    shard = node.meta.get_shard(ShardId(topic.topic_id, partition))
    assert shard is not None
    return shard


def test_a_topic_is_created_where_its_creator_says(nodes: TwoNodes) -> None:
    assert code_of_creation(nodes, "placed", [[2, 1], [1, 2]]) == 0
    assert replicas_of(nodes, "placed") == [[2, 1], [1, 2]]
    assert shard_of(nodes, "placed").leader == 2
    grown = NewPartitions("placed", 3, replica_assignment=[[2, 1]])
    admin = admin_of(nodes)
    admin.create_partitions([grown])["placed"].result(WAIT_S)
    assert replicas_of(nodes, "placed") == [[2, 1], [1, 2], [2, 1]]


@pytest.mark.parametrize(
    "replicas", [[[1, 9]], [[1, 1]], [[1], [1, 2]], [[]]], ids=["unknown", "twice", "uneven", "no"]
)
def test_replicas_that_cannot_be_are_rejected(nodes: TwoNodes, replicas: list[list[int]]) -> None:
    with client(nodes, LEADER) as one:
        topic = {
            "name": "misplaced",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [
                {"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)
            ],
            "configs": [],
        }
        answer = one.ask(19, 7, topics=[topic], timeout=1_000, validate_only=False)
        (created,) = answer.items_of("topics")
        assert created["error_code"] == ErrorCode.invalid_replica_assignment
        answer = one.ask(19, 7, topics=[topic | {"num_partitions": 1}], validate_only=True)
        (created,) = answer.items_of("topics")
        assert created["error_code"] == ErrorCode.invalid_request
    new, admin = NewTopic("misplaced", 1, 3), admin_of(nodes)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([new])["misplaced"].result(WAIT_S)
    assert refused.value.args[0].code() == ErrorCode.invalid_replication_factor


def test_growth_needs_replicas_for_each_new_partition(nodes: TwoNodes) -> None:
    create(nodes, "growing")
    with client(nodes, LEADER) as one:
        for count, replicas in ((3, [[1, 2]]), (2, [[1]]), (2, [[1, 9]])):
            assignments = [{"broker_ids": ids} for ids in replicas]
            topic = {"name": "growing", "count": count, "assignments": assignments}
            answer = one.ask(37, 3, topics=[topic], timeout=1_000, validate_only=False)
            (grown,) = answer.items_of("results")
            assert grown["error_code"] == ErrorCode.invalid_replica_assignment, replicas
    assert len(replicas_of(nodes, "growing")) == 1


def test_racks_and_partitions_are_described_a_page_at_a_time(nodes: TwoNodes) -> None:
    for name in ("page-a", "page-b"):
        assert code_of_creation(nodes, name, [[1, 2], [2, 1], [1, 2]]) == 0
    names = [{"name": name} for name in ("page-b", "page-a", "page-none")]
    with client(nodes, LEADER) as one:
        brokers = one.ask(60, 1, include_cluster_authorized_operations=False).items_of("brokers")
        assert {broker["broker_id"]: broker["rack"] for broker in brokers} == {
            1: "rack-1",
            2: "rack-2",
        }
        found: list[tuple[object, object, object]] = []
        page = one.ask(75, 0, topics=names, response_partition_limit=2, cursor=None)
        for _ in range(9):
            for topic in page.items_of("topics"):
                found += [
                    (topic["name"], partition["partition_index"], partition["leader_id"])
                    for partition in topic.items_of("partitions")
                ]
            if page.get("next_cursor") is None:
                break
            cursor = page["next_cursor"]
            page = one.ask(75, 0, topics=names, response_partition_limit=2, cursor=cursor)
        assert page.items_of("topics")[-1]["error_code"] == ErrorCode.unknown_topic_or_partition
        expected = [
            (name, index, 1 + index % 2) for name in ("page-a", "page-b") for index in (0, 1, 2)
        ]
        assert found == expected
        whole = one.ask(75, 0, topics=names[:1], response_partition_limit=2_000, cursor=None)
        (topic,) = whole.items_of("topics")
        assert topic.items_of("partitions")[0]["eligible_leader_replicas"] == []


def reassign(
    nodes: TwoNodes, name: str, replicas: Sequence[int] | None, *, index: int = 0, **more: object
) -> int:
    with client(nodes, LEADER) as one:
        partition = {"partition_index": index, "replicas": replicas}
        topics = [{"name": name, "partitions": [partition]}]
        fields: dict[str, object] = {"allow_replication_factor_change": True} | more
        answer = one.ask(45, 1, timeout=1_000, topics=topics, **fields)
    assert answer["error_code"] == 0
    return answer.items_of("responses")[0].items_of("partitions")[0].number("error_code")


def moves_of(nodes: TwoNodes, topics: object = None) -> list[dict[str, object]]:
    with client(nodes, LEADER) as one:
        answer = one.ask(46, 0, timeout=1_000, topics=topics)
    return [
        dict(partition) | {"name": topic["name"]}
        for topic in answer.items_of("topics")
        for partition in topic.items_of("partitions")
    ]


def test_a_partition_moves_to_other_nodes(nodes: TwoNodes) -> None:
    create(nodes, "moving")
    produce(nodes, "moving", b"a", b"b")
    assert reassign(nodes, "moving", [2, 1]) == 0
    nodes.wait_for(lambda: replicas_of(nodes, "moving") == [[2, 1]], "it has moved")
    assert not moves_of(nodes)
    elections = {"timeout": 1_000, "topic_partitions": [{"topic": "moving", "partitions": [0, 5]}]}

    def elected() -> list[object]:
        with client(nodes, LEADER) as one:
            answer = one.ask(43, 2, election_type=0, **elections)
        (topic,) = answer.items_of("replica_election_results")
        results = topic.items_of("partition_result")
        codes = {result["partition_id"]: result["error_code"] for result in results}
        return [codes[0], codes[5]]

    unknown = ErrorCode.unknown_topic_or_partition
    assert elected() in ([0, unknown], [ErrorCode.election_not_needed, unknown])
    nodes.wait_for(lambda: shard_of(nodes, "moving").leader == 2, "the preferred leader leads")
    nodes.wait_for(
        lambda: elected() == [ErrorCode.election_not_needed, unknown], "it stays the leader"
    )
    nodes.wait_for(lambda: b"a" in fetch(nodes, 2, "moving", 0).blob("records"), "it serves")


def test_a_topic_gets_as_many_replicas_as_all_its_partitions_are_moved_to(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the moves when there are more, else after: the controller acts on the number, too."""
    create(nodes, "resized")
    node, steps = nodes.servers[LEADER].node, list[object]()
    shard = shard_of(nodes, "resized")

    def alter(_name: str, *, options: dict[str, object], namespace: str) -> None:
        assert namespace == "default"
        steps.append(options["replication"])

    def start(moves: Sequence[ReplicaMove]) -> list[Shard]:
        steps.append([move.replicas for move in moves])
        return [shard]

    monkeypatch.setattr(node.driver_manager.admin, "alter_topic", alter)
    monkeypatch.setattr(node.meta, "start_reassignments", start)
    assert reassign(nodes, "resized", [2]) == 0
    assert steps == [[(2,)], 1]
    assert code_of_creation(nodes, "single", [[1]]) == 0
    assert reassign(nodes, "single", [2, 1]) == 0
    assert steps[2:] == [2, [(2, 1)]]


def test_moves_that_cannot_be_are_rejected(nodes: TwoNodes) -> None:
    create(nodes, "staying")
    invalid = ErrorCode.invalid_replica_assignment
    assert reassign(nodes, "staying", [1, 9]) == invalid
    assert reassign(nodes, "staying", []) == invalid
    assert reassign(nodes, "staying", [1, 1]) == invalid
    assert reassign(nodes, "staying", [1], index=3) == ErrorCode.unknown_topic_or_partition
    assert reassign(nodes, "staying", None) == ErrorCode.no_reassignment_in_progress
    size = ErrorCode.invalid_replication_factor
    assert reassign(nodes, "staying", [1], allow_replication_factor_change=False) == size
    assert code_of_creation(nodes, "uneven", [[1, 2], [1, 2]]) == 0
    assert reassign(nodes, "uneven", [1]) == size, "its other partition keeps two"
    assert replicas_of(nodes, "staying") == [[1, 2]]


def test_moves_in_progress_are_listed_and_cancelled(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(nodes, "halfway")
    shard = replace(shard_of(nodes, "halfway"), replicas=(1, 2), adding=(2,), removing=(1,))
    meta = nodes.servers[LEADER].node.meta
    cancelled: list[ShardId] = []

    def cancel(shards: Sequence[ShardId]) -> list[Shard]:
        cancelled.extend(shards)
        return [shard]

    monkeypatch.setattr(meta, "list_reassignments", lambda: [shard])
    monkeypatch.setattr(meta, "cancel_reassignments", cancel)
    expected = {
        "name": "halfway",
        "partition_index": 0,
        "replicas": [1, 2],
        "adding_replicas": [2],
        "removing_replicas": [1],
    }
    assert moves_of(nodes) == [expected]
    assert moves_of(nodes, [{"name": "halfway", "partition_indexes": [0]}]) == [expected]
    assert moves_of(nodes, [{"name": "halfway", "partition_indexes": [1]}]) == []
    assert reassign(nodes, "halfway", None) == 0
    assert cancelled == [shard.id]


def test_a_client_of_another_leader_or_epoch_learns_the_current_one(nodes: TwoNodes) -> None:
    topic = create(nodes, "led")
    produce(nodes, topic, b"a", b"b")
    meta = nodes.servers[LEADER].node.meta
    shard = shard_of(nodes, topic)
    (outcome,) = meta.elect_leaders([Election(shard.topic_id, 0, shard.partition_epoch, FOLLOWER)])
    assert outcome.is_accepted

    def epoch_at(node: int) -> int:
        shown = partition_of(nodes, node, topic)
        return -1 if shown is None else shown.number("leader_epoch")

    nodes.wait_for(lambda: min(map(epoch_at, (1, 2))) >= 1, "both know of the election")
    nodes.wait_for(lambda: _is_settled(nodes, topic), "a leader serves")
    now = shard_of(nodes, topic)
    assert now.leader is not None
    leader = {"leader_id": now.leader, "leader_epoch": now.leader_epoch}
    for node in (1, 2):
        fenced = fetch(nodes, node, topic, 0, epoch=0)
        assert fenced["error_code"] == ErrorCode.fenced_leader_epoch, node
        assert fenced["current_leader"] == leader
        (endpoint,) = fenced.items_of("node_endpoints")
        assert f"{endpoint['host']}:{endpoint['port']}" == nodes.addresses[now.leader]
        assert endpoint["rack"] == f"rack-{now.leader}"
    other = 3 - now.leader
    with client(nodes, other) as one:
        data = [{"index": 0, "records": batch(b"c")}]
        answer = one.ask(
            0,
            12,
            transactional_id=None,
            acks=-1,
            timeout=1_000,
            topic_data=[{"name": topic, "partition_data": data}],
        )
    (written,) = answer.items_of("responses")[0].items_of("partition_responses")
    assert written["error_code"] == ErrorCode.not_leader_or_follower
    assert written["current_leader"] == leader
    assert [one["node_id"] for one in answer.items_of("node_endpoints")] == [now.leader]
    produce(nodes, topic, b"c")
    assert epoch_end(nodes, now.leader, topic, 0) == (0, 0, 2)
    assert epoch_end(nodes, now.leader, topic, now.leader_epoch)[2] == 3
    assert epoch_end(nodes, other, topic, 0)[0] == ErrorCode.not_leader_or_follower


def _is_settled(nodes: TwoNodes, topic: str) -> bool:
    leader = shard_of(nodes, topic).leader
    return leader is not None and fetch(nodes, leader, topic, 2)["error_code"] == 0


def epoch_end(nodes: TwoNodes, node: int, topic: str, epoch: int) -> tuple[int, int, int]:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    with client(nodes, node) as one:
        topics = [{"topic": topic, "partitions": [partition]}]
        answer = one.ask(23, 4, replica_id=-1, topics=topics)
    (found,) = answer.items_of("topics")[0].items_of("partitions")
    return (
        found.number("error_code"),
        found.number("leader_epoch"),
        found.number("end_offset"),
    )


def test_ids_of_topics_are_those_of_the_metadata(nodes: TwoNodes) -> None:
    create(nodes, "identified")
    with client(nodes, FOLLOWER) as one:
        page = one.ask(75, 0, topics=[{"name": "identified"}], cursor=None)
    assert page.items_of("topics")[0].uuid("topic_id") == topic_id(nodes, "identified") != NO_UUID
