"""A client of MQTT 3.1.1 with a session that is kept, which goes from node to node when its
connection ends, and records what it sends and receives."""

from __future__ import annotations

import threading
import time
from collections import Counter

import paho.mqtt.client as paho
from paho.mqtt.client import mqtt_ms_resend_pubrel
from paho.mqtt.enums import CallbackAPIVersion
from tests.brokers.mqtt.cluster.nodes import MqttNodes, wait_until
from tests.brokers.mqtt.serving import PATIENCE_S

PAUSE_S = 0.05


class ReleasingClient(paho.Client):
    """Paho 2.1 sends a QoS 2 PUBLISH again that it has a PUBREC for, if it had to connect twice in
    between. MQTT forbids that, and no server could recognise the message after PUBREL."""

    def _messages_reconnect_reset_out(self) -> None:
        released = [m for m in self._out_messages.values() if m.state == mqtt_ms_resend_pubrel]
        super()._messages_reconnect_reset_out()
        for message in released:
            message.state = mqtt_ms_resend_pubrel


class RestlessClient:
    def __init__(self, nodes: MqttNodes, client_id: str, first_node: int) -> None:
        self._nodes = nodes
        self._next = nodes.alive.index(first_node)
        self._client = ReleasingClient(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=paho.MQTTv311,
            clean_session=False,
        )
        self.received: Counter[bytes] = Counter()
        """How often each payload has arrived."""
        self.sent: dict[bytes, paho.MQTTMessageInfo] = {}
        self._granted = threading.Event()
        self._connected = threading.Event()
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = lambda *_: self._connected.clear()
        self._client.on_subscribe = lambda *_: self._granted.set()
        self._client.on_message = lambda _client, _data, message: self.received.update(
            [bytes(message.payload)]
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._connected.wait(PATIENCE_S), f"{client_id} was not accepted"

    def _on_connect(
        self,
        _client: paho.Client,
        _data: object,
        _flags: paho.ConnectFlags,
        reason: object,
        _properties: object,
    ) -> None:
        if not getattr(reason, "is_failure", True):
            self._connected.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            alive = self._nodes.alive
            if not alive:
                return
            port = self._nodes.mqtt[alive[self._next % len(alive)]]
            self._next += 1
            try:
                self._client.connect("127.0.0.1", port)
            except OSError:
                time.sleep(PAUSE_S)
                continue
            while self._client.loop(PAUSE_S) == paho.MQTT_ERR_SUCCESS:
                if self._closing.is_set():
                    return
            time.sleep(PAUSE_S)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._granted.clear()
        self._client.subscribe(topic_filter, qos)
        assert self._granted.wait(PATIENCE_S), "no SUBACK"

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        """Begin to publish; `await_acknowledgements` waits."""
        self.sent[payload] = self._client.publish(topic, payload, qos)

    def await_acknowledgements(self) -> None:
        # `is_published` raises for a message that was queued while there was no connection.
        wait_until(
            lambda: all(info._published for info in self.sent.values()),
            "all publishes are acknowledged",
        )

    def close(self) -> None:
        self._closing.set()
        self._thread.join(PATIENCE_S)
        self._client.disconnect()
