"""QoS 1 and 2 publishes that the server has not acknowledged yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from penstock.brokers.mqtt.wire.packets import Ack, Packet, PacketType, Publish
from penstock.brokers.mqtt.wire.reason_codes import FAILURE

PACKET_IDS: Final = 65_535


@dataclass(slots=True)
class _Entry:
    publish: Publish
    done: asyncio.Future[int]
    is_received: bool = False
    """QoS 2: the server has sent PUBREC."""


class OutgoingWindow:
    """Allocates packet ids and follows each publish to its last acknowledgement."""

    def __init__(self) -> None:
        self._entries: Final[dict[int, _Entry]] = {}
        self._reserved: Final[set[int]] = set()
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._entries)

    def reserve_id(self) -> int:
        """Return a packet id that is not in use, for a SUBSCRIBE or UNSUBSCRIBE."""
        packet_id = self._free_id()
        self._reserved.add(packet_id)
        return packet_id

    def release_id(self, packet_id: int) -> None:
        self._reserved.discard(packet_id)

    def add(self, publish: Publish) -> asyncio.Future[int]:
        """Give the publish its packet id; return the future of its reason code."""
        publish.packet_id = self._free_id()
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_read_outcome)  # also if the caller has stopped to wait
        self._entries[publish.packet_id] = _Entry(publish, done)
        return done

    def acknowledged(self, ack: Ack) -> Packet | None:
        """Apply PUBACK, PUBREC or PUBCOMP; return the PUBREL to send, if any."""
        entry = self._entries.get(ack.packet_id)
        if ack.kind == PacketType.PUBREC and ack.reason_code < FAILURE:
            if entry is not None:
                entry.is_received = True
            return Ack(PacketType.PUBREL, ack.packet_id)
        if entry is not None:
            del self._entries[ack.packet_id]
            if not entry.done.done():
                entry.done.set_result(ack.reason_code)
        return None

    def repeats(self) -> Iterator[Packet]:
        """Yield what is sent again after a new connection to the same session, in order."""
        for packet_id, entry in self._entries.items():
            if entry.is_received:
                yield Ack(PacketType.PUBREL, packet_id)
            else:
                yield replace(entry.publish, dup=True)

    def fail(self, error: Exception) -> None:
        """End all publishes with an error."""
        for entry in self._entries.values():
            if not entry.done.done():
                entry.done.set_exception(error)
        self._entries.clear()

    def _free_id(self) -> int:
        for _ in range(PACKET_IDS):
            packet_id = self._next_id
            self._next_id = packet_id % PACKET_IDS + 1
            if packet_id not in self._entries and packet_id not in self._reserved:
                return packet_id
        raise AssertionError("all packet ids are in use")  # the window is smaller


def _read_outcome(done: asyncio.Future[int]) -> None:
    if not done.cancelled():
        done.exception()
