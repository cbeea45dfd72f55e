"""What is wrong with a packet: each error carries the reason code that the peer is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import RequestError

if TYPE_CHECKING:
    from penstock.brokers.mqtt.wire.packets import Packet


class ProtocolError(RequestError):
    """A packet breaks the rules of MQTT; the connection ends after the reason code is sent.

    `packets` are the packets decoded before it. `answered` is False where MQTT lets the receiver
    close without an answer and clients expect that. `version` is set for a bad CONNECT only: the
    version of the CONNACK that answers it (3 and 4 have codes for 0x84 and 0x85 only; other
    failures of theirs close the connection without CONNACK).
    """

    def __init__(
        self,
        reason_code: int,
        text: str,
        *,
        packets: Sequence[Packet] = (),
        answered: bool = True,
        version: int | None = None,
    ) -> None:
        super().__init__(text)
        self.reason_code = ReasonCode(reason_code)
        self.text = text
        self.packets: list[Packet] = list(packets)
        self.answered = answered
        self.version = version


class MalformedPacketError(ProtocolError):
    """The bytes of a packet cannot be decoded."""

    def __init__(
        self,
        text: str,
        *,
        packets: Sequence[Packet] = (),
        answered: bool = True,
        version: int | None = None,
    ) -> None:
        super().__init__(
            ReasonCode.MALFORMED_PACKET, text, packets=packets, answered=answered, version=version
        )
