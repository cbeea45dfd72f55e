"""Paho's client with what tests wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from tests.brokers.mqtt.serving import PATIENCE_S

VERSIONS = {"3.1": paho.MQTTv31, "3.1.1": paho.MQTTv311, "5": paho.MQTTv5}


class PahoClient:
    """Connected while it is open."""

    def __init__(
        self,
        port: int,
        client_id: str,
        version: str = "5",
        *,
        clean: bool = True,
        expiry_s: int = 0,
    ) -> None:
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=VERSIONS[version],
            clean_session=None if version == "5" else clean,
        )
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.is_session_present = False
        self._connected = threading.Event()
        self._granted: queue.Queue[list[int]] = queue.Queue()
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        if version == "5":
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # as it is
            properties.SessionExpiryInterval = expiry_s
            self.client.connect("127.0.0.1", port, clean_start=clean, properties=properties)
        else:
            self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert self._connected.wait(PATIENCE_S), "no CONNACK"

    def _on_connect(
        self,
        _client: paho.Client,
        _data: object,
        flags: paho.ConnectFlags,
        reason: object,
        _properties: object,
    ) -> None:
        assert not getattr(reason, "is_failure", True), reason
        self.is_session_present = flags.session_present
        self._connected.set()

    def _on_subscribe(
        self,
        _client: paho.Client,
        _data: object,
        _id: int,
        codes: list[ReasonCode],
        _more: Properties,
    ) -> None:
        self._granted.put([code.value for code in codes])

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """Subscribe, and return the granted QoS or a reason code."""
        self.client.subscribe(topic_filter, qos)
        return self._granted.get(timeout=PATIENCE_S)[0]

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        """Publish, and wait for the acknowledgement."""
        info = self.client.publish(topic, payload, qos, retain)
        info.wait_for_publish(PATIENCE_S)
        assert info.is_published()

    def receive(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=PATIENCE_S)

    def payloads(self, count: int) -> list[bytes]:
        return [bytes(self.receive().payload) for _ in range(count)]

    def drop(self) -> None:
        """End the connection without DISCONNECT."""
        self.client.loop_stop()
        connection = self.client.socket()
        assert connection is not None
        connection.close()

    def disconnect(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def paho_client(
    port: int, client_id: str, version: str = "5", *, clean: bool = True, expiry_s: int = 0
) -> Iterator[PahoClient]:
    client = PahoClient(port, client_id, version, clean=clean, expiry_s=expiry_s)
    try:
        yield client
    finally:
        client.disconnect()
