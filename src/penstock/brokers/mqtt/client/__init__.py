"""A small MQTT client: for the command line, bridges and tests.

channel     packets over one connection
client      connect, publish, subscribe, reconnect: for asyncio
blocking    the same for programs without an event loop
"""

from penstock.brokers.mqtt.client.blocking import BlockingMqttClient
from penstock.brokers.mqtt.client.channel import PacketChannel, open_channel
from penstock.brokers.mqtt.client.client import MqttClient
from penstock.brokers.mqtt.client.errors import ConnectionLostError, RefusedError
from penstock.brokers.mqtt.client.options import ClientOptions
from penstock.brokers.mqtt.wire.packets import Properties, Publish, SubscriptionRequest
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

__all__ = [
    "BlockingMqttClient",
    "ClientOptions",
    "ConnectionLostError",
    "MqttClient",
    "PacketChannel",
    "Properties",
    "Publish",
    "ReasonCode",
    "RefusedError",
    "SubscriptionRequest",
    "open_channel",
]
