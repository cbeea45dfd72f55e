"""`LogReader`: reads pages of messages from the log, in the node's pool of threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.deliver.pages import PAGE_RECORDS, PAGE_SIZE, Page
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.deliver.tails import MessageDecoder, TopicNames
from penstock.engine.contract import ShardInfo
from penstock.errors import (
    RetryableError,
    StoreError,
    UnknownShardError,
    UnknownTopicError,
)
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.log import get_logger
from penstock.record import Offset, StoredRecord

RETRY_S: Final = 0.5
_log: Final = get_logger(__name__)


class LogReader:
    def __init__(
        self,
        drivers: StorageDriverManager,
        names: TopicNames,
        decoder: MessageDecoder,
        readers_max: int,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """`readers_max` bounds the reads that are in the pool concurrently."""
        self._drivers: Final = drivers
        self._names: Final = names
        self._decoder: Final = decoder
        self._namespace: Final = namespace
        self._slots: Final = asyncio.Semaphore(readers_max)
        self.on_skipped: Callable[[int], None] = lambda _: None
        """Called with how many offsets retention had removed before they were read."""
        self.on_record: Callable[[ShardTail, StoredRecord], None] | None = None
        """Called with each record that is read; for the recovery."""

    async def read(self, tail: ShardTail, offset: int) -> Page | None:
        """Return the messages from `offset` on, some at a time. The page ends after its last
        message, or, without one, at the end that readers saw before the read. None: the shard was
        deleted. Errors that may pass are waited for."""
        while True:
            try:
                return await self._read_in_pool(tail, offset)
            except (UnknownShardError, UnknownTopicError):
                return None
            except RetryableError:
                await asyncio.sleep(RETRY_S)
            except StoreError as error:
                _log.error("mqtt_page_not_read", cause=error, shard=tail.name, offset=offset)
                await asyncio.sleep(RETRY_S)

    async def end_of(self, tail: ShardTail) -> int | None:
        """Return the end of a shard that readers see; None: it is not known now."""
        call = partial(
            self._drivers.shard_info, tail.stored_topic, tail.partition, namespace=self._namespace
        )
        try:
            info = await self._drivers.run_blocking(call)
        except StoreError:
            return None
        return info.commit if info.shard.name == tail.name else None

    async def _read_in_pool(self, tail: ShardTail, offset: int) -> Page | None:
        async with self._slots:
            call = partial(self._read, tail, offset)
            info, records = await self._drivers.run_blocking(call)
        if info.shard.name != tail.name:
            return None  # the topic was created again
        if info.earliest > offset:
            self.on_skipped(info.earliest - offset)
        return self._page(tail, offset, info, records)

    def _read(self, tail: ShardTail, offset: int) -> tuple[ShardInfo, list[StoredRecord]]:
        drivers, topic, partition = self._drivers, tail.stored_topic, tail.partition
        info = drivers.shard_info(topic, partition, namespace=self._namespace)
        if info.shard.name != tail.name or info.commit <= offset:
            return info, []
        records = drivers.read_by_offset(
            topic,
            partition,
            Offset(offset),
            max_records=PAGE_RECORDS,
            max_size=PAGE_SIZE,
            namespace=self._namespace,
        )
        return info, records

    def _page(
        self, tail: ShardTail, offset: int, info: ShardInfo, records: list[StoredRecord]
    ) -> Page:
        names, decoder = self._names, self._decoder
        messages = []
        for record in records:
            message = decoder.decode(record, names.name_of(record.key, tail.stored_topic))
            message.shard = tail
            messages.append(message)
            if self.on_record is not None:
                self.on_record(tail, record)
        end = records[-1].offset + 1 if records else max(offset, info.commit)
        return Page(offset, end, messages)
