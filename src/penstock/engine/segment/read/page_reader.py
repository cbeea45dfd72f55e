"""Pages of a shard by offset: as records, as Arrow buffers, as the keys inside batches.

Every record is checked before it leaves: its checksums, and that it is the record which the queue
unit speaks of. When they disagree, the derived side is rebuilt from the log once, and the read is
tried again; if the record itself is damaged, `CorruptionError` names the file and the position. A
damaged byte is never served, and a damaged record never silently skipped.

A record that passes all of that may still hold something else than messages: an opaque batch, or a
body that does not decompress. Nothing is damaged then, and nothing to be rebuilt: the read raises
`UnreadableContentError`. A read by key or tag skips it, because its keys and tags
are unknown.

Nothing is locked meanwhile. A shard whose tail is cut, or which is deleted, under a read may look
damaged to it; so before a failure counts, the read asks for such a cut, and begins anew where it
was, within the bounds that the shard has now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from penstock.codec.deleted_ranges import cover
from penstock.codec.format import KIND_BATCH, KIND_SIMPLE, Damage
from penstock.codec.interface import ColumnPage, Columns, KeyPage
from penstock.codec.select import core
from penstock.engine.segment.log.disk_errors import read_error
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.queue.lookup import (
    LookupResult,
    Query,
    ReadableShard,
    look_up,
    lost_record,
    queue_name,
)
from penstock.engine.segment.read.unreadable import UnitsRead, find_unreadable
from penstock.errors import CorruptionError, UnreadableContentError
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import QueueKind, StoredRecord

T = TypeVar("T")

Failure = CorruptionError | UnreadableContentError
"""Why a page ends before a record."""

_log: Final = get_logger(__name__)
SIZE_UNLIMITED: Final = 1 << 62


class Counting(Protocol):
    def inc(self) -> None: ...


class ReadMetrics(Protocol):
    """What a reader counts; a store's metrics, or something lighter in a view."""

    @property
    def damaged_reads(self) -> Counting: ...


class Page(NamedTuple):
    """Records, and the offset at which to go on."""

    records: list[StoredRecord]
    next_offset: int


class PageReader:
    """Reads shards of one store by offset. `repair_queue` rebuilds the queue of a shard."""

    def __init__(
        self,
        files: FileSet,
        clock: Clock,
        metrics: ReadMetrics,
        repair_queue: Callable[[ReadableShard], None],
    ) -> None:
        self._files: Final = files
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._repair_queue: Final = repair_queue

    def read(self, log: ReadableShard, query: Query) -> Page:
        """Return the records that `query` asks for, ascending."""
        self._check(log)
        generation = log.truncation_generation
        offset = max(query.offset, log.earliest)
        until = min(query.until, log.commit)
        records: list[StoredRecord] = []
        size_left = query.max_size
        now_ms = self._clock.expiry_ms()
        while offset < until and len(records) < query.max_records and size_left > 0:
            remaining = query._replace(
                offset=offset,
                until=until,
                max_records=query.max_records - len(records),
                max_size=size_left,
            )
            page, after, size, failure = self._step(log, remaining, now_ms)
            if not page and log.was_truncated_since(generation):
                if records:
                    break
                generation, until = log.truncation_generation, min(query.until, log.commit)
                continue
            if records and size > size_left:
                # The first record of a step comes whatever its size; here it is not the first.
                break
            records += page
            size_left -= size
            if failure is not None:
                if records:
                    return Page(records, after)
                after = self._after_failure(log, remaining._replace(offset=after), failure)
            elif after == offset:
                break
            offset = after
        return Page(records, min(offset, until) if until > query.offset else query.offset)

    def read_some(self, log: ReadableShard, query: Query) -> list[StoredRecord]:
        """Return records as `read` does; none only when there is none up to `until`. Passes over
        what cannot be decoded: a caller of records has no use for it."""
        offset = query.offset
        while offset < query.until:
            generation = log.truncation_generation
            try:
                page = self.read(log, query._replace(offset=offset))
            except UnreadableContentError as error:
                _log.warning("content_passed_over", shard=log.shard.name, error=str(error))
                offset = error.next_offset
                continue
            if page.records:
                return page.records
            if page.next_offset <= offset < log.commit:
                if log.was_truncated_since(generation):
                    continue
                raise lost_record(self._files, log, offset)
            offset = max(page.next_offset, offset + 1)
        return []

    def _check(self, log: ReadableShard) -> None:
        try:
            good = log.check_units()
        except OSError as error:
            raise read_error(error, queue_name(log)) from error
        if not good:
            self._repair_queue(log)

    def _step(
        self, log: ReadableShard, query: Query, now_ms: int
    ) -> tuple[list[StoredRecord], int, int, Failure | None]:
        try:
            located = look_up(self._files, log, query)
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
        failure = None
        if damage is not None and after < query.until:
            failure = self._failure(log, located, query.offset, damage)
        return records, min(after, query.until), size, failure

    def _buffer(self, base: int) -> memoryview:
        try:
            return self._files.buffer(base)
        except OSError as error:
            raise read_error(error, self._files.path_of(base)) from error

    def _after_failure(self, log: ReadableShard, query: Query, failure: Failure) -> int:
        """Return where to go on when the record at `query.offset` cannot be read; raise when there
        is no way on."""
        if isinstance(failure, CorruptionError):
            return self._repair_or_raise(log, query.offset, failure)
        end = failure.next_offset
        is_wanted = query.key is None and query.tag is None
        deleted = log.state.deleted_between(query.offset, end)
        if end <= query.offset or (is_wanted and not cover(deleted, query.offset, end)):
            raise failure
        return end

    def _repair_or_raise(self, log: ReadableShard, offset: int, error: CorruptionError) -> int:
        """Have the queue rebuilt, once for every damaged offset; return where to go on. The caller
        has made sure that no cut of the shard is all there is to it."""
        if log.earliest > offset:
            return log.earliest  # retention was faster
        self._metrics.damaged_reads.inc()
        if offset in log.repaired or log.state.first_lost(offset, offset + 1) is not None:
            raise error
        self._repair_queue(log)
        log.repaired |= {offset}
        return offset

    def _failure(
        self, log: ReadableShard, located: LookupResult, offset: int, damage: Damage
    ) -> Failure:
        """Tell a damaged record, or a unit that speaks of another one, from a record that is whole
        and only holds something else than messages. The first of the units is that of `offset`."""
        read = UnitsRead(self._buffer(located.base), located.base, located.units, offset)
        strict = self._files.strict
        content_error = find_unreadable(log.shard, log.kind, read, damage, strict=strict)
        return content_error or self._corruption(damage)

    def _corruption(self, damage: Damage) -> CorruptionError:
        path = self._files.path_of(damage.position)
        inside = damage.position - self._files.base_of(damage.position)
        return CorruptionError(path, position=inside, reason=damage.reason)

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
        return self.read_all(log, Query(start, end, max(1, end - start), SIZE_UNLIMITED))

    def read_columns(
        self, log: ReadableShard, query: Query, fields: int
    ) -> tuple[Columns | None, int]:
        """Return the next records as Arrow buffers, and the offset at which to go on."""
        now_ms = self._clock.expiry_ms()

        def read(buffer: memoryview, located: LookupResult, query: Query) -> ColumnPage:
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
        to go on. A batch that cannot be decoded has none."""
        now_ms = self._clock.expiry_ms()

        def read(buffer: memoryview, located: LookupResult, query: Query) -> KeyPage:
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

        try:
            return self._next_page(log, query, read)
        except UnreadableContentError as error:
            return None, error.next_offset

    def _next_page(
        self,
        log: ReadableShard,
        query: Query,
        read: Callable[[memoryview, LookupResult, Query], tuple[T, int, int, Damage | None]],
    ) -> tuple[T | None, int]:
        """Return what `read` makes of the next units; None: there are none before the offset."""
        self._check(log)
        generation = 0  # any: who reads page by page knew `until` before
        while True:
            page, after, failure = self._try_page(log, query, read)
            if failure is None and page is not None:
                return page, after
            if log.was_truncated_since(generation):
                generation, until = log.truncation_generation, min(query.until, log.commit)
                if query.offset >= until:
                    return None, query.until
                query = query._replace(until=until)
            elif failure is None:
                return None, after
            else:
                offset = self._after_failure(log, query._replace(offset=after), failure)
                if offset >= query.until:
                    return None, query.until
                query = query._replace(offset=offset)

    def _try_page(
        self,
        log: ReadableShard,
        query: Query,
        read: Callable[[memoryview, LookupResult, Query], tuple[T, int, int, Damage | None]],
    ) -> tuple[T | None, int, Failure | None]:
        try:
            located = look_up(self._files, log, query)
            if isinstance(located, int):
                return None, located, None
            buffer = self._buffer(located.base)
        except CorruptionError as error:
            return None, query.offset, error
        page, after, _, damage = read(buffer, located, query)
        if damage is None or after > query.offset:
            return page, min(after, query.until), None
        return None, after, self._failure(log, located, query.offset, damage)

    def _hidden(self, log: ReadableShard, query: Query) -> list[tuple[int, int]]:
        """The deleted ranges; a batch that reaches past `until` is cut there, too."""
        deleted = log.state.deleted_between(query.offset, query.until)
        if log.kind is QueueKind.BATCH:
            deleted = [*deleted, (query.until, SIZE_UNLIMITED)]
        return deleted
