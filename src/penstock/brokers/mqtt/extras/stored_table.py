"""`StoredTable`: keys and values in a compacted topic of one partition.

Small tables that must survive a restart: the blacklist, delayed messages. The last record of a key
counts; a null value removes the key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.adapter.topics import TopicRoute
from penstock.errors import AlreadyExistsError, UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.record import Offset, Record, StoredRecord

PAGE_RECORDS: Final = 1_000
PAGE_SIZE: Final = 1 << 20
OPTIONS: Final = {
    "storage": "segment",
    "queue": "simple",
    "cleanup": "compact",
    "partitioner": "key",
    "retention_ms": -1,
}


class StoredTable:
    def __init__(
        self, drivers: StorageDriverManager, topic: str, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self.topic: Final = topic
        self._drivers: Final = drivers
        self._namespace: Final = namespace

    async def put(self, record: Record) -> None:
        """Store a record; return when it is written. Raise what the storage raises."""
        await self._create()
        await self._drivers.run_blocking(
            partial(self._drivers.write, self.topic, record, namespace=self._namespace)
        )

    async def records(self) -> AsyncIterator[StoredRecord]:
        """Yield all records, oldest first; later ones of a key replace it."""
        try:
            route = self._drivers.routes.find(self.topic, self._namespace)
        except UnknownTopicError:
            return
        for shard in route.shards:
            async for record in self._records_of(route, shard):
                yield record

    async def _records_of(self, route: TopicRoute, shard: str) -> AsyncIterator[StoredRecord]:
        run = self._drivers.run_blocking
        info = await run(partial(route.driver.shard_info, shard))
        offset = info.earliest
        while offset < info.commit:
            page = await run(
                partial(
                    route.driver.read_by_offset,
                    shard,
                    offset,
                    max_records=PAGE_RECORDS,
                    max_size=PAGE_SIZE,
                )
            )
            if not page:
                return
            for record in page:
                yield record
            offset = Offset(page[-1].offset + 1)

    async def _create(self) -> None:
        with suppress(UnknownTopicError):
            self._drivers.routes.find(self.topic, self._namespace)
            return
        create = partial(
            self._drivers.admin.create_topic_full,
            self.topic,
            1,
            OPTIONS,
            namespace=self._namespace,
        )
        with suppress(AlreadyExistsError):
            await self._drivers.run_blocking(create)
