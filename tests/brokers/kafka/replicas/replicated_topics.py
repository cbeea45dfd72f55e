"""Topics with replicas on two nodes, and requests of single messages to either node."""

from __future__ import annotations

from uuid import UUID

from confluent_kafka.cimpl import NewTopic
from tests.brokers.kafka.running import WireClient
from tests.brokers.kafka.transactions.test_transactions_across_nodes import TwoNodes
from tests.kafka_clients import AdminClient, Producer

from penstock.brokers.kafka.wire.fields import Fields

WAIT_S = 120.0
LEADER, FOLLOWER = 1, 2
NO_UUID = UUID(int=0)


def create(nodes: TwoNodes, name: str, **config: str) -> str:
    """Create a topic with one partition that node 1 leads and node 2 follows."""
    admin = AdminClient({"bootstrap.servers": nodes.addresses[LEADER]})
    new = NewTopic(
        name, num_partitions=1, replica_assignment=[[LEADER, FOLLOWER]], config=dict(config)
    )
    admin.create_topics([new])[name].result(WAIT_S)
    nodes.wait_for(lambda: in_sync(nodes, name) == {1, 2}, "both know the topic")
    return name


def in_sync(nodes: TwoNodes, name: str) -> set[int]:
    """Return what both nodes say of the in-sync set; empty while they differ."""
    shown = [partition_of(nodes, node, name) for node in (LEADER, FOLLOWER)]
    if any(one is None or one.number("leader_id") != LEADER for one in shown):
        return set()
    return set.intersection(*(set(one.numbers("isr_nodes")) for one in shown if one is not None))


def partition_of(nodes: TwoNodes, node: int, name: str) -> Fields | None:
    topics = [{"name": name, "topic_id": NO_UUID}]
    with client(nodes, node) as one:
        shown = one.ask(3, 12, topics=topics, allow_auto_topic_creation=False)
    partitions = shown.items_of("topics")[0].items_of("partitions")
    return partitions[0] if partitions else None


def topic_id(nodes: TwoNodes, name: str) -> UUID:
    with client(nodes, LEADER) as one:
        shown = one.ask(3, 12, topics=[{"name": name, "topic_id": NO_UUID}])
    return shown.items_of("topics")[0].uuid("topic_id")


def client(nodes: TwoNodes, node: int) -> WireClient:
    return WireClient(int(nodes.addresses[node].rpartition(":")[2]))


def produce(nodes: TwoNodes, name: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": nodes.addresses[LEADER], "linger.ms": 0})
    for value in values:
        producer.produce(name, value, partition=0)
    assert producer.flush(WAIT_S) == 0


def fetch(
    nodes: TwoNodes,
    node: int,
    name: str,
    offset: int,
    *,
    version: int = 17,
    epoch: int = -1,
    rack: str = "",
    is_committed: bool = False,
    max_wait: int = 0,
) -> Fields:
    """Return the response of the only partition, with the endpoints of the whole response."""
    partition = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    with client(nodes, node) as one:
        response = one.ask(
            1,
            version,
            max_wait=max_wait,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(is_committed),
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": name, "topic_id": topic_id(nodes, name), "partitions": [partition]}],
            forgotten_topics_data=[],
            rack_id=rack,
        )
    (topic,) = response.items_of("responses")
    (fetched,) = topic.items_of("partitions")
    return Fields(fetched | {"node_endpoints": response.items_of("node_endpoints")})


def follower_reads(nodes: TwoNodes, node: int) -> float:
    name = "penstock_kafka_follower_reads_total"
    return nodes.servers[node].node.registry.get_sample_value(name) or 0.0
