"""Sessions and delivery over storage in memory, with clients that are lists of packets.

`World.crash` drops everything but the storage, as kill -9 of the node does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from tests.adapter.bench import Bench

from penstock.adapter.topics.partitioning import key_hash
from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.publish.records import Receipt, RecordCodec
from penstock.brokers.mqtt.sessions.service import SessionService
from penstock.brokers.mqtt.sessions.session import Session, WillRecord
from penstock.brokers.mqtt.share_groups.groups import ShareGroups
from penstock.brokers.mqtt.subscriptions.filters import matches
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.brokers.mqtt.wire.codec import Decoder
from penstock.brokers.mqtt.wire.packets import Ack, Packet, PacketType, Publish
from penstock.brokers.mqtt.wire.validation import DecodeLimits
from penstock.engine.memory import MemoryStorageEngine
from penstock.record import Record
from penstock.settings import MqttSettings

ROW_OPTIONS = {"storage": "segment", "queue": "simple", "cleanup": "compact", "partitioner": "key"}
STORED = "mqtt"


@dataclass
class StoredTopic:
    name: str
    shards: tuple[str, ...]


class OneTopic:
    """Maps all MQTT topics to one stored topic."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def name_of(self, key: bytes | None, stored_topic: str) -> str:
        return stored_topic if key is None else key.decode()

    def stored_topics_for(self, topic_filter: str) -> Sequence[StoredTopic]:
        del topic_filter
        if ("default", STORED) not in self._bench.broker_cache.topics:
            return []
        return [StoredTopic(STORED, self._bench.routes.find(STORED).shards)]


class Retained:
    """Retained messages in memory, which a crash of the node does not touch."""

    is_loaded = True

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}

    async def pages(self, topic_filter: str) -> AsyncIterator[list[Message]]:
        yield self.match(topic_filter, 1_000_000)

    def match(self, topic_filter: str, limit: int) -> list[Message]:
        found = [m for name, m in self.messages.items() if matches(topic_filter, name)]
        return found[:limit]


@dataclass
class Client:
    """A connection: collects what it is sent."""

    version: int = 5
    receive_maximum: int = 1_000
    maximum_packet_size: int = 2_000_000
    topic_alias_maximum: int = 0
    unsent: int = 0
    packets: list[Packet] = field(default_factory=list)
    reason_code: int | None = None
    is_closed: bool = False
    writes: int = 0

    def __post_init__(self) -> None:
        self._decoder = Decoder(DecodeLimits(), from_client=False)
        self._rest = b""

    def send(self, data: bytes) -> None:
        if self.is_closed:
            return
        self.writes += 1
        self._rest += data
        packets, consumed = self._decoder.decode(self._rest, self.version)
        self._rest = self._rest[consumed:]
        self.packets += packets

    def disconnect(self, reason_code: int) -> None:
        self.is_closed = True
        self.reason_code = reason_code

    def read(self) -> list[Packet]:
        """Return what came since the last call."""
        packets, self.packets = self.packets, []
        return packets

    def messages(self) -> list[Publish]:
        return [packet for packet in self.read() if isinstance(packet, Publish)]

    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages()]


class World:
    def __init__(self, partitions: int = 2, settings: MqttSettings | None = None) -> None:
        self.bench = Bench(engines={"EngineSegment": MemoryStorageEngine})
        self.settings = MqttSettings() if settings is None else settings
        self.codec = RecordCodec()
        self.retained = Retained()
        self.wills: list[tuple[str, bytes]] = []
        self.fails_wills = False
        self.clients: list[Client] = []
        if partitions:
            self.bench.create(STORED, partitions, storage="segment", partitioner="key")
        self.service = self._service()

    def _service(self) -> SessionService:
        return SessionService(
            self.bench.manager,
            OneTopic(self.bench),
            self.codec,
            self.bench.clock,
            self.settings,
            row_options=ROW_OPTIONS,
        )

    async def start(self, *, waits: bool = True) -> None:
        delivery = self.service.delivery
        self.shared = ShareGroups(delivery, delivery.tree, self.settings.share_strategy)
        await self.service.start(
            publisher=self, retained=self.retained, shared=self.shared, has_timers=False
        )
        if waits:
            await self.quiet()

    async def crash(self, *, waits: bool = True) -> None:
        """End the node without a word, and start it again."""
        service = self.service
        for client in self.clients:
            client.is_closed = True
        self.clients.clear()
        for task in [*service.delivery._tasks, *service.wills._tasks]:
            task.cancel()
        service.delivery.tails.close()
        service.store.writer._queue.clear()
        service.store._out.clear()
        await asyncio.sleep(0)
        self.service = self._service()
        await self.start(waits=waits)

    def _is_busy(self) -> bool:
        delivery, writer = self.service.delivery, self.service.store.writer
        return bool(
            delivery._is_scheduled
            or delivery._tasks
            or self.service.wills._tasks
            or writer._queue
            or writer._is_scheduled
            or writer._writing
        )

    async def quiet(self) -> None:
        """Wait until nothing is left to do but for what waits for a timer."""
        for _ in range(100_000):
            await asyncio.sleep(0)
            if self._is_busy():
                await asyncio.sleep(0.0002)
            else:
                await asyncio.sleep(0)
                if not self._is_busy():
                    return
        raise AssertionError("the sessions do not become quiet")

    async def crash_while_busy(self) -> None:
        """End the node after a few turns of the loop, while it has work."""
        for _ in range(20):
            await asyncio.sleep(0)
        await self.crash(waits=False)

    async def connect(
        self,
        client_id: str = "c",
        *,
        clean: bool = False,
        expiry_s: int = 3600,
        will: WillRecord | None = None,
        version: int = 5,
        receive_maximum: int = 1_000,
        maximum_packet_size: int = 2_000_000,
    ) -> tuple[Session, Client, bool]:
        sink = Client(version, receive_maximum, maximum_packet_size)
        self.clients.append(sink)
        session, is_present = await self.service.registry.open(
            client_id,
            clean_start=clean,
            expiry_s=expiry_s,
            version=sink.version,
            will=will,
            sink=sink,
        )
        return session, sink, is_present

    async def disconnect(
        self, session: Session, *, expiry_s: int | None = None, sends_will: bool = False
    ) -> None:
        assert isinstance(session.owner, Client)
        session.owner.is_closed = True
        await self.service.registry.close(
            session, sink=session.owner, expiry_s=expiry_s, sends_will=sends_will
        )

    async def subscribe(
        self,
        session: Session,
        topic_filter: str,
        qos: int = 1,
        subscription: Subscription | None = None,
    ) -> int:
        """Subscribe to a filter, or with the options of `subscription`."""
        if subscription is None:
            subscription = Subscription(topic_filter, qos)
        codes = await self.service.registry.subscribe(session, [subscription])
        await self.quiet()
        return codes[0]

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        *,
        session: Session | None = None,
        packet_id: int = 0,
        retain: bool = False,
        expires_at_ms: int | None = None,
    ) -> int:
        """Store a publish and report it to delivery, as the publish path does; return its
        offset."""
        packet = Publish(topic, payload, qos, retain, packet_id=packet_id)
        receipt = None
        if session is not None and packet_id and session.is_persistent and qos == 2:
            receipt = Receipt(session.number, packet_id)
        number = 0 if session is None else session.number
        record = self.codec.encode(
            packet, topic.encode(), publisher=number, receipt=receipt, expires_at_ms=expires_at_ms
        )
        shard = self.shard_of(topic)
        driver = self.bench.drivers["EngineSegment"]
        written = driver.batch_write(shard, [record])
        message = self.codec.message(packet, publisher=number, expires_at_ms=expires_at_ms)
        self.service.delivery.appended(shard, written.first, [message])
        if session is not None and packet_id and qos == 2:
            session.mark_stored(packet_id, shard, written.first)
        return written.first

    def write(self, topic: str, payload: bytes) -> None:
        """Append a record as another front end does, from another thread."""
        shard = self.shard_of(topic)
        driver = self.bench.drivers["EngineSegment"]
        record = Record(payload, topic.encode())
        run_in_thread(lambda: driver.batch_write(shard, [record]))

    def shard_of(self, topic: str) -> str:
        shards = self.bench.routes.find(STORED).shards
        return shards[key_hash(topic.encode()) % len(shards)]

    async def publish_will(self, session: Session, will: WillRecord) -> bool:
        if self.fails_wills:
            return False
        given = will.will
        receipt = Receipt(session.number, will.token) if session.is_persistent else None
        packet = Publish(given.topic, given.payload, given.qos, given.retain)
        record = self.codec.encode(packet, given.topic.encode(), receipt=receipt)
        shard = self.shard_of(given.topic)
        written = self.bench.drivers["EngineSegment"].batch_write(shard, [record])
        self.service.delivery.appended(shard, written.first, [self.codec.message(packet)])
        self.wills.append((given.topic, given.payload))
        return True

    def close(self) -> None:
        self.service.delivery.tails.close()
        self.bench.close()


def run_in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def puback(session: Session, message: Publish) -> bytes:
    return session.acknowledged(message.packet_id, PacketType.PUBACK)


def acks(packets: Sequence[Packet], kind: PacketType) -> list[int]:
    return [p.packet_id for p in packets if isinstance(p, Ack) and p.kind == kind]
