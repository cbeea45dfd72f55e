"""Passes packets between two brokers without a state of its own.

    source                     relay                     target
      PUBLISH 7 (QoS 2)  ────▶  same id, new name  ────▶
                         ◀────      PUBREC 7       ◀────
      PUBREL 7           ────▶                     ────▶
                         ◀────      PUBCOMP 7      ◀────

A message keeps its packet id, and each acknowledgement of the target is passed to the source. Both
brokers keep the sessions of the bridge: after an interruption the source repeats what is not
acknowledged, and the target recognises the ids. So QoS 1 is delivered at least once and QoS 2 once,
also over restarts of the bridge and of both brokers, as far as these keep their sessions.

Loops: with MQTT 5 a broker does not return to the bridge what came from it (No Local), and each
message carries the ids of the instances that it has passed in a user property.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.brokers.mqtt.bridge.topics import TransferTable
from penstock.brokers.mqtt.client import PacketChannel
from penstock.brokers.mqtt.wire.codec import encode
from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Ack,
    Connack,
    Packet,
    PacketType,
    Properties,
    Publish,
)

PATH_PROPERTY: Final = "penstock-bridge"
PATH_MAX: Final = 16
"""Bridges that a message passes at most."""


class BridgeCounters:
    """What a bridge has transferred since its start."""

    def __init__(self) -> None:
        self.sent_out = 0
        self.received_in = 0
        self.dropped = 0
        self.connections = 0


class Side:
    """One of the two brokers."""

    def __init__(self, channel: PacketChannel, connack: Connack, table: TransferTable) -> None:
        """`table` maps the names of messages that come from this side."""
        properties = connack.properties or Properties()
        self.channel: Final = channel
        self.table: Final = table
        self.packet_size_max: Final = properties.maximum_packet_size or 1 << 28
        self.qos_max: Final = 2 if properties.maximum_qos is None else properties.maximum_qos
        self.receive_maximum: Final = properties.receive_maximum or 65_535
        self.is_session_present = connack.session_present
        self.refused: Final[set[int]] = set()
        """QoS 2 messages of this side that the relay itself acknowledges."""
        self.released: Final[set[int]] = set()
        """Ids of an earlier session that the relay released; their PUBCOMPs end here."""


class Relay:
    def __init__(self, local: Side, remote: Side, instance: str, counters: BridgeCounters) -> None:
        """`instance` names this node for the detection of loops."""
        self._local: Final = local
        self._remote: Final = remote
        self._instance: Final = instance
        self._counters: Final = counters

    def release_old_ids(self) -> None:
        """If one side has lost its session, release the ids that the other side still has received
        from it: their next use is a new message."""
        for lost, kept in ((self._local, self._remote), (self._remote, self._local)):
            if not lost.is_session_present and kept.is_session_present:
                kept.released.update(range(1, 65_536))
                kept.channel.send(*[Ack(PacketType.PUBREL, number) for number in kept.released])

    async def pump(self, *, from_local: bool) -> None:
        """Pass on what comes from one side until its connection ends."""
        source, target = self._local, self._remote
        if not from_local:
            source, target = target, source
        while packets := await source.channel.receive():
            for packet in packets:
                if isinstance(packet, Publish):
                    self._publish(packet, source, target, is_out=from_local)
                elif isinstance(packet, Ack):
                    self._acknowledge(packet, source, target)
            await target.channel.drain()
            await source.channel.drain()

    def _publish(self, publish: Publish, source: Side, target: Side, *, is_out: bool) -> None:
        passed = self._translate(publish, source, target)
        if passed is None:
            self._counters.dropped += 1
            self._acknowledge_here(publish, source)
            return
        if is_out:
            self._counters.sent_out += 1
        else:
            self._counters.received_in += 1
        target.channel.send(passed)

    def _translate(self, publish: Publish, source: Side, target: Side) -> Publish | None:
        """Return the message for the other side; None: it is not passed on."""
        name = source.table.target_name(publish.topic)
        if name is None or publish.qos > target.qos_max:
            return None
        properties = None
        if target.channel.version >= MQTT_5:
            properties = self._properties(publish.properties)
            if properties is None:
                return None
        passed = replace(publish, topic=name, properties=properties)
        size = len(name.encode()) + len(passed.payload)
        is_close = size + 4_096 > target.packet_size_max
        if is_close and len(encode(passed, target.channel.version)) > target.packet_size_max:
            return None
        return passed

    def _properties(self, received: Properties | None) -> Properties | None:
        """Return the properties with this instance added to the path; None: a loop."""
        properties = replace(received) if received is not None else Properties()
        properties.subscription_identifiers = None
        properties.topic_alias = None
        users = list(properties.user_properties or ())
        path = [value for key, value in users if key == PATH_PROPERTY]
        if self._instance in path or len(path) >= PATH_MAX:
            return None
        users.append((PATH_PROPERTY, self._instance))
        properties.user_properties = users
        return properties

    def _acknowledge_here(self, publish: Publish, source: Side) -> None:
        if publish.qos == 1:
            source.channel.send(Ack(PacketType.PUBACK, publish.packet_id))
        elif publish.qos == 2:
            source.refused.add(publish.packet_id)
            source.channel.send(Ack(PacketType.PUBREC, publish.packet_id))

    def _acknowledge(self, ack: Ack, source: Side, target: Side) -> None:
        if ack.kind == PacketType.PUBREL and ack.packet_id in source.refused:
            source.refused.discard(ack.packet_id)
            source.channel.send(Ack(PacketType.PUBCOMP, ack.packet_id))
            return
        if ack.kind == PacketType.PUBCOMP and ack.packet_id in source.released:
            source.released.discard(ack.packet_id)
            return
        target.channel.send(_for_version(ack, target.channel.version))


def _for_version(ack: Ack, version: int) -> Packet:
    """Without properties: reason strings are for the client that was sent them."""
    return Ack(ack.kind, ack.packet_id, ack.reason_code if version >= MQTT_5 else 0)
