"""`RetainedStore`: the last retained message of each topic, in a compacted topic and in memory.

    publish with retain ─▶ message record ─▶ index ─▶ record in `__mqtt_retained` ─▶ PUBACK

The key of a record is the MQTT topic, and a null value removes the message. At start the records
are read in the background; only the delivery of retained messages waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.adapter.topics import TopicRoute
from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.publish.records import RECEIPT, RecordCodec
from penstock.brokers.mqtt.retained.index import RetainedIndex
from penstock.brokers.mqtt.topics.mapping import MappedTopic
from penstock.brokers.mqtt.topics.rules import INTERNAL_PREFIX, internal_rule
from penstock.errors import RetryableError, StoreError, UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import Offset, Record, StoredRecord
from penstock.settings import MqttMapRule, MqttSettings

TOPIC: Final = f"{INTERNAL_PREFIX}retained"
PARTITIONS: Final = 8
PAGE_RECORDS: Final = 1_000
PAGE_SIZE: Final = 1 << 20
EXPIRED_AT_ONCE: Final = 10_000
RETRY_S: Final = 1.0

_RULE: Final = internal_rule(
    MqttMapRule(filter="#", topic=TOPIC, partitions=PARTITIONS, cleanup="compact", retention_ms=-1)
)
_log: Final = get_logger(__name__)


class RetainedStore:
    def __init__(
        self,
        drivers: StorageDriverManager,
        codec: RecordCodec,
        clock: Clock,
        settings: MqttSettings,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self.index: Final = RetainedIndex(settings.retained_topics_max, settings.retained_size_max)
        self._drivers: Final = drivers
        self._codec: Final = codec
        self._clock: Final = clock
        self._namespace: Final = namespace
        self._loaded: Final = asyncio.Event()
        self._changed: set[str] | None = set()
        """Topics that were published since the start; what was read of them is older. None: all
        records have been read."""
        self.catch_up: Callable[[], Coroutine[None, None, None]] | None = None
        """In a cluster: returns when what other nodes have stored until now is known."""

    # Publishing

    def resolve(self, topic: str) -> MappedTopic:
        """Return where the retained message of a topic is stored; without a route if the stored
        topic is to be created first."""
        mapped = MappedTopic(topic, _RULE, TOPIC)
        route = self._route()
        if route is not None:
            mapped.follow(route)
        return mapped

    def _route(self) -> TopicRoute | None:
        try:
            return self._drivers.routes.find(TOPIC, self._namespace)
        except (UnknownTopicError, RetryableError):
            return None

    def has_room(self, message: Message) -> bool:
        """Say whether a message can be retained within the limits."""
        return not message.payload or self.index.has_room(message)

    def put(self, message: Message, record: Record) -> Record:
        """Retain a message that was stored as `record`, or remove that of its topic if the payload
        is empty; return the record to append."""
        if self._changed is not None:
            self._changed.add(message.topic)
        if not message.payload:
            self.index.remove(message.topic)
            return Record(None, record.key, record.tags)
        self.index.put(message)
        headers = tuple(header for header in record.headers if header[0] != RECEIPT)
        return Record(record.value, record.key, record.tags, headers, None, record.expires_at_ms)

    # Subscribing

    async def pages(self, topic_filter: str) -> AsyncIterator[list[Message]]:
        """Yield the retained messages that a filter matches, when all are known; expired ones are
        left out."""
        await self._loaded.wait()
        if self.catch_up is not None:
            await self.catch_up()
        matching = self.index.match(topic_filter)
        while page := list(islice(matching, PAGE_RECORDS)):
            now_ms = self._clock.now_ms()
            yield [
                message
                for message in page
                if message.expires_at_ms is None or message.expires_at_ms > now_ms
            ]
            await asyncio.sleep(0)

    @property
    def is_loaded(self) -> bool:
        return self._loaded.is_set()

    def match(self, topic_filter: str, limit: int) -> list[Message]:
        """Return up to `limit` retained messages that a filter matches, of those known so far."""
        now_ms = self._clock.now_ms()
        return [
            message
            for message in islice(self.index.match(topic_filter), limit)
            if message.expires_at_ms is None or message.expires_at_ms > now_ms
        ]

    # Loading

    async def load(self) -> None:
        """Read all records; retries until that has worked."""
        while True:
            try:
                route = self._route()
                for shard in route.shards if route is not None else ():
                    assert route is not None, "only a topic has shards"
                    await self._load_shard(route, shard)
                break
            except StoreError as error:
                _log.warning("mqtt_retained_not_loaded", reason=str(error))
                await asyncio.sleep(RETRY_S)
        self.set_loaded()
        if len(self.index):
            _log.info("mqtt_retained_loaded", topics=len(self.index), bytes=self.index.size)

    def set_loaded(self) -> None:
        """All records have been read; further ones come through `apply`."""
        self._changed = None
        self._loaded.set()

    def apply(self, record: StoredRecord) -> None:
        """Retain what a record says, which another node may have written."""
        if record.key is None:
            return
        topic = record.key.decode("utf-8", "replace")
        if record.value is None:
            self.index.remove(topic)
            return
        message = self._codec.decode(record, topic)
        message.retain = True
        if self.index.has_room(message):
            self.index.put(message)

    async def _load_shard(self, route: TopicRoute, shard: str) -> None:
        info = await self._drivers.run_blocking(partial(route.driver.shard_info, shard))
        offset = info.earliest
        while offset < info.commit:
            records = await self._drivers.run_blocking(
                partial(
                    route.driver.read_by_offset,
                    shard,
                    offset,
                    max_records=PAGE_RECORDS,
                    max_size=PAGE_SIZE,
                )
            )
            if not records:
                break  # the rest was removed by compaction
            for record in records:
                self._load_record(record)
            offset = Offset(records[-1].offset + 1)

    def _load_record(self, record: StoredRecord) -> None:
        if record.key is None:
            return
        topic = record.key.decode("utf-8", "replace")
        assert self._changed is not None, "loading sets it to None at its end"
        if topic not in self._changed:
            self.apply(record)

    # Maintenance

    def drop_expired(self) -> None:
        self.index.drop_expired(self._clock.expiry_ms(), EXPIRED_AT_ONCE)
