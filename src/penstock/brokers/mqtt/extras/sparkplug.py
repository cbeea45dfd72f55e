"""Sparkplug 3, "aware" broker: birth certificates are kept as retained messages.

    spBv1.0/G1/NBIRTH/E1      ──▶ $sparkplug/certificates/spBv1.0/G1/NBIRTH/E1
    spBv1.0/G1/DBIRTH/E1/D1   ──▶ $sparkplug/certificates/spBv1.0/G1/DBIRTH/E1/D1

The certificate has the same payload; the birth message itself is delivered unchanged.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.client import ClientOptions, MqttClient
from penstock.brokers.mqtt.wire.packets import Publish

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker

CERTIFICATES: Final = "$sparkplug/certificates/"
CLIENT_ID: Final = "$sparkplug"
START_S: Final = 20.0
SESSION_EXPIRY_S: Final = 7 * 24 * 3600
_NAMESPACES: Final = ("spBv1.0/", "spAv1.0/")
_LEVELS: Final = {"NBIRTH": 4, "DBIRTH": 5}


def certificate_topic(topic: str) -> str | None:
    """Return the topic of the certificate that a birth message makes; None for other topics."""
    if not topic.startswith(_NAMESPACES):
        return None
    levels = topic.split("/")
    if len(levels) < 4 or _LEVELS.get(levels[2]) != len(levels):
        return None
    return CERTIFICATES + topic


class BirthCertificates:
    """Keeps the certificates: an MQTT client within the node, whose session outlives it, so that no
    birth message is missed."""

    def __init__(self, broker: MqttBroker) -> None:
        self._broker: Final = broker
        self._is_subscribed: Final = asyncio.Event()

    async def start(self) -> None:
        """Return when no further birth message can be missed."""
        self._broker.spawn(self.run(), "mqtt-sparkplug")
        async with asyncio.timeout(START_S):
            await self._is_subscribed.wait()

    async def run(self) -> None:
        """Publish certificates until the task is cancelled."""
        options = ClientOptions(
            client_id=CLIENT_ID,
            clean_start=False,
            session_expiry_s=SESSION_EXPIRY_S,
            keep_alive_s=0,
            reconnects=True,
        )
        async with MqttClient(options, self._broker.open_internal) as client:
            for namespace in _NAMESPACES:
                await client.subscribe(f"{namespace}+/NBIRTH/+", qos=1)
                await client.subscribe(f"{namespace}+/DBIRTH/+/+", qos=1)
            self._is_subscribed.set()
            while True:
                birth = await client.next_message()
                topic = certificate_topic(birth.topic)
                if topic is not None:
                    await self._broker.publisher.publish(
                        Publish(topic, birth.payload, birth.qos, retain=True)
                    )
