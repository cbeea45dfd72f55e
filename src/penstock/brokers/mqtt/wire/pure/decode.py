"""Decoding of a buffer into packets."""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.wire.errors import MalformedPacketError, ProtocolError
from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    Packet,
    PacketType,
)
from penstock.brokers.mqtt.wire.pure.bodies import read_body
from penstock.brokers.mqtt.wire.pure.connect import read_connect
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.brokers.mqtt.wire.validation import DecodeLimits

_FROM_SERVER_ONLY: Final = {
    PacketType.CONNACK,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.PINGRESP,
}
_FROM_CLIENT_ONLY: Final = {
    PacketType.CONNECT,
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    PacketType.PINGREQ,
}
_OLD_CONNACK_SIZE: Final = 2
_FLAGS_2: Final = {PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE}
# The reserved flags are a malformed packet or a protocol error, both by the standard's text; which
# one, clients' test suites fix for each type.
_FLAGS_BY_PROTOCOL: Final = {
    PacketType.CONNACK,
    PacketType.PUBREL,
    PacketType.DISCONNECT,
    PacketType.AUTH,
}
_PINGS: Final = {PacketType.PINGREQ, PacketType.PINGRESP}


class Decoder:
    """Decodes what a client sends, or with `from_client=False` what a server sends."""

    def __init__(self, limits: DecodeLimits | None = None, *, from_client: bool = True) -> None:
        self._limits = DecodeLimits() if limits is None else limits
        self._from_client = from_client

    def decode(self, view: memoryview | bytes, version: int | None) -> tuple[list[Packet], int]:
        """Return the complete packets at the beginning of `view`, and how many bytes they have.

        `version` None: nothing was received yet, only CONNECT (from a server: any packet) is
        accepted, and decoding stops after it. A packet that breaks the rules raises
        `ProtocolError`, which has the packets before it.
        """
        view = memoryview(view)
        packets: list[Packet] = []
        consumed = 0
        try:
            while consumed < len(view):
                packet, size = self.decode_one(view[consumed:], version)
                if packet is None:
                    break
                packets.append(packet)
                consumed += size
                if version is None:
                    break
        except ProtocolError as error:
            error.packets = packets
            raise
        return packets, consumed

    def decode_one(
        self, view: memoryview | bytes, version: int | None
    ) -> tuple[Packet | None, int]:
        """Return the packet at the beginning of `view` and its size; None: it is not complete."""
        bounds = self._bounds(view, version) if view else None
        if bounds is None:
            return None, 0
        begin, end = bounds
        return self._packet(view[0], bytes(view[begin:end]), version), end

    def _bounds(self, view: memoryview | bytes, version: int | None) -> tuple[int, int] | None:
        """Return where a packet's body begins and ends; None: the packet is not complete."""
        kind = view[0] >> 4
        if version is None and self._from_client and kind != PacketType.CONNECT:
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR,
                f"the first packet has type {kind}, not CONNECT",
                answered=False,
            )
        if kind == 0:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "packet type 0 is reserved")
        size = 0
        for index in range(4):
            if 1 + index >= len(view):
                return None
            byte = view[1 + index]
            size |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                begin = 2 + index
                break
        else:
            raise MalformedPacketError("a remaining length has five bytes", answered=False)
        total = begin + size
        if total > self._limits.packet_size_max:
            raise ProtocolError(
                ReasonCode.PACKET_TOO_LARGE,
                f"a packet has {total} bytes, at most {self._limits.packet_size_max} are allowed",
                answered=version is not None,
            )
        return (begin, begin + size) if begin + size <= len(view) else None

    def _packet(self, first: int, body: bytes, version: int | None) -> Packet:
        kind, flags = PacketType(first >> 4), first & 0x0F
        if kind == PacketType.CONNECT and version is None and self._from_client:
            return self._connect(flags, body)
        if version is None:
            # The first packet of a server; the CONNACK of MQTT 5.0 has one byte more at least.
            version = MQTT_3_1_1 if len(body) == _OLD_CONNACK_SIZE else MQTT_5
        if kind != PacketType.PUBLISH and version != MQTT_3_1:
            _check_flags(kind, flags)
        if kind in _PINGS and body:
            raise MalformedPacketError(f"{kind.name} with {len(body)} bytes", answered=False)
        misplaced = _FROM_SERVER_ONLY if self._from_client else _FROM_CLIENT_ONLY
        if kind in misplaced or kind == PacketType.CONNECT:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{kind.name} is not expected here")
        if kind == PacketType.AUTH and version != MQTT_5:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH belongs to MQTT 5.0")
        return read_body(kind, flags, body, version, self._limits, from_client=self._from_client)

    def _connect(self, flags: int, body: bytes) -> Connect:
        return read_connect(flags, body, self._limits)


def _check_flags(kind: PacketType, flags: int) -> None:
    if flags == (2 if kind in _FLAGS_2 else 0):
        return
    raise ProtocolError(
        ReasonCode.PROTOCOL_ERROR if kind in _FLAGS_BY_PROTOCOL else ReasonCode.MALFORMED_PACKET,
        f"{kind.name} with flags {flags:#x}",
    )
