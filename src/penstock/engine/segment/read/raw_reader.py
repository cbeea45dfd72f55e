"""Runs of a shard: whole records and Kafka batches as the log holds them, checked.

No object is made of any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.codec.format import BATCH_UNIT, KIND_BATCH, KIND_SIMPLE, Damage
from penstock.codec.raw_message import body_of
from penstock.codec.select import core, native_only
from penstock.engine.contract import BatchPage, ForeignBatch
from penstock.engine.segment.queue.lookup import Query, ReadableShard, look_up
from penstock.engine.segment.read.page_reader import PageReader
from penstock.engine.segment.read.unreadable import unreadable
from penstock.errors import CorruptionError
from penstock.record import QueueKind

_UNITS_PER_FETCH: Final = 1024


class RawRangeReader(PageReader):
    """Reads records as the log holds them."""

    def read_kafka(self, log: ReadableShard, offset: int, until: int, max_size: int) -> BatchPage:
        """Return Kafka batches as they lie in the log, checked; see `BatchPage`."""
        self._check(log)
        generation = log.truncation_generation
        offset = max(offset, log.earliest)
        parts: list[bytes | memoryview] = []
        size = 0
        slice_batches = native_only().slice_batches
        while offset < until and size < max_size:
            query = Query(offset, until, _UNITS_PER_FETCH, max_size - size)
            try:
                located = look_up(self._files, log, query)
                if isinstance(located, int):
                    offset = located
                    continue
                buffer = self._buffer(located.base)
                page, after, length, foreign, damage = slice_batches(
                    buffer,
                    located.base,
                    located.units,
                    offset,
                    until,
                    log.shard.topic,
                    log.shard.partition,
                    max_size - size,
                    log.state.deleted_between(offset, until),
                    self._files.strict,
                )
                if damage is not None and not page:
                    raise self._corruption(damage)
            except CorruptionError as error:
                if parts:
                    break
                if log.was_truncated_since(generation):
                    generation, until = log.truncation_generation, min(until, log.commit)
                else:
                    offset = self._repair_or_raise(log, offset, error)
                continue
            if parts and size + length > max_size:
                break  # the first batch of a step comes whatever its size
            parts += [
                part if isinstance(part, bytes) else buffer[part[0] : part[0] + part[1]]
                for part in page
            ]
            size += length
            if foreign and not parts:
                foreign_batch = self._foreign(log, after)
                return BatchPage([], 0, after if foreign_batch else until, foreign_batch)
            if foreign or after == offset:
                return BatchPage(parts, size, after)
            offset = after
        return BatchPage(parts, size, offset)

    def _foreign(self, log: ReadableShard, offset: int) -> ForeignBatch | None:
        unit = log.read_units(log.unit_of(offset), 1)
        if not unit:
            return None  # cut off meanwhile
        position, _, _, _, first, count, _, _ = BATCH_UNIT.unpack(unit)
        base = self._files.base_of(position)
        raw = core.decode_raw(self._buffer(base), base, position, True, self._files.strict)
        if isinstance(raw, Damage):
            raise self._corruption(raw)
        try:
            return ForeignBatch(first + count, body_of(raw))
        except ValueError as error:
            raise unreadable(log.shard, raw, first + count, str(error)) from error

    def read_raw(self, log: ReadableShard, query: Query) -> list[bytes]:
        """Return whole records, or batches, as the log holds them, checked."""
        return [*split_raw_range(self.read_raw_range(log, query)[0])]

    def read_raw_range(self, log: ReadableShard, query: Query) -> tuple[bytes, int]:
        """Return whole records, or batches, one after the other as the log holds them, checked,
        and the offset to go on at; no object is made of any of them."""
        self._check(log)
        generation = log.truncation_generation
        parts: list[bytes] = []
        size = 0
        offset = max(query.offset, log.earliest)
        until = min(query.until, log.commit)
        limit = offset + query.max_records  # a record takes an offset at least
        while offset < min(until, limit) and size < query.max_size:
            data, after, error = self._copy(
                log, Query(offset, until, limit - offset, query.max_size - size)
            )
            if not data and log.was_truncated_since(generation):
                if parts:
                    break
                generation, until = log.truncation_generation, min(until, log.commit)
                continue
            if error is not None:
                if parts:
                    break
                offset = self._repair_or_raise(log, offset, error)
                continue
            if after == offset or (parts and size + len(data) > query.max_size):
                break  # the first record of a step comes whatever its size
            if data:
                parts.append(data)
            else:
                limit += after - offset
            size += len(data)
            offset = after
        return b"".join(parts), offset

    def _copy(self, log: ReadableShard, query: Query) -> tuple[bytes, int, CorruptionError | None]:
        """Return the next records of one file of the log, the offset to go on at, and what is
        wrong when there are none."""
        offset, until = query.offset, query.until
        try:
            located = look_up(self._files, log, query)
            if isinstance(located, int):
                return b"", located, None
            if not (units := _beginning_before(log.kind, located.units, until)):
                return b"", offset, None
            data, after, damage = core.copy_records(
                self._buffer(located.base),
                located.base,
                units,
                KIND_SIMPLE if log.kind is QueueKind.SIMPLE else KIND_BATCH,
                offset,
                log.shard.topic,
                log.shard.partition,
                log.state.deleted_between(offset, until),
                query.max_size,
                self._files.strict,
            )
        except CorruptionError as error:
            return b"", offset, error
        if damage is not None and not data:
            return b"", offset, self._corruption(damage)
        return data, after, None


def _beginning_before(kind: QueueKind, units: bytes, until: int) -> bytes:
    """Return the first units, those of records that begin before `until`."""
    if kind is QueueKind.SIMPLE:
        return units  # they were counted
    for number, unit in enumerate(BATCH_UNIT.iter_unpack(units)):
        if unit[4] >= until:
            return units[: number * BATCH_UNIT.size]
    return units


def split_raw_range(run: bytes) -> Iterator[bytes]:
    """Yield the records, or batches, that lie one after the other."""
    position = 0
    while position < len(run):
        size = int.from_bytes(run[position : position + 4], "big")
        yield run[position : position + size]
        position += size
