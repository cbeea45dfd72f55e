"""Finds receipts of delayed messages in the shards of their topics, after a start.

Each shard is read once, from the time of the oldest message that may have been published.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.publish.records import Receipt, receipt_of
from penstock.brokers.mqtt.topics.mapping import TopicMapping
from penstock.engine.contract import AdapterOffsetStrategy
from penstock.errors import StoreError
from penstock.record import Offset

PAGE_RECORDS: Final = 1_000
PAGE_SIZE: Final = 1 << 20
RECEIPTS_MAX: Final = 1_000_000


class ShardReceipts:
    def __init__(
        self, drivers: StorageDriverManager, mapping: TopicMapping, oldest_due_ms: int
    ) -> None:
        self._drivers: Final = drivers
        self._mapping: Final = mapping
        self._oldest_due_ms: Final = oldest_due_ms
        self._found: Final[dict[str, set[Receipt]]] = {}

    async def has(self, topic: str, receipt: Receipt) -> bool:
        """Return whether the shard of the topic has a record with the receipt. Raise what the
        storage raises."""
        mapped = self._mapping.resolve(topic)
        if mapped.route is None:
            return False
        found = self._found.get(mapped.shard_name)
        if found is None:
            found = await self._read(mapped.shard_name)
            self._found[mapped.shard_name] = found
        return receipt in found

    async def _read(self, shard: str) -> set[Receipt]:
        run, driver = self._drivers.run_blocking, self._drivers.open_shard(shard).driver
        info = await run(partial(driver.shard_info, shard))
        offset = await run(
            partial(
                driver.get_offset_by_timestamp,
                shard,
                self._oldest_due_ms,
                AdapterOffsetStrategy.LATEST,
            )
        )
        found: set[Receipt] = set()
        while offset < info.commit:
            page = await run(
                partial(
                    driver.read_by_offset,
                    shard,
                    offset,
                    max_records=PAGE_RECORDS,
                    max_size=PAGE_SIZE,
                )
            )
            if not page:
                break
            for record in page:
                receipt = receipt_of(record)
                if receipt is not None and receipt.packet_id == 0:
                    found.add(receipt)
            if len(found) > RECEIPTS_MAX:
                raise StoreError(f"shard {shard} has more than {RECEIPTS_MAX} delayed messages")
            offset = Offset(page[-1].offset + 1)
        return found
