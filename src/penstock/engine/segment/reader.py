"""Reading a shard: by offset, tag, key and time.

Every record is checked before it leaves: its checksums, and that it is the record which the queue
unit (or the index entry) speaks of. When they disagree, the derived side is rebuilt from the log
once, and the read is tried again; if the record itself is damaged, `CorruptionError` names the file
and the position. A damaged byte is never served, and a damaged record never silently skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

from penstock.clock import Clock
from penstock.engine.contract import BatchPage, ForeignBatch
from penstock.engine.segment.envelope import has_key
from penstock.engine.segment.file_set import FileSet
from penstock.engine.segment.format import (
    BATCH_UNIT,
    KIND_BATCH,
    KIND_SIMPLE,
    TIME_BLOCK,
    Damage,
    RawRecord,
    index_strings,
)
from penstock.engine.segment.locating import (
    Located,
    Query,
    ReadableShard,
    locate,
    lost_record,
    read_error,
)
from penstock.engine.segment.properties import inner_range, lookup
from penstock.engine.segment.raw_message import body_of, stored_from_raw
from penstock.engine.segment.twin import core, native_only
from penstock.engine.segment.twin_interface import ColumnPage, Columns, KeyPage
from penstock.errors import CorruptionError
from penstock.record import QueueKind, ShardId, StoredRecord

__all__ = ["KeyLookup", "Page", "Query", "ReadableShard", "ShardReader", "inner_count", "split_run"]

T = TypeVar("T")

_SIZE_UNLIMITED: Final = 1 << 62
_UNITS_PER_FETCH: Final = 1024
_TIME_UNLIMITED: Final = (1 << 63) - 1


class BatchLookup(Protocol):
    """The index of keys inside batches."""

    def reached(self, shard: ShardId) -> int: ...
    def lookup(self, shard: ShardId, key: bytes) -> list[int]: ...


class Counting(Protocol):
    def inc(self) -> None: ...


class ReadMetrics(Protocol):
    """What a reader counts; a store's metrics, or something lighter in a view."""

    @property
    def damaged_reads(self) -> Counting: ...


class KeyLookup(Protocol):
    def lookup(self, text: str, begin_ms: int, end_ms: int, count_max: int) -> Iterator[int]: ...


class Page(NamedTuple):
    """Records, and the offset at which to go on."""

    records: list[StoredRecord]
    next_offset: int


class ShardReader:
    """Reads shards of one store. `heal_queue` and `heal_index` rebuild derived files."""

    def __init__(
        self,
        files: FileSet,
        index: KeyLookup,
        clock: Clock,
        metrics: ReadMetrics,
        heal_queue: Callable[[ReadableShard], None],
        heal_index: Callable[[], None],
    ) -> None:
        self._files: Final = files
        self._index: Final = index
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._heal_queue: Final = heal_queue
        self._heal_index: Final = heal_index
        self.batch_keys: BatchLookup | None = None
        """Set when the store has batch shards; without it their keys are found by reading."""

    def read(self, log: ReadableShard, query: Query) -> Page:
        """Return the records that `query` asks for, ascending."""
        self._check(log)
        offset = max(query.offset, log.earliest)
        until = min(query.until, log.commit)
        records: list[StoredRecord] = []
        size_left = query.max_size
        now_ms = self._clock.now_ms()
        while offset < until and len(records) < query.max_records and size_left > 0:
            wanted = query._replace(
                offset=offset,
                until=until,
                max_records=query.max_records - len(records),
                max_size=size_left,
            )
            page, after, size, damage = self._step(log, wanted, now_ms)
            if records and size > size_left:
                # The first record of a step comes whatever its size; here it is not the first.
                break
            records += page
            size_left -= size
            if damage is not None:
                if records:
                    return Page(records, after)
                after = self._heal_or_raise(log, after, damage)
            elif after == offset:
                break
            offset = after
        return Page(records, min(offset, until) if until > query.offset else query.offset)

    def read_some(self, log: ReadableShard, query: Query) -> list[StoredRecord]:
        """Return records as `read` does; none only when there is none up to `until`."""
        offset = query.offset
        while offset < query.until:
            page = self.read(log, query._replace(offset=offset))
            if page.records:
                return page.records
            if page.next_offset <= offset < log.commit:
                raise lost_record(self._files, log, offset)
            offset = max(page.next_offset, offset + 1)
        return []

    def _check(self, log: ReadableShard) -> None:
        if not log.check_units():
            self._heal_queue(log)

    def _step(
        self, log: ReadableShard, query: Query, now_ms: int
    ) -> tuple[list[StoredRecord], int, int, CorruptionError | None]:
        try:
            located = locate(self._files, log, query)
            if isinstance(located, int):
                return [], located, 0, None
            buffer = self._buffer(located.base)
        except CorruptionError as error:
            return [], query.offset, 0, error
        read = core.read_records if log.kind is QueueKind.SIMPLE else core.read_batches
        records, after, size, damage = read(
            buffer,
            located.base,
            located.units,
            query.offset,
            log.shard.topic,
            log.shard.partition,
            query.max_records,
            query.max_size,
            self._hidden(log, query),
            now_ms,
            query.tag,
            query.key,
            self._files.strict,
        )
        found = None if damage is None else self._corruption(damage)
        return records, min(after, query.until), size, found

    def _buffer(self, base: int) -> memoryview:
        try:
            return self._files.buffer(base)
        except OSError as error:
            raise read_error(error) from error

    def _heal_or_raise(self, log: ReadableShard, offset: int, error: CorruptionError) -> int:
        """Have the queue rebuilt, once for every damaged offset; return where to go on."""
        if log.earliest > offset:
            return log.earliest  # retention was faster
        self._metrics.damaged_reads.inc()
        if offset in log.healed or log.state.first_lost(offset, offset + 1) is not None:
            raise error
        self._heal_queue(log)
        log.healed |= {offset}
        return offset

    def _corruption(self, damage: Damage) -> CorruptionError:
        path = self._files.path_of(damage.position)
        inside = damage.position - self._files.base_of(damage.position)
        return CorruptionError(path, position=inside, reason=damage.reason)

    # By key

    def newest_by_key(self, log: ReadableShard, key: bytes) -> StoredRecord | None:
        return next(self.by_key(log, key), None)

    def query(
        self, log: ReadableShard, key: bytes, begin_ms: int, end_ms: int | None, limit: int
    ) -> list[StoredRecord]:
        """Return the live records of `key` of a span of time, newest first."""
        found = (
            record
            for record in self.by_key(log, key)
            if begin_ms <= record.timestamp_ms and (end_ms is None or record.timestamp_ms <= end_ms)
        )
        return list(islice(found, min(limit, _SIZE_UNLIMITED)))

    def by_key(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
        """Yield the live records of `key`, newest first. A lost record may have had the key: what
        is older than it is not told."""
        self._check(log)
        lost = log.state.last_lost(log.earliest, log.commit)
        batch = log.kind is QueueKind.BATCH
        for record in self._in_batches(log, key) if batch else self._by_index(log, key):
            if lost is not None and record.offset < lost:
                break
            yield record
        if lost is not None:
            raise lost_record(self._files, log, lost)

    def _by_index(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
        seen: set[int] = set()
        now_ms = self._clock.now_ms()
        for position in self._hits(log, key):
            record = self._hit(log, key, position, now_ms)
            if record is not None and record.offset not in seen:
                seen.add(record.offset)
                yield record

    def _hits(self, log: ReadableShard, key: bytes) -> Iterator[int]:
        """Yield positions that the index has for `key`, newest first. When a file of it turns out
        to be damaged, the index is rebuilt and asked from the start: positions may come again."""
        try:
            yield from self._lookup(log, key)
        except CorruptionError:
            self._heal_index()
            yield from self._lookup(log, key)

    def _lookup(self, log: ReadableShard, key: bytes) -> Iterator[int]:
        hits = [
            self._index.lookup(f"{log.shard.topic}#{text}", 0, _TIME_UNLIMITED, _SIZE_UNLIMITED)
            for text in index_strings(key)
        ]
        return merge(*hits, reverse=True)

    def _hit(
        self, log: ReadableShard, key: bytes, position: int, now_ms: int
    ) -> StoredRecord | None:
        if position < self._files.start:
            return None
        base = self._files.base_of(position)
        if not self._files.holds(position):
            return None
        raw = core.decode_raw(self._buffer(base), base, position, True, self._files.strict)
        if isinstance(raw, Damage):
            self._raise_if_own(log, raw)
            return None
        if (raw.topic, raw.queue_id) != log.shard or not self._is_shown(log, raw):
            return None
        record = stored_from_raw(raw)
        if isinstance(record, Damage):
            raise self._corruption(record)
        expired = record.expires_at_ms is not None and record.expires_at_ms <= now_ms
        return None if expired or not has_key(record, raw.properties, key) else record

    def _is_shown(self, log: ReadableShard, raw: RawRecord) -> bool:
        """Say whether readers may see the record, and its queue unit points back to it."""
        offset = raw.queue_offset
        if not log.earliest <= offset < log.commit or log.state.is_deleted(offset):
            return False
        try:
            return self._position_of(log, offset) == raw.position
        except CorruptionError as error:
            self._heal_or_raise(log, offset, error)
            return self._position_of(log, offset) == raw.position

    def _raise_if_own(self, log: ReadableShard, damage: Damage) -> None:
        """Raise unless the damaged record is one of another shard, or a dead one."""
        if self._position_of(log, log.offset_at(damage.position)) == damage.position:
            raise self._corruption(damage)

    def _position_of(self, log: ReadableShard, offset: int) -> int | None:
        try:
            return log.position_of(offset)
        except OSError as error:
            raise read_error(error) from error

    def _in_batches(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
        """Find the messages of `key` inside batches, newest first: what the index of such keys has
        not reached is read, the rest is looked up."""
        keys = self.batch_keys
        reached = log.earliest if keys is None else max(log.earliest, keys.reached(log.shard))
        yield from self._by_scan(log, key, min(reached, log.commit), log.commit)
        if keys is None:
            return
        try:
            positions = keys.lookup(log.shard, key)
        except CorruptionError:
            # It is dropped and filled again at the next start; until then all is read.
            yield from self._by_scan(log, key, log.earliest, min(reached, log.commit))
            return
        for position in positions:
            yield from self._in_batch(log, key, position, reached)

    def _in_batch(
        self, log: ReadableShard, key: bytes, position: int, until: int
    ) -> Iterator[StoredRecord]:
        if not self._files.holds(position):
            return
        base = self._files.base_of(position)
        raw = core.decode_raw(self._buffer(base), base, position, True, self._files.strict)
        if isinstance(raw, Damage):
            self._raise_if_own(log, raw)
            return
        first = raw.queue_offset
        if (raw.topic, raw.queue_id) != log.shard or not first < min(until, log.commit):
            return
        if self._position_of(log, first) != position:
            return  # a dead record of a shard that was cut
        end = min(first + inner_count(raw), until)
        query = Query(max(first, log.earliest), end, end - first, _SIZE_UNLIMITED, key=key)
        yield from reversed(self.read_all(log, query))

    def _by_scan(
        self, log: ReadableShard, key: bytes, start: int, end: int
    ) -> Iterator[StoredRecord]:
        """Find the messages of `key` in [start, end) by reading them, newest blocks first."""
        while end > start:
            first = max(start, end - TIME_BLOCK)
            query = Query(first, end, TIME_BLOCK, _SIZE_UNLIMITED, key=key)
            yield from reversed(self.read_all(log, query))
            end = first

    def read_all(self, log: ReadableShard, query: Query) -> list[StoredRecord]:
        """Return everything in [offset, until) that `query` asks for, page by page."""
        records: list[StoredRecord] = []
        offset = query.offset
        while offset < query.until:
            page = self.read(log, query._replace(offset=offset))
            records += page.records
            if page.next_offset <= offset:
                break
            offset = page.next_offset
        return records

    def live_between(self, log: ReadableShard, start: int, end: int) -> list[StoredRecord]:
        """Return the live records of [start, end)."""
        return self.read_all(log, Query(start, end, max(1, end - start), _SIZE_UNLIMITED))

    # By time

    def offset_by_time(self, log: ReadableShard, timestamp_ms: int) -> int | None:
        """Return the offset of the first live record with a timestamp >= `timestamp_ms`: find a
        block whose maximum is that large, then look into it."""
        self._check(log)
        found = self._first_of_time(log, timestamp_ms)
        # Nobody knows the time of a lost record: it may have been the first.
        lost = log.state.first_lost(log.earliest, log.commit if found is None else found)
        if lost is not None:
            raise lost_record(self._files, log, lost)
        return found

    def _first_of_time(self, log: ReadableShard, timestamp_ms: int) -> int | None:
        for block in log.blocks_from(timestamp_ms):
            query = Query(block * TIME_BLOCK, (block + 1) * TIME_BLOCK, TIME_BLOCK, _SIZE_UNLIMITED)
            for record in self.read_all(log, query):
                if record.timestamp_ms >= timestamp_ms:
                    return record.offset
        return None

    # Other forms

    def read_columns(
        self, log: ReadableShard, query: Query, fields: int
    ) -> tuple[Columns | None, int]:
        """Return the next records as Arrow buffers, and the offset at which to go on."""
        now_ms = self._clock.now_ms()

        def read(buffer: memoryview, located: Located, query: Query) -> ColumnPage:
            return core.read_columns(
                buffer,
                located.base,
                located.units,
                KIND_SIMPLE if log.kind is QueueKind.SIMPLE else KIND_BATCH,
                query.offset,
                log.shard.topic,
                log.shard.partition,
                query.max_records,
                query.max_size,
                self._hidden(log, query),
                now_ms,
                query.tag,
                fields,
                self._files.strict,
            )

        return self._next_page(log, query, read)

    def read_keys(self, log: ReadableShard, query: Query) -> tuple[bytes | None, int]:
        """Return the keys inside the next batches as entries of an index, and the offset at which
        to go on."""
        now_ms = self._clock.now_ms()

        def read(buffer: memoryview, located: Located, query: Query) -> KeyPage:
            return core.read_keys(
                buffer,
                located.base,
                located.units,
                query.offset,
                log.shard.topic,
                log.shard.partition,
                query.max_records,
                query.max_size,
                self._hidden(log, query),
                now_ms,
                self._files.strict,
            )

        return self._next_page(log, query, read)

    def _next_page(
        self,
        log: ReadableShard,
        query: Query,
        read: Callable[[memoryview, Located, Query], tuple[T, int, int, Damage | None]],
    ) -> tuple[T | None, int]:
        """Return what `read` makes of the next units; None: there are none before the offset."""
        self._check(log)
        while True:
            try:
                located = locate(self._files, log, query)
                if isinstance(located, int):
                    return None, located
                buffer = self._buffer(located.base)
            except CorruptionError as error:
                query = query._replace(offset=self._heal_or_raise(log, query.offset, error))
                continue
            found, after, _, damage = read(buffer, located, query)
            if damage is None or after > query.offset:
                return found, min(after, query.until)
            after = self._heal_or_raise(log, after, self._corruption(damage))
            query = query._replace(offset=after)

    def _hidden(self, log: ReadableShard, query: Query) -> list[tuple[int, int]]:
        """The deleted ranges; a batch that reaches past `until` is cut there, too."""
        deleted = log.state.deleted_between(query.offset, query.until)
        if log.kind is QueueKind.BATCH:
            deleted = [*deleted, (query.until, _SIZE_UNLIMITED)]
        return deleted

    def read_kafka(self, log: ReadableShard, offset: int, until: int, max_size: int) -> BatchPage:
        """Return Kafka batches as they lie in the log, checked; see `BatchPage`."""
        self._check(log)
        offset = max(offset, log.earliest)
        parts: list[bytes | memoryview] = []
        size = 0
        slice_batches = native_only().slice_batches
        while offset < until and size < max_size:
            query = Query(offset, until, _UNITS_PER_FETCH, max_size - size)
            try:
                located = locate(self._files, log, query)
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
                offset = self._heal_or_raise(log, offset, error)
                continue
            if parts and size + length > max_size:
                break  # the first batch of a step comes whatever its size
            parts += [
                part if isinstance(part, bytes) else buffer[part[0] : part[0] + part[1]]
                for part in page
            ]
            size += length
            if foreign and not parts:
                return BatchPage([], 0, after, self._foreign(log, after))
            if foreign or after == offset:
                return BatchPage(parts, size, after)
            offset = after
        return BatchPage(parts, size, offset)

    def _foreign(self, log: ReadableShard, offset: int) -> ForeignBatch:
        unit = log.read_units(log.unit_of(offset), 1)
        position, _, _, _, first, count, _, _ = BATCH_UNIT.unpack(unit)
        base = self._files.base_of(position)
        raw = core.decode_raw(self._buffer(base), base, position, True, self._files.strict)
        if isinstance(raw, Damage):
            raise self._corruption(raw)
        try:
            return ForeignBatch(first + count, body_of(raw))
        except ValueError as error:
            raise self._corruption(Damage(position, str(error))) from error

    def read_raw(self, log: ReadableShard, query: Query) -> list[bytes]:
        """Return whole records, or batches, as the log holds them, checked."""
        return [*split_run(self.read_run(log, query)[0])]

    def read_run(self, log: ReadableShard, query: Query) -> tuple[bytes, int]:
        """Return whole records, or batches, one behind the other as the log holds them, checked,
        and the offset to go on at; no object is made of any of them."""
        self._check(log)
        parts: list[bytes] = []
        size = 0
        offset = max(query.offset, log.earliest)
        until = min(query.until, log.commit)
        limit = offset + query.max_records  # a record takes an offset at least
        while offset < min(until, limit) and size < query.max_size:
            wanted = query._replace(offset=offset, until=until, max_records=limit - offset)
            try:
                located = locate(self._files, log, wanted)
                if isinstance(located, int):
                    limit += located - offset
                    offset = located
                    continue
                if not (units := _beginning_before(log.kind, located.units, until)):
                    break
                data, after, damage = core.copy_records(
                    self._buffer(located.base),
                    located.base,
                    units,
                    KIND_SIMPLE if log.kind is QueueKind.SIMPLE else KIND_BATCH,
                    offset,
                    log.shard.topic,
                    log.shard.partition,
                    log.state.deleted_between(offset, until),
                    query.max_size - size,
                    self._files.strict,
                )
                if damage is not None and not data:
                    raise self._corruption(damage)
            except CorruptionError as error:
                if parts:
                    break
                offset = self._heal_or_raise(log, offset, error)
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


def _beginning_before(kind: QueueKind, units: bytes, until: int) -> bytes:
    """Return the first units, those of records that begin before `until`."""
    if kind is QueueKind.SIMPLE:
        return units  # they were counted
    for number, unit in enumerate(BATCH_UNIT.iter_unpack(units)):
        if unit[4] >= until:
            return units[: number * BATCH_UNIT.size]
    return units


def split_run(run: bytes) -> Iterator[bytes]:
    """Yield the records, or batches, that lie one behind the other."""
    at = 0
    while at < len(run):
        size = int.from_bytes(run[at : at + 4], "big")
        yield run[at : at + size]
        at += size


def inner_count(raw: RawRecord) -> int:
    """Return how many messages a record of a batch queue holds; 1 for an ordinary one."""
    found = inner_range(lookup(raw.properties))
    return 1 if found is None else found[1]
