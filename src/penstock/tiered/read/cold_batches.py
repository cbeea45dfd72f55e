"""Kafka batches of a tier, as they came: only whole ones, of which nothing was deleted."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.codec.deleted_ranges import DeletedRanges
from penstock.codec.format import FLAG_INNER_BATCH, KAFKA, RECORD_HEAD, Damage
from penstock.codec.properties import inner_range, lookup
from penstock.codec.select import core
from penstock.engine.contract import BatchPage, ForeignBatch
from penstock.errors import CorruptionError
from penstock.tiered.read.tier_query import TierQuery

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile

_BATCHES_PER_READ: Final = 1024
_POSITION_AT: Final = RECORD_HEAD.position_of("position")


class _Batch(NamedTuple):
    first: int
    end: int
    body: bytes
    is_kafka: bool
    is_whole: bool

    @property
    def is_raw(self) -> bool:
        """Whether it may be handed out as it is."""
        return self.is_kafka and self.is_whole


def read_cold_batches(
    flat: CompositeFlatFile, offset: int, until: int, max_size: int
) -> BatchPage | None:
    """Return the batches from that of `offset` on which end at or below `until`, the first one
    whatever its size; None when the tier has none of them. Other records, and what is left of a
    batch, are marked as foreign."""
    manifest = flat.current()
    if manifest is None:
        return None
    deleted = flat.reader.deleted(manifest)
    records = flat.reader.read_raw(TierQuery(offset, until, _BATCHES_PER_READ, max(max_size, 1)))
    batches = [batch for batch in _open_each(flat, records, deleted) if batch.end > offset]
    if not batches:
        return None
    first = batches[0]
    if not first.is_raw or first.end > until:
        others = list(takewhile(lambda batch: not batch.is_kafka, batches))
        start, end = max(first.first, offset), (others[-1] if others else first).end
        body = first.body if first.is_kafka else b""
        return BatchPage([], 0, start, ForeignBatch(end, body))
    raw = list(takewhile(lambda batch: batch.is_raw and batch.end <= until, batches))
    parts: list[bytes | memoryview] = [batch.body for batch in raw]
    return BatchPage(parts, sum(len(part) for part in parts), raw[-1].end)


def _open_each(
    flat: CompositeFlatFile, records: list[bytes], deleted: DeletedRanges
) -> list[_Batch]:
    """Open batches, at most up to a damaged one, which raises when it is the first."""
    batches: list[_Batch] = []
    for data in records:
        try:
            batches.append(_open(flat, data, deleted))
        except CorruptionError:
            if not batches:
                raise
            break
    return batches


def _open(flat: CompositeFlatFile, data: bytes, deleted: DeletedRanges) -> _Batch:
    position = int.from_bytes(data[_POSITION_AT : _POSITION_AT + 8], "big", signed=True)
    raw = core.decode_raw(data, position, position, True)
    if isinstance(raw, Damage):
        raise CorruptionError(flat.shard.name, position=position, reason=raw.reason)
    properties = lookup(raw.properties)
    first, count = inner_range(properties) or (raw.queue_offset, 1)
    is_kafka = raw.sys_flag & FLAG_INNER_BATCH != 0 and properties.get(KAFKA) == "1"
    is_whole = not deleted.overlapping(first, first + count)
    return _Batch(first, first + count, raw.body, is_kafka, is_whole)
