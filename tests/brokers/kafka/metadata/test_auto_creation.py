"""Topics that clients create by naming them: how many, and how fast."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from tests.brokers.kafka.running import WireClient, running
from tests.kafka_clients import Producer

from penstock.brokers.kafka.metadata.creation_limits import BURST_S, CONNECTIONS_MAX, CreationLimits
from penstock.testing import ManualClock

METADATA = 3
OK, LEADER_NOT_AVAILABLE, POLICY_VIOLATION = 0, 5, 44


def name_topics(client: WireClient, *names: str) -> list[int]:
    topics = [{"name": name, "topic_id": UUID(int=0)} for name in names]
    response = client.ask(METADATA, 12, topics=topics, allow_auto_topic_creation=True)
    return [one.number("error_code") for one in response.items_of("topics")]


def test_a_node_has_as_many_topics_as_its_setting_allows(data_path: Path) -> None:
    with running(data_path, {"auto_create_topics_max": 3}) as server:
        with WireClient(server.server.port) as client:
            codes = name_topics(client, "a", "b", "c", "d", "e")
            assert codes == [OK, OK, OK, POLICY_VIOLATION, POLICY_VIOLATION]
            assert name_topics(client, "a", "d") == [OK, POLICY_VIOLATION]
            server.node.admin.delete_topic("a")
            assert name_topics(client, "d") == [OK]
        assert len(server.node.broker_cache.topics) == 3


def test_one_connection_creates_topics_at_a_rate(data_path: Path) -> None:
    with running(data_path, {"auto_create_rate": 1}) as server:
        with WireClient(server.server.port) as client:
            codes = name_topics(client, *(f"t{n}" for n in range(50)))
            # Half of ten seconds' worth; a slow machine may have earned one or two more.
            assert 5 <= codes.count(OK) <= 10
            assert set(codes) == {OK, LEADER_NOT_AVAILABLE}
        with WireClient(server.server.port) as other:
            assert name_topics(other, "other") == [OK]


def test_a_producer_waits_for_its_turn_and_goes_on(data_path: Path) -> None:
    with running(data_path, {"auto_create_rate": 4}) as server:
        producer = Producer({"bootstrap.servers": server.address, "message.timeout.ms": 50_000})
        for n in range(23):
            producer.produce(f"turn-{n}", b"v")
        assert producer.flush(50) == 0
        assert len(server.node.broker_cache.topics) == 23


def test_the_rate_is_saved_up_for_a_burst_and_no_longer() -> None:
    clock = ManualClock()
    limits = CreationLimits(2.0, clock)

    def allowed(connection: int) -> int:
        return sum(limits.allow(connection) for _ in range(100))

    assert allowed(1) == BURST_S * 2 / 2
    assert allowed(2) == BURST_S * 2 / 2
    assert allowed(3) == 0
    clock.advance(1.0)
    assert allowed(3) == 2
    clock.advance(3_600.0)
    assert allowed(1) == BURST_S
    for connection in range(10, 10 + 2 * CONNECTIONS_MAX):
        limits.allow(connection)
    assert len(limits._connections) == CONNECTIONS_MAX
