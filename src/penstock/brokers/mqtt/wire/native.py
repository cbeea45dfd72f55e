"""The native decoder, with the reference for the packets that it leaves.

The native code accepts frequent packets that keep all rules. It stops at any other packet, which
the reference decodes, or refuses.
"""

from __future__ import annotations

from typing import Final

from penstock._native import mqtt_decode
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import Packet
from penstock.brokers.mqtt.wire.pure.decode import Decoder as Reference
from penstock.brokers.mqtt.wire.validation import DecodeLimits


class Decoder:
    """Decodes what a client sends, or with `from_client=False` what a server sends."""

    def __init__(self, limits: DecodeLimits | None = None, *, from_client: bool = True) -> None:
        limits = DecodeLimits() if limits is None else limits
        self._reference: Final = Reference(limits, from_client=from_client)
        self._from_client: Final = from_client
        self._limits: Final = (
            limits.packet_size_max,
            limits.topic_bytes_max,
            limits.topic_levels_max,
            limits.user_properties_max,
            limits.filters_max,
        )

    def decode(self, view: memoryview | bytes, version: int | None) -> tuple[list[Packet], int]:
        """Return the complete packets at the beginning of `view`, and how many bytes they have."""
        if version is None or not self._from_client:
            return self._reference.decode(view, version)
        packets, consumed, is_left = mqtt_decode(view, version, *self._limits)
        return self._with_left(packets, view, consumed, version) if is_left else (packets, consumed)

    def _with_left(
        self, packets: list[Packet], view: memoryview | bytes, consumed: int, version: int
    ) -> tuple[list[Packet], int]:
        is_left = True
        while is_left:
            rest = memoryview(view)[consumed:]
            try:
                packet, size = self._reference.decode_one(rest, version)
            except ProtocolError as error:
                error.packets = packets
                raise
            if packet is None:
                break
            packets.append(packet)
            consumed += size
            more, size, is_left = mqtt_decode(rest[size:], version, *self._limits)
            packets += more
            consumed += size
        return packets, consumed
