"""A node that takes no writes refuses publishes, and goes on when it has room again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import node_settings, port_of, serve

from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Ack,
    Connect,
    PacketType,
    Pingreq,
    Pingresp,
    Publish,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.engine.segment import SegmentEngine
from penstock.errors import DiskFullError
from penstock.remote.server.node_server import Server


def refuse(server: Server, *, is_full: bool) -> None:
    [engine] = [e for e in server.node.engines.opened().values() if isinstance(e, SegmentEngine)]
    log = engine.store._parts.log
    if is_full:
        log.refuse(DiskFullError("the disk is full"))
    else:
        log.accept()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_publishes_to_a_full_disk_are_refused(directory: Path, flush: str) -> None:
    settings = node_settings(broker__flush_disk_type=flush)
    with serve(directory, settings) as server, RawClient(port_of(server)) as client:
        client.connect(Connect(MQTT_5, "full"))
        client.send(Publish("full", b"1", 1, packet_id=1))
        assert client.receive(Ack).reason_code == 0
        refuse(server, is_full=True)
        for qos, kind in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
            client.send(Publish("full", b"2", qos, packet_id=2))
            assert client.receive(Ack) == Ack(kind, 2, ReasonCode.QUOTA_EXCEEDED)
        client.send(Publish("full", b"3"), Pingreq())
        client.receive(Pingresp)
        refuse(server, is_full=False)
        client.send(Publish("full", b"4", 2, packet_id=2))
        assert client.receive(Ack) == Ack(PacketType.PUBREC, 2)


def test_an_older_client_is_disconnected_by_a_full_disk(directory: Path) -> None:
    with serve(directory) as server, RawClient(port_of(server), MQTT_3_1_1) as client:
        client.connect(Connect(MQTT_3_1_1, "full"))
        client.send(Publish("full", b"1", 1, packet_id=1))
        client.receive(Ack)
        refuse(server, is_full=True)
        client.send(Publish("full", b"2", 1, packet_id=2))
        client.expect_end()
        refuse(server, is_full=False)
