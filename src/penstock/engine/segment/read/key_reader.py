"""Reading a shard by key and time, besides what pages and runs offer.

An index entry counts only if the record that it points to has the key, and the queue unit of its
offset points back to it. A damaged index is rebuilt from the log once, and asked again; like the
other reads, these never serve a damaged byte and never pass over a damaged record in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import merge
from typing import Final, Protocol

from penstock.codec.envelope import has_key, names_key
from penstock.codec.format import (
    TIME_BLOCK,
    Damage,
    RawRecord,
    index_strings,
)
from penstock.codec.properties import inner_range, lookup
from penstock.codec.raw_message import stored_from_raw
from penstock.codec.select import core
from penstock.engine.segment.log.disk_errors import read_error
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.queue.lookup import (
    Query,
    ReadableShard,
    lost_record,
    queue_name,
)
from penstock.engine.segment.read.page_reader import SIZE_UNLIMITED, Page, ReadMetrics
from penstock.engine.segment.read.raw_reader import RawRangeReader, split_raw_range
from penstock.errors import CorruptionError, UnreadableContentError
from penstock.platform.clock import Clock
from penstock.record import QueueKind, ShardId, StoredRecord

__all__ = [
    "KeyLookup",
    "Page",
    "Query",
    "ReadableShard",
    "ShardReader",
    "inner_count",
    "split_raw_range",
]

_TIME_UNLIMITED: Final = (1 << 63) - 1
_REBUILDS_MAX: Final = 3
"""How often a look-up waits for a rebuilt index before it reports the damage."""


class BatchLookup(Protocol):
    """The index of keys inside batches."""

    def reached(self, shard: ShardId) -> int: ...
    def lookup(self, shard: ShardId, key: bytes) -> list[int]: ...


class KeyLookup(Protocol):
    def lookup(self, text: str, begin_ms: int, end_ms: int, count_max: int) -> Iterator[int]: ...


class ShardReader(RawRangeReader):
    """Reads shards of one store. `repair_queue` and `repair_index` rebuild derived files."""

    def __init__(
        self,
        files: FileSet,
        index: KeyLookup,
        clock: Clock,
        metrics: ReadMetrics,
        repair_queue: Callable[[ReadableShard], None],
        repair_index: Callable[[], None],
    ) -> None:
        super().__init__(files, clock, metrics, repair_queue)
        self._index: Final = index
        self._repair_index: Final = repair_index
        self.batch_keys: BatchLookup | None = None
        """Set when the store has batch shards; without it their keys are found by reading."""

    # By key

    def by_key(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
        """Yield the live records of `key`, newest first. A lost record may have had the key: what
        is older than it is not reported."""
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
        now_ms = self._clock.expiry_ms()
        # What is appended meanwhile may stand under one of the key's texts, and come too late to
        # be found under another.
        end = log.commit
        for position in self._hits(log, key):
            record = self._hit(log, key, position, now_ms)
            if record is not None and record.offset < end and record.offset not in seen:
                seen.add(record.offset)
                yield record

    def _hits(self, log: ReadableShard, key: bytes) -> Iterator[int]:
        """Yield positions that the index has for `key`, newest first. When a file of it turns out
        to be damaged, the index is rebuilt, by this reader or by another that it waits for, and
        asked from the start: positions may come again."""
        for _ in range(_REBUILDS_MAX):
            try:
                yield from self._lookup(log, key)
                return
            except CorruptionError:
                self._repair_index()
        yield from self._lookup(log, key)

    def _lookup(self, log: ReadableShard, key: bytes) -> Iterator[int]:
        hits = [
            self._index.lookup(f"{log.shard.topic}#{text}", 0, _TIME_UNLIMITED, SIZE_UNLIMITED)
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
            return None  # whole, but it cannot be decoded: it has no key
        expired = record.expires_at_ms is not None and record.expires_at_ms <= now_ms
        return None if expired or not has_key(record, raw.properties, key) else record

    def _is_shown(self, log: ReadableShard, raw: RawRecord) -> bool:
        """Say whether readers may see the record, and its queue unit points back to it."""
        offset = raw.queue_offset
        if not log.earliest <= offset < log.commit or log.state.is_deleted(offset):
            return False
        generation = log.truncation_generation
        try:
            return self._position_of(log, offset) == raw.position
        except CorruptionError as error:
            if not log.was_truncated_since(generation):
                self._repair_or_raise(log, offset, error)
            return self._position_of(log, offset) == raw.position

    def _raise_if_own(self, log: ReadableShard, damage: Damage) -> None:
        """Raise unless the damaged record is one of another shard, or a dead one."""
        if self._position_of(log, log.offset_at(damage.position)) == damage.position:
            raise self._corruption(damage)

    def _position_of(self, log: ReadableShard, offset: int) -> int | None:
        try:
            return log.position_of(offset)
        except OSError as error:
            raise read_error(error, queue_name(log)) from error

    def _in_batches(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
        """Find the messages that have `key`, and those of batches that have it as a whole (only
        RocketMQ's have keys of their own), newest first."""
        seen: set[int] = set()
        both = (self._inside_batches(log, key), self._by_key_of_batch(log, key))
        for record in merge(*both, key=lambda message: message.offset, reverse=True):
            if record.offset not in seen:
                seen.add(record.offset)
                yield record

    def _by_key_of_batch(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
        for position in self._hits(log, key):
            yield from self._in_batch(log, key, position, log.commit, whole=True)

    def _inside_batches(self, log: ReadableShard, key: bytes) -> Iterator[StoredRecord]:
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
        self, log: ReadableShard, key: bytes, position: int, until: int, *, whole: bool = False
    ) -> Iterator[StoredRecord]:
        """Yield the messages of one batch that have `key`; with `whole`, all of them if the batch
        itself has it."""
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
        if whole and not names_key(raw.properties, key):
            return
        end = min(first + inner_count(raw), until)
        key_filter = None if whole else key
        query = Query(max(first, log.earliest), end, end - first, SIZE_UNLIMITED, key=key_filter)
        with suppress(UnreadableContentError):  # opaque: there are no messages to be given
            yield from reversed(self.read_all(log, query))

    def _by_scan(
        self, log: ReadableShard, key: bytes, start: int, end: int
    ) -> Iterator[StoredRecord]:
        """Find the messages of `key` in [start, end) by reading them, newest blocks first."""
        while end > start:
            first = max(start, end - TIME_BLOCK)
            query = Query(first, end, TIME_BLOCK, SIZE_UNLIMITED, key=key)
            yield from reversed(self.read_all(log, query))
            end = first

    # By time

    def offset_by_time(self, log: ReadableShard, timestamp_ms: int) -> int | None:
        """Return the offset of the first live record with a timestamp >= `timestamp_ms`: find a
        block whose maximum is that large, then look into it."""
        self._check(log)
        offset = self._first_of_time(log, timestamp_ms)
        # The time of a lost record is unknown: it may have been the first.
        lost = log.state.first_lost(log.earliest, log.commit if offset is None else offset)
        if lost is not None:
            raise lost_record(self._files, log, lost)
        return offset

    def _first_of_time(self, log: ReadableShard, timestamp_ms: int) -> int | None:
        for block in log.blocks_from(timestamp_ms):
            query = Query(block * TIME_BLOCK, (block + 1) * TIME_BLOCK, TIME_BLOCK, SIZE_UNLIMITED)
            for offset, found_ms in self._times_of(log, query):
                if found_ms >= timestamp_ms:
                    return offset
        return None

    def _times_of(self, log: ReadableShard, query: Query) -> Iterator[tuple[int, int]]:
        """Yield offsets and timestamps; messages that cannot be decoded have that of their
        batch."""
        offset = query.offset
        while offset < query.until:
            try:
                page = self.read(log, query._replace(offset=offset))
            except UnreadableContentError as error:
                yield max(offset, error.offset, log.earliest), error.timestamp_ms
                offset = error.next_offset
                continue
            for record in page.records:
                yield record.offset, record.timestamp_ms
            if page.next_offset <= offset:
                return
            offset = page.next_offset


def inner_count(raw: RawRecord) -> int:
    """Return how many messages a record of a batch queue holds; 1 for an ordinary one."""
    inner = inner_range(lookup(raw.properties))
    return 1 if inner is None else inner[1]
