"""Clients at different nodes of a cluster, and nodes that die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.clients.paho_client import PahoClient, paho_client
from tests.brokers.mqtt.cluster.nodes import NODES, MqttNodes, mqtt_nodes, wait_until
from tests.brokers.mqtt.cluster.restless_client import RestlessClient
from tests.brokers.mqtt.raw_client import RawClient

from penstock.adapter.topics.partitioning import key_hash
from penstock.brokers.mqtt.cluster.cluster import SESSION_PARTITIONS
from penstock.brokers.mqtt.wire.packet_types import PacketType
from penstock.brokers.mqtt.wire.packets import (
    Ack,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttNodes]:
    with mqtt_nodes(tmp_path_factory.mktemp("cluster")) as made:
        # The stored topics are created while all nodes are there.
        with paho_client(made.mqtt[1], "first") as first:
            first.publish("first", b"message", 1, retain=True)
        yield made


def ids_of_all_partitions(prefix: str) -> list[str]:
    """Return client ids whose sessions are in all partitions, so that all nodes run some."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SESSION_PARTITIONS:
        client_id = f"{prefix}-{number}"
        found.setdefault(key_hash(client_id.encode()) % SESSION_PARTITIONS, client_id)
        number += 1
    return list(found.values())


def leader_of(nodes: MqttNodes, client_id: str) -> int:
    """Return the node that runs the session of a client, once there is one."""
    found: list[int] = []

    def is_found() -> bool:
        found[:] = [node for node in nodes.alive if is_loaded(nodes, node, client_id)]
        return len(found) == 1

    wait_until(is_found, f"one node runs the session of {client_id}")
    return found[0]


def is_loaded(nodes: MqttNodes, node: int, client_id: str) -> bool:
    """Say whether a node runs the session of a client, as it has logged."""
    partition = key_hash(client_id.encode()) % SESSION_PARTITIONS
    log = nodes.present_log(node)
    loaded = log.rfind(f"mqtt_sessions_loaded partition={partition} ")
    return loaded > log.rfind(f"mqtt_sessions_moved partition={partition} ")


def restore(nodes: MqttNodes) -> None:
    """Start nodes that were killed."""
    nodes.start(*(node for node in NODES if node not in nodes.running))


def test_messages_reach_subscribers_at_all_nodes(nodes: MqttNodes) -> None:
    clients = [
        PahoClient(nodes.mqtt[NODES[number % 3]], client_id)
        for number, client_id in enumerate(ids_of_all_partitions("everywhere"))
    ]
    try:
        for client in clients:
            assert client.subscribe("everywhere/#", 2) == 2
        with paho_client(nodes.mqtt[1], "publisher", "3.1.1") as publisher:
            for qos in (0, 1, 2):
                publisher.publish("everywhere/a", b"%d" % qos, qos)
        for client in clients:
            assert client.payloads(3) == [b"0", b"1", b"2"]
    finally:
        for client in clients:
            client.disconnect()


def test_a_client_takes_its_session_over_at_another_node(nodes: MqttNodes) -> None:
    client_id = "wanderer"
    first = PahoClient(nodes.mqtt[1], client_id, expiry_s=300)
    first.subscribe("wanderer/#", 1)
    second = PahoClient(nodes.mqtt[2], client_id, clean=False, expiry_s=300)
    assert second.is_session_present
    first.disconnect()
    second.drop()
    with paho_client(nodes.mqtt[3], "sender") as sender:
        sender.publish("wanderer/home", b"while away", 1)
    third = PahoClient(nodes.mqtt[3], client_id, clean=False, expiry_s=300)
    try:
        assert third.is_session_present
        assert third.receive().payload == b"while away"
    finally:
        third.disconnect()


def test_a_client_without_an_id_is_given_one(nodes: MqttNodes) -> None:
    for node in NODES:
        with paho_client(nodes.mqtt[node], "") as client:
            client.subscribe(f"anonymous/{node}", 0)
            client.publish(f"anonymous/{node}", b"%d" % node, 1)
            assert client.receive().payload == b"%d" % node


def test_retained_messages_are_known_at_all_nodes_when_they_are_acknowledged(
    nodes: MqttNodes,
) -> None:
    with paho_client(nodes.mqtt[1], "keeper") as keeper:
        for number in range(5):
            keeper.publish("kept/state", b"%d" % number, 1, retain=True)
            for node in NODES:
                with paho_client(nodes.mqtt[node], f"reader-{node}-{number}") as reader:
                    reader.subscribe("kept/#", 1)
                    message = reader.receive()
                    assert (message.payload, message.retain) == (b"%d" % number, True)


def test_large_messages_are_relayed_to_a_subscriber_that_does_not_read_at_first(
    nodes: MqttNodes,
) -> None:
    client_id = next(name for name in ids_of_all_partitions("large") if leader_of(nodes, name) != 2)
    payloads = [bytes([number]) * 300_000 for number in range(20)]
    with RawClient(nodes.mqtt[2]) as reader:
        reader.connect(client_id=client_id)
        reader.send(Subscribe(1, [SubscriptionRequest("large", 1)]))
        reader.receive(Suback)
        with paho_client(nodes.mqtt[2], client_id + "-too") as writer:
            for payload in payloads:
                writer.publish("large", payload, 1)
        for payload in payloads:
            message = reader.receive(Publish)
            assert message.payload == payload
            reader.send(Ack(PacketType.PUBACK, message.packet_id))


def test_shared_subscriptions_are_refused(nodes: MqttNodes) -> None:
    with paho_client(nodes.mqtt[1], "sharer") as client:
        assert client.subscribe("$share/group/topic", 1) == 0x9E


def test_nothing_acknowledged_is_lost_when_the_node_of_the_session_is_killed(
    nodes: MqttNodes,
) -> None:
    run_rounds(nodes, "short", rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_nothing_acknowledged_is_lost_in_many_rounds(tmp_path: Path) -> None:
    with mqtt_nodes(tmp_path) as made:
        with paho_client(made.mqtt[1], "first") as first:
            first.publish("first", b"message", 1, retain=True)
        run_rounds(made, "long", rounds=20)


def run_rounds(nodes: MqttNodes, prefix: str, rounds: int) -> None:
    """Kill the node of a publisher's or of the subscriber's session while messages flow. QoS 1 and
    2 arrive, QoS 2 exactly once."""
    subscriber = RestlessClient(nodes, f"{prefix}-subscriber", 1)
    publisher = RestlessClient(nodes, f"{prefix}-publisher", 2)
    try:
        subscriber.subscribe(f"{prefix}/#", 2)
        for turn in range(rounds):
            victim = leader_of(nodes, f"{prefix}-{('publisher', 'subscriber')[turn % 2]}")
            for number in range(40):
                for qos in (1, 2):
                    payload = b"%d %d %d" % (qos, turn, number)
                    publisher.publish(f"{prefix}/{number % 5}", payload, qos)
                if number == 20:
                    nodes.kill(victim)
            publisher.await_acknowledgements()
            wait_until(
                lambda: publisher.sent.keys() <= subscriber.received.keys(),
                "all messages arrive",
            )
            restore(nodes)
        twice = {
            payload: count
            for payload, count in subscriber.received.items()
            if count > 1 and payload.startswith(b"2 ")
        }
        assert not twice
    finally:
        subscriber.close()
        publisher.close()


def test_the_will_of_a_client_is_published_when_the_node_of_its_session_dies(
    nodes: MqttNodes,
) -> None:
    watcher = RestlessClient(nodes, "watcher", 1)
    watcher.subscribe("wills/#", 1)
    node = leader_of(nodes, "mortal")
    dying = RestlessWill(nodes.mqtt[node % 3 + 1], "mortal")
    try:
        nodes.kill(leader_of(nodes, "mortal"))
        wait_until(lambda: bool(watcher.received[b"gone"]), "the will arrives")
    finally:
        dying.close()
        watcher.close()
        restore(nodes)


class RestlessWill:
    """A client with a will and a session that is kept, which does not come back."""

    def __init__(self, port: int, client_id: str) -> None:
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=paho.MQTTv311,
            clean_session=False,
            reconnect_on_failure=False,
        )
        self._client.will_set("wills/mortal", b"gone", 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        wait_until(self._client.is_connected, "the client is connected")

    def close(self) -> None:
        self._client.loop_stop()


def test_a_node_that_was_paused_disconnects_the_sessions_that_others_run(
    nodes: MqttNodes,
) -> None:
    client_id = "paused"
    victim = leader_of(nodes, client_id)
    others = [node for node in NODES if node != victim]
    with RawClient(nodes.mqtt[victim]) as stale:
        stale.connect(client_id=client_id)
        before = {node: loads(nodes, node, client_id) for node in others}
        nodes.pause(victim)
        try:
            wait_until(
                lambda: any(loads(nodes, node, client_id) > before[node] for node in others),
                "another node runs the session",
            )
            with paho_client(nodes.mqtt[others[0]], client_id) as client:
                client.subscribe("paused/#", 1)
                with paho_client(nodes.mqtt[others[1]], "sender-2") as sender:
                    sender.publish("paused/now", b"once", 1)
                assert client.receive().payload == b"once"
        finally:
            nodes.resume(victim)
        stale.expect_end(ReasonCode.SERVER_MOVED)


def loads(nodes: MqttNodes, node: int, client_id: str) -> int:
    """Return how often a node has loaded the partition of a client."""
    partition = key_hash(client_id.encode()) % SESSION_PARTITIONS
    return nodes.log(node).count(f"mqtt_sessions_loaded partition={partition} ")
