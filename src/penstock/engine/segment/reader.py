"""Reading a shard: by offset, tag, key and time.

Every record is checked before it leaves: its checksums, and that it is the record which the queue
unit (or the index entry) speaks of. When they disagree, the derived side is rebuilt from the log
once, and the read is tried again; if the record itself is damaged, `CorruptionError` names the file
and the position. A damaged byte is never served, and a damaged record never silently skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from penstock.clock import Clock
from penstock.engine.segment.file_set import FileSet
from penstock.engine.segment.envelope import has_key, stored_from_raw
from penstock.engine.segment.format import (
    KIND_BATCH,
    KIND_SIMPLE,
    PRE_BLANK,
    QUEUE_UNIT,
    TIME_BLOCK,
    Damage,
    RawRecord,
    index_strings,
)
from penstock.engine.segment.properties import inner_range, lookup
from penstock.engine.segment.shard_state import ShardState
from penstock.engine.segment.twin import core
from penstock.engine.segment.twin_interface import Columns
from penstock.errors import CorruptionError
from penstock.metrics import SegmentMetrics
from penstock.record import QueueKind, ShardId, StoredRecord

UNITS_PER_STEP: Final = 4096
_SIZE_UNLIMITED: Final = 1 << 62
_TIME_UNLIMITED: Final = (1 << 63) - 1


class ReadableShard(Protocol):
    """A shard as readers see it: of an open store, or of a directory that another process writes."""

    healed: frozenset[int]
    """Offsets for which rebuilding the queue did not help: their records are damaged."""

    @property
    def shard(self) -> ShardId: ...
    @property
    def kind(self) -> QueueKind: ...
    @property
    def state(self) -> ShardState: ...
    @property
    def earliest(self) -> int: ...
    @property
    def commit(self) -> int: ...

    def check_units(self) -> bool:
        """Return False when the queue files cannot be believed."""
        ...

    def unit_of(self, offset: int) -> int: ...
    def read_units(self, unit: int, count: int) -> bytes: ...
    def position_of(self, offset: int) -> int | None: ...

    def blocks_from(self, timestamp_ms: int) -> Iterator[int]:
        """Yield the blocks of offsets that may hold a record of this time or a later one."""
        ...


class KeyLookup(Protocol):
    def lookup(self, text: str, begin_ms: int, end_ms: int, count_max: int) -> Iterator[int]: ...


class Page(NamedTuple):
    """Records, and the offset at which to go on."""

    records: list[StoredRecord]
    next_offset: int


class Query(NamedTuple):
    """What a reader wants from `offset` on, below `until`."""

    offset: int
    until: int
    max_records: int
    max_size: int
    tag: str | None = None
    key: bytes | None = None


class ShardReader:
    """Reads shards of one store. `heal_queue` and `heal_index` rebuild derived files."""

    def __init__(
        self,
        files: FileSet,
        index: KeyLookup,
        clock: Clock,
        metrics: SegmentMetrics,
        heal_queue: Callable[[ReadableShard], None],
        heal_index: Callable[[], None],
    ) -> None:
        self._files: Final = files
        self._index: Final = index
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._heal_queue: Final = heal_queue
        self._heal_index: Final = heal_index

    def read(self, log: ReadableShard, query: Query) -> Page:
        """Return the records that `query` asks for, ascending."""
        if not log.check_units():
            self._heal_queue(log)
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
                self._heal_or_raise(log, after, damage)
            elif after == offset:
                break
            offset = after
        return Page(records, min(offset, until) if until > query.offset else query.offset)

    def _step(
        self, log: ReadableShard, query: Query, now_ms: int
    ) -> tuple[list[StoredRecord], int, int, Damage | None]:
        located = self._locate(log, query)
        if isinstance(located, Damage):
            return [], query.offset, 0, located
        if isinstance(located, int):
            return [], located, 0, None
        base, units = located
        read = core.read_records if log.kind is QueueKind.SIMPLE else core.read_batches
        records, after, size, damage = read(
            self._files.buffer(base),
            base,
            units,
            query.offset,
            log.shard.topic,
            log.shard.partition,
            query.max_records,
            query.max_size,
            self._hidden(log, query),
            now_ms,
            query.tag,
            query.key,
        )
        return records, min(after, query.until), size, damage

    def _locate(self, log: ReadableShard, query: Query) -> tuple[int, bytes] | int | Damage:
        """Return the log file and the units of the records from `offset` on; the offset to go on
        at when there are none; or what is wrong with the queue."""
        simple = log.kind is QueueKind.SIMPLE
        selective = query.tag is not None or query.key is not None
        count = UNITS_PER_STEP if selective else min(UNITS_PER_STEP, query.max_records)
        if simple:
            count = min(count, query.until - query.offset)
        units = self._units(log, log.unit_of(query.offset), count)
        if units is None:
            return Damage(0, "the queue file is missing or short")
        if simple and units[: QUEUE_UNIT.size] == PRE_BLANK:
            return self._hole(log, query.offset, units)
        position = int.from_bytes(units[:8], "big", signed=True)
        if not self._files.holds(position):
            return Damage(position, "the unit points outside the log")
        return self._files.base_of(position), units

    def _units(self, log: ReadableShard, unit: int, count: int) -> bytes | None:
        """Return the units, or None when they should be there and are not."""
        try:
            units = log.read_units(unit, count)
        except FileNotFoundError:
            return None
        return units if len(units) >= QUEUE_UNIT.size else None

    def _hole(self, log: ReadableShard, offset: int, units: bytes) -> int | Damage:
        """A unit without a record: the log lost it to damage before its queue was rebuilt."""
        count = 0
        while units[count * QUEUE_UNIT.size :].startswith(PRE_BLANK):
            count += 1
        if not all(log.state.is_deleted(offset + n) for n in range(count)):
            return Damage(0, f"the record of offset {offset} is lost")
        return offset + count

    def _heal_or_raise(self, log: ReadableShard, offset: int, damage: Damage) -> None:
        self._metrics.damaged_reads.inc()
        if offset not in log.healed:
            self._heal_queue(log)
            log.healed |= {offset}
            return
        raise self._corruption(damage)

    def _corruption(self, damage: Damage) -> CorruptionError:
        path = self._files.path_of(damage.position)
        inside = damage.position - self._files.base_of(damage.position)
        return CorruptionError(path, position=inside, reason=damage.reason)

    # By key

    def newest_by_key(self, log: ReadableShard, key: bytes) -> StoredRecord | None:
        return next(self.by_key(log, key), None)

    def by_key(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
        """Yield the live records of `key`, newest first."""
        if log.kind is QueueKind.BATCH:
            yield from self._by_scan(log, key)
            return
        if not log.check_units():
            self._heal_queue(log)
        seen: set[int] = set()
        now_ms = self._clock.now_ms()
        for position in self._hits(log, key):
            record = self._hit(log, key, position, now_ms)
            if record is not None and record.offset not in seen:
                seen.add(record.offset)
                yield record

    def _hits(self, log: ReadableShard, key: bytes) -> Iterator[int]:
        """Yield positions that the index has for `key`, newest first."""
        found: dict[int, None] = {}
        for text in index_strings(key):
            full = f"{log.shard.topic}#{text}"
            try:
                hits = list(self._index.lookup(full, 0, _TIME_UNLIMITED, _SIZE_UNLIMITED))
            except CorruptionError:
                self._heal_index()
                hits = list(self._index.lookup(full, 0, _TIME_UNLIMITED, _SIZE_UNLIMITED))
            found.update(dict.fromkeys(hits))
        yield from sorted(found, reverse=True)

    def _hit(self, log: ReadableShard, key: bytes, position: int, now_ms: int) -> StoredRecord | None:
        if position < self._files.start:
            return None
        base = self._files.base_of(position)
        raw = core.decode_raw(self._files.buffer(base), base, position, True)
        if isinstance(raw, Damage):
            raise self._corruption(raw)
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
        return log.position_of(offset) == raw.position

    def _by_scan(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
        """Find the messages of `key` inside batches by reading them, newest blocks first."""
        end = log.commit
        while end > log.earliest:
            start = max(log.earliest, end - TIME_BLOCK)
            query = Query(start, end, TIME_BLOCK, _SIZE_UNLIMITED, key=key)
            yield from reversed(self.read_all(log, query))
            end = start

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

    # By time

    def offset_by_time(self, log: ReadableShard, timestamp_ms: int) -> int | None:
        """Return the offset of the first live record with a timestamp >= `timestamp_ms`: find a
        block whose maximum is that large, then look into it."""
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
        if not log.check_units():
            self._heal_queue(log)
        now_ms = self._clock.now_ms()
        while True:
            located = self._locate(log, query)
            if isinstance(located, Damage):
                self._heal_or_raise(log, query.offset, located)
                continue
            if isinstance(located, int):
                return None, located
            base, units = located
            columns, after, _, damage = core.read_columns(
                self._files.buffer(base),
                base,
                units,
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
            )
            if damage is None or after > query.offset:
                return columns, min(after, query.until)
            self._heal_or_raise(log, after, damage)

    def _hidden(self, log: ReadableShard, query: Query) -> list[tuple[int, int]]:
        """The deleted ranges; a batch that reaches past `until` is cut there, too."""
        deleted = log.state.deleted_between(query.offset, query.until)
        if log.kind is QueueKind.BATCH:
            deleted = [*deleted, (query.until, _SIZE_UNLIMITED)]
        return deleted

    def read_raw(self, log: ReadableShard, query: Query) -> list[bytes]:
        """Return whole records, or batches, as the log holds them, checked."""
        found: list[bytes] = []
        size_left = query.max_size
        offset = max(query.offset, log.earliest)
        until = min(query.until, log.commit)
        while offset < until and len(found) < query.max_records:
            located = self._locate(log, query._replace(offset=offset, until=until))
            if isinstance(located, Damage):
                self._heal_or_raise(log, offset, located)
                continue
            if isinstance(located, int):
                offset = located
                continue
            base, units = located
            raw = self._checked(base, int.from_bytes(units[:8], "big"))
            if raw.size > size_left and found:
                break
            size_left -= raw.size
            inside = raw.position - base
            if not log.state.is_deleted(offset):
                found.append(bytes(self._files.buffer(base)[inside : inside + raw.size]))
            offset = raw.queue_offset + max(1, inner_count(raw))
        return found

    def _checked(self, base: int, position: int) -> RawRecord:
        raw = core.decode_raw(self._files.buffer(base), base, position, True)
        if isinstance(raw, Damage):
            raise self._corruption(raw)
        return raw


def inner_count(raw: RawRecord) -> int:
    """Return how many messages a record of a batch queue holds; 1 for an ordinary one."""
    found = inner_range(lookup(raw.properties))
    return 1 if found is None else found[1]
