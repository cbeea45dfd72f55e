"""Topic aliases of the server: a topic is sent in full once, and by its number afterwards.

    PUBLISH  topic "plant/1/state"  alias 1      then      PUBLISH  topic ""  alias 1

The first topics of a connection get the aliases that the client accepts. Deliveries are encoded for
many clients together, without aliases; the packets for clients that accept them are rewritten here.
"""

from __future__ import annotations

from typing import Final

ALIASES_MAX: Final = 1_024
"""Aliases of one connection, although the client may accept more."""
_PUBLISH: Final = 3
_ALIAS: Final = 0x23


class OutgoingAliases:
    def __init__(self, count_max: int, packet_size_max: int) -> None:
        self._count_max: Final = min(count_max, ALIASES_MAX)
        self._packet_size_max: Final = packet_size_max
        self._aliases: Final[dict[bytes, bytes]] = {}

    def apply(self, data: bytes) -> bytes:
        """Return complete MQTT 5 packets with aliases in their PUBLISH packets."""
        if data[0] >> 4 != _PUBLISH and len(data) <= 4:
            return data  # an acknowledgement
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            size, begin = _read_varint(data, at + 1)
            end = begin + size
            if data[at] >> 4 == _PUBLISH:
                parts.append(self._publish(data, at, begin, end))
            else:
                parts.append(data[at:end])
            at = end
        return b"".join(parts)

    def _publish(self, data: bytes, at: int, begin: int, end: int) -> bytes:
        topic_end = begin + 2 + int.from_bytes(data[begin : begin + 2], "big")
        topic = data[begin + 2 : topic_end]
        alias = self._aliases.get(topic)
        sent = b""
        if alias is None:
            if len(self._aliases) >= self._count_max:
                return data[at:end]
            sent = topic
            alias = (len(self._aliases) + 1).to_bytes(2, "big")
        properties_at = topic_end + (2 if data[at] & 0x06 else 0)
        properties_size, properties = _read_varint(data, properties_at)
        body = b"".join(
            (
                len(sent).to_bytes(2, "big"),
                sent,
                data[topic_end:properties_at],
                _varint(properties_size + 3),
                bytes((_ALIAS,)),
                alias,
                data[properties:end],
            )
        )
        packet = data[at : at + 1] + _varint(len(body)) + body
        if len(packet) > self._packet_size_max:
            return data[at:end]
        self._aliases[topic] = alias
        return packet


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable byte integer and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
