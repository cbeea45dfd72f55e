"""Kafka batches of a store: appended and handed out as they are."""

from __future__ import annotations

from typing import Final

from penstock.engine.contract import BatchPage
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.read.key_reader import ShardReader
from penstock.record import Producer, ShardId

HOT_SIZE: Final = 256 << 20
"""Bytes before the end of the log that are taken to be in the page cache."""


class KafkaBatches:
    def __init__(self, parts: StoreParts, reader: ShardReader) -> None:
        self._table: Final = parts.table
        self._writer: Final = parts.writer
        self._log: Final = parts.log
        self._reader: Final = reader

    def append(
        self,
        shard: ShardId,
        body: bytes | memoryview,
        count: int,
        born_ms: int,
        producer: Producer | None,
        tag_header: str | None,
    ) -> tuple[int, bool]:
        """Append a checked batch; return the first offset, and whether it was a repeat."""
        log = self._table.get(shard)
        return self._writer.write_batch(log, body, count, born_ms, producer, tag_header)

    def read(self, shard: ShardId, offset: int, until: int, max_size: int) -> BatchPage:
        """Return the batches of a batch shard from that of `offset` on, as they lie."""
        log = self._table.get(shard)
        return self._reader.read_kafka(log, offset, min(until, log.commit), max_size)

    def bounds(self, shard: ShardId) -> tuple[int, int]:
        """The earliest and the commit offset; the store's `bounds` has the rest."""
        log = self._table.get(shard)
        return log.earliest, log.commit

    def epoch_end(self, shard: ShardId, epoch: int) -> tuple[int, int]:
        """The greatest leader epoch that is not above `epoch`, and where it ends. A shard that
        never changed hands has one epoch, whatever it is called."""
        log = self._table.get(shard)
        epochs = log.state.epochs
        if len(epochs) == 0 or epoch >= epochs.latest:
            return epoch, log.commit
        return epochs.end_of(epoch, log.commit)

    def is_hot(self, shard: ShardId, offset: int) -> bool:
        """Say whether the record of `offset` is where the log was written lately."""
        position = self._table.get(shard).position_of(offset)
        return position is None or position > self._log.end - HOT_SIZE
