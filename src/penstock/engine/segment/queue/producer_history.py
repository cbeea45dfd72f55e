"""Reads older writes of producers from the log: a shard remembers only the last of each.

A cut takes the newest writes of a shard. A producer of which all remembered writes are cut would be
unknown, and a repeat of an older write of its, which is committed, would be appended again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.codec.format import PRODUCER, RawRecord
from penstock.codec.select import core
from penstock.engine.producer_table import WRITES_MAX, Write
from penstock.errors import CorruptionError
from penstock.record import Producer

if TYPE_CHECKING:
    from penstock.engine.segment.queue.shard import ShardLog

RECORDS_MAX: Final = 200_000
"""So many records before the cut are looked at: a producer whose writes are older is unknown
afterwards, as one is that was silent for long."""

_ROWS_PER_STEP: Final = 512
_MARK: Final = PRODUCER.encode()


def restore_producers(shard: ShardLog, forgotten: Iterable[int], end: int) -> None:
    """Remember older writes of the `forgotten` producers of a shard that was cut at `end`."""
    writes: dict[int, list[Write]] = {producer_id: [] for producer_id in forgotten}
    if not writes:
        return
    missing = set(writes)
    stop = shard.unit_of(end)
    first = max(shard.unit_of(shard.earliest), stop - RECORDS_MAX)
    try:
        while stop > first and missing:
            start = max(first, stop - _ROWS_PER_STEP)
            _read_back(shard, start, stop, writes, missing)
            stop = start
    except (CorruptionError, FileNotFoundError):
        pass  # what is before the damage is as good as unknown
    with shard.lock:
        shard.state.producers.restore(writes)


def _read_back(
    shard: ShardLog, start: int, stop: int, writes: dict[int, list[Write]], missing: set[int]
) -> None:
    files = shard.log.files
    for row in reversed(shard.rows_between(start, stop)):
        if row.is_blank or not files.holds(row.position):
            continue
        base = files.base_of(row.position)
        raw = core.decode_raw(files.buffer(base), base, row.position, True)
        if not isinstance(raw, RawRecord) or _MARK not in raw.raw_properties:
            continue
        written = producer_of(raw)
        if written is None or written[0].id not in missing:
            continue
        producer, count = written
        writes[producer.id].append(
            Write(
                producer.epoch,
                producer.sequence,
                count,
                raw.queue_offset,
                raw.store_timestamp_ms,
            )
        )
        if len(writes[producer.id]) >= WRITES_MAX:
            missing.discard(producer.id)


def producer_of(raw: RawRecord) -> tuple[Producer, int] | None:
    """Return who wrote the records that begin with this one, and how many they are."""
    text = dict(raw.properties).get(PRODUCER)
    if text is None:
        return None
    try:
        producer_id, epoch, sequence, count = map(int, text.split(","))
    except ValueError:
        return None
    return Producer(producer_id, epoch, sequence), count
