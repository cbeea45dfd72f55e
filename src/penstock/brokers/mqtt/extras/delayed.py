"""Delayed messages: `$delayed/{seconds}/{topic}`.

    publish ─▶ record in `__mqtt_delayed` ─▶ acknowledged ─▶ due ─▶ published ─▶ record removed

Each message has a number, which is part of the record's key, and the receipt of what is published.
After a crash between the last two steps it would be published again: what was due before the start
is published only if its receipt is not found in the shard of its topic.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from secrets import randbits
from typing import Final, Protocol

from penstock.brokers.mqtt.extras.delayed_topics import DelayedTopic, parse_delayed
from penstock.brokers.mqtt.extras.stored_table import StoredTable
from penstock.brokers.mqtt.protocol.hooks import Action, Authorizer, Client
from penstock.brokers.mqtt.publish.records import Receipt, RecordCodec
from penstock.brokers.mqtt.wire.packets import Properties, Publish
from penstock.brokers.mqtt.wire.reason_codes import FAILURE, ReasonCode
from penstock.errors import StoreError
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import Header, Offset, Record, StoredRecord

TOPIC: Final = "__mqtt_delayed"
NUMBER_BITS: Final = 62
_DUE: Final = "due"
_TOPIC: Final = "topic"
_LIFETIME: Final = "lifetime"
_NODE: Final = "node"
_OWN: Final = "mqtt-delayed."
"""Prefix of the headers that only waiting messages have."""
RETRY_MS: Final = 5_000
WAIT_MAX_S: Final = 1.0

_log: Final = get_logger(__name__)


class Publishing(Protocol):
    async def publish(self, publish: Publish, *, receipt: Receipt | None = None) -> int: ...


@dataclass(order=True, slots=True)
class _Waiting:
    due_ms: int
    key: bytes
    record: Record


class PublishedReceipts(Protocol):
    """Finds what was published before the start."""

    async def has(self, topic: str, receipt: Receipt) -> bool: ...


class DelayedMessages:
    """A publish handler, and the task that publishes what is due."""

    def __init__(
        self,
        table: StoredTable,
        codec: RecordCodec,
        publisher: Publishing,
        authorizer: Callable[[], Authorizer],
        clock: Clock,
        count_max: int,
        node_id: int,
    ) -> None:
        """Messages are published by the node that accepted them."""
        self._table: Final = table
        self._codec: Final = codec
        self._publisher: Final = publisher
        self._authorizer: Final = authorizer
        self._clock: Final = clock
        self._count_max: Final = count_max
        self._node: Final = b"%d" % node_id
        self._waiting: list[_Waiting] = []
        self._storing = 0
        self._changed: Final = asyncio.Event()
        self.published = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest_due_ms(self) -> int:
        """When the first message is due; now if none waits."""
        return self._waiting[0].due_ms if self._waiting else self._clock.now_ms()

    # Publishing

    async def publish(self, client: Client, publish: Publish) -> int:
        """Store a message for later; return the reason code of its acknowledgement."""
        now_ms = self._clock.now_ms()
        try:
            delayed = parse_delayed(publish.topic, now_ms)
        except ValueError:
            return ReasonCode.TOPIC_NAME_INVALID
        if not client.is_superuser and not self._authorizer().allows(
            client, Action.PUBLISH, delayed.topic, publish.qos, publish.retain
        ):
            return ReasonCode.NOT_AUTHORIZED
        if len(self._waiting) + self._storing >= self._count_max:
            return ReasonCode.QUOTA_EXCEEDED
        waiting = self._encode(publish, delayed)
        self._storing += 1
        try:
            await self._table.put(waiting.record)
        except StoreError as error:
            _log.warning("mqtt_delayed_not_stored", reason=str(error))
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        finally:
            self._storing -= 1
        heapq.heappush(self._waiting, waiting)
        self._changed.set()
        return ReasonCode.SUCCESS

    def _encode(self, publish: Publish, delayed: DelayedTopic) -> _Waiting:
        key = b"%013d-%d" % (delayed.due_ms, randbits(NUMBER_BITS) | 1)
        record = self._codec.encode(publish, key)
        properties = publish.properties
        lifetime_s = None if properties is None else properties.message_expiry_interval
        headers = [
            *record.headers,
            (_OWN + _DUE, b"%d" % delayed.due_ms),
            (_OWN + _TOPIC, delayed.topic.encode()),
            (_OWN + _NODE, self._node),
        ]
        if lifetime_s is not None:  # begins when the message is published
            headers.append((_OWN + _LIFETIME, b"%d" % lifetime_s))
        return _Waiting(delayed.due_ms, key, Record(record.value, key, (), tuple(headers)))

    # Loading

    async def load(self) -> None:
        """Read the messages that wait since before the start."""
        waiting: dict[bytes, _Waiting] = {}
        async for stored in self._table.records():
            key = stored.key
            if key is None:
                continue
            if stored.value is None:
                waiting.pop(key, None)
                continue
            headers = dict(stored.headers)
            due = headers.get(_OWN + _DUE)
            is_here = headers.get(_OWN + _NODE) == self._node
            if is_here and due is not None and due.isdigit():
                waiting[key] = _Waiting(int(due), key, stored.as_record())
        self._waiting = [*self._waiting, *waiting.values()]
        heapq.heapify(self._waiting)
        if waiting:
            _log.info("mqtt_delayed_loaded", messages=len(waiting))

    async def run(self, published: PublishedReceipts) -> None:
        """Publish what is due, until the task is cancelled."""
        started_ms = self._clock.now_ms()
        while True:
            now_ms = self._clock.now_ms()
            while self._waiting and self._waiting[0].due_ms <= now_ms:
                await self._publish_next(started_ms, published)
            self._changed.clear()
            wait_s = WAIT_MAX_S
            if self._waiting:
                wait_s = min(wait_s, max(0.001, (self._waiting[0].due_ms - now_ms) / 1000))
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _publish_next(self, started_ms: int, published: PublishedReceipts) -> None:
        waiting = heapq.heappop(self._waiting)
        publish = self._decode(waiting)
        receipt = Receipt(int(waiting.key.partition(b"-")[2]), 0)
        try:
            is_old = waiting.due_ms <= started_ms
            if not is_old or not await published.has(publish.topic, receipt):
                await self._publish_now(publish, receipt)
            await self._table.put(Record(None, waiting.key))
        except StoreError as error:
            _log.warning("mqtt_delayed_not_published", topic=publish.topic, reason=str(error))
            retry_ms = self._clock.now_ms() + RETRY_MS
            heapq.heappush(self._waiting, _Waiting(retry_ms, waiting.key, waiting.record))

    async def _publish_now(self, publish: Publish, receipt: Receipt) -> None:
        reason_code = await self._publisher.publish(publish, receipt=receipt)
        if reason_code >= FAILURE:
            raise StoreError(f"the publish was refused with reason code 0x{reason_code:02x}")
        self.published += 1

    def _decode(self, waiting: _Waiting) -> Publish:
        """Return the message as its publisher sent it."""
        own, headers = dict[str, bytes](), list[Header]()
        for name, value in waiting.record.headers:
            if name.startswith(_OWN):
                own[name.removeprefix(_OWN)] = value or b""
            else:
                headers.append((name, value))
        topic = own.get(_TOPIC, b"").decode()
        stored = StoredRecord(
            offset=Offset(0),
            value=waiting.record.value,
            key=topic.encode(),
            tags=(topic,),
            headers=tuple(headers),
            timestamp_ms=0,
            expires_at_ms=None,
            store_timestamp_ms=0,
            leader_epoch=0,
        )
        message = self._codec.decode(stored, topic)
        properties = message.properties
        if _LIFETIME in own:
            properties = properties or Properties()
            properties.message_expiry_interval = int(own[_LIFETIME])
        return Publish(topic, message.payload, message.qos, message.retain, properties=properties)
