"""What a read-only store shows of a directory at one moment: its files, shards and bounds.

A snapshot never changes. Its files stay open while readers use it, so that a refresh in
one thread does not disturb a read in another.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Final

from penstock.codec.format import PRE_BLANK, TIME_BLOCK
from penstock.engine.segment.control.control_records import is_control
from penstock.engine.segment.index.block_checksums import BlockChecksums
from penstock.engine.segment.index.readonly_index import ReadOnlyIndex
from penstock.engine.segment.index.sealed_files import SealedFiles
from penstock.engine.segment.log.log_files import FileSet, is_file_name
from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.queue.queue_files import OpenFiles, UnitFiles
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.time_index import TimeIndex
from penstock.engine.segment.read.key_reader import Query, ShardReader
from penstock.engine.segment.readonly.published_states import KnownStates, has_states, read_states
from penstock.engine.segment.readonly.readonly_shard import ReadOnlyShard
from penstock.engine.segment.recovery.checkpoint import (
    DerivedPoint,
    read_derived,
    read_durable,
    read_rocketmq,
)
from penstock.engine.segment.recovery.store_sizes import check_is_store, stored_properties
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.errors import CorruptionError, NotAStoreError, StoreError, UnknownShardError
from penstock.platform.clock import Clock
from penstock.platform.disk import Disk
from penstock.record import QueueKind, ShardId, StoredRecord

_CAPTURES_MAX: Final = 3
"""How often a snapshot is tried while files come and go under it."""
_SIZE_UNLIMITED: Final = 1 << 62


class Snapshot:
    """Use `SnapshotSource.capture`."""

    def __init__(
        self,
        source: SnapshotSource,
        sizes: FileSizes,
        files: FileSet,
        known: KnownStates | None,
        point: DerivedPoint | None,
    ) -> None:
        disk, paths = source.disk, source.paths
        self.disk: Final = disk
        self.paths: Final = paths
        self.sizes: Final = sizes
        self.files: Final = files
        self.known: Final = known
        self.point: Final = point
        """The checkpoint of the derived files; None in RocketMQ's own directory."""
        self.durable: Final = read_durable(disk, paths.durable)[1] or read_rocketmq(
            disk, paths.checkpoint
        )
        self.unclosed: Final = disk.exists(paths.abort)
        """A writer has the store open, or did not close it."""
        self.has_properties: Final = disk.exists(paths.properties)
        self.index: Final = ReadOnlyIndex(
            disk,
            paths.index,
            sizes,
            source.sealed,
            point,
            closed=not self.unclosed,
            log_start=files.start,
        )
        self.reader: Final = ShardReader(
            files, self.index, source.clock, source.metrics, _repair_nothing, _repair_no_index
        )
        self._source: Final = source
        self._open_files: Final = OpenFiles(disk, source.settings.open_files_max, writable=False)
        shards = self._found_shards() if known is None else dict(self._published_shards(known))
        self.shards: Final[dict[ShardId, ReadOnlyShard]] = shards
        """All shards that are not deleted, the store's own included."""
        weakref.finalize(self, files.close)

    @property
    def is_own(self) -> bool:
        """Whether Penstock wrote this store; otherwise it is RocketMQ's."""
        return self.known is not None

    def user_shards(self) -> list[ShardId]:
        if self.known is not None:
            self.known.check()
        return sorted(shard for shard in self.shards if not is_control(shard))

    def get(self, shard: ShardId) -> ReadOnlyShard:
        log = self.shards.get(shard)
        if log is None:
            if self.known is not None:
                self.known.check(shard)
            raise UnknownShardError(shard.name)
        return log

    def end_for(self, log: ReadOnlyShard) -> int:
        """Return the end of the log, as far as a shard and the checkpoints know it."""
        last = log.read_units(log.ends.stop - 1, 1) if log.ends.stop > log.ends.first else b""
        end = 0
        if last and last != PRE_BLANK:
            end = int.from_bytes(last[:8], "big") + int.from_bytes(last[8:12], "big")
        point = 0 if self.point is None else self.point.position
        return min(max(end, point, self.durable), self.files.stop)

    def scan_for_key(
        self, log: ReadOnlyShard, key: bytes, start: int, end: int
    ) -> Iterator[StoredRecord]:
        """Yield the records of `key` between two positions of the log, newest first."""
        first, until = log.offset_at(start), log.offset_at(end)
        while until > first:
            begin = max(first, until - TIME_BLOCK)
            query = Query(begin, until, TIME_BLOCK, _SIZE_UNLIMITED, key=key)
            yield from reversed(self.reader.read_all(log, query))
            until = begin

    def _published_shards(self, known: KnownStates) -> Iterator[tuple[ShardId, ReadOnlyShard]]:
        for shard, state in known.states.items():
            if not state.dropped:
                yield shard, self._shard(shard, state.kind, state)

    def _found_shards(self) -> dict[ShardId, ReadOnlyShard]:
        """The queues of a directory that says nothing more about its shards."""
        disk, paths = self.disk, self.paths
        shards: dict[ShardId, ReadOnlyShard] = {}
        for kind in QueueKind:
            root = paths.queue_root(kind)
            for topic in disk.list(root):
                for queue in disk.list(f"{root}/{topic}"):
                    if queue.isascii() and queue.isdigit():
                        shard = ShardId(topic, int(queue))
                        shards[shard] = self._shard(shard, kind, None)
        return shards

    def _shard(self, shard: ShardId, kind: QueueKind, state: ShardState | None) -> ReadOnlyShard:
        source, sizes = self._source, self.sizes
        simple = kind is QueueKind.SIMPLE
        size = sizes.consume_queue_file_size if simple else sizes.batch_queue_file_size
        return ReadOnlyShard(
            shard,
            kind,
            UnitFiles(self._open_files, source.paths.queue_root(kind), shard, kind, size),
            TimeIndex(source.disk, source.paths.times, shard),
            source.sealed,
            state=state,
            log_start=self.files.start,
        )


class _Nothing:
    def inc(self) -> None:
        """Count nothing."""


class _Uncounted:
    """The metrics of a read-only store are not collected: their library need not be loaded."""

    damaged_reads: Final = _Nothing()


class SnapshotSource:
    """A store directory, and what outlives a snapshot of it."""

    def __init__(self, root: str, settings: SegmentSettings, disk: Disk, clock: Clock) -> None:
        self.disk: Final = disk
        self.clock: Final = clock
        self.settings: Final = settings
        self.paths: Final = StorePaths(root, settings)
        self.metrics: Final = _Uncounted()
        self.sums: Final = BlockChecksums(disk, self.paths.sums)
        self.sealed: Final = SealedFiles(disk, self.sums)
        check_is_store(disk, self.paths)

    def capture(self) -> Snapshot:
        """Look at the directory, again when files come and go under the look."""
        for _ in range(_CAPTURES_MAX - 1):
            try:
                return self._read()
            except (FileNotFoundError, CorruptionError):
                continue
        return self._read()

    def capture_damaged(self) -> tuple[Snapshot, list[StoreError]]:
        """Look at a directory that may be damaged; return what `capture` would raise, too."""
        for _ in range(_CAPTURES_MAX - 1):
            try:
                problems: list[StoreError] = []
                return self._read(problems), problems
            except FileNotFoundError:
                continue
        problems = []
        return self._read(problems), problems

    def _read(self, problems: list[StoreError] | None = None) -> Snapshot:
        disk, paths = self.disk, self.paths
        stored = stored_properties(disk, paths)
        sizes = stored.sizes
        files = FileSet(
            disk,
            paths.commit_log,
            sizes.commit_log_file_size,
            self.settings.mapped_bytes_max,
            strict=stored.strict,
        )
        copies = point = None
        for _ in range(_CAPTURES_MAX):
            first = _first_file(disk, paths)
            copies = point = None  # a writer may just have made its first
            if has_states(disk, paths):
                # The point first: what it says of the index then holds for all that is newer.
                point = read_derived(disk, paths.derived)
                copies = read_states(disk, paths, () if point is None else point.buckets)
            # States before files: bounds then never reach past the last file. But they must not
            # be older than the first file's removal: they would speak of records that are gone.
            if _first_file(disk, paths) == first:
                break
        try:
            files.load(repair=False, store=paths.root)
        except (CorruptionError, NotAStoreError) as error:
            if problems is None:
                raise
            problems.append(error)
            names = [name for name in disk.list(paths.commit_log) if is_file_name(name)]
            files.adopt_unchecked([int(name) for name in names if int(name) % files.file_size == 0])
        known = None if copies is None else copies.newest(files.start)
        return Snapshot(self, sizes, files, known, point)


def _first_file(disk: Disk, paths: StorePaths) -> str | None:
    return next((name for name in disk.list(paths.commit_log) if is_file_name(name)), None)


def _repair_nothing(_: object) -> None:
    """A read-only store cannot repair: what is wrong is found again, and raised."""


def _repair_no_index() -> None:
    """The read-only index leaves out what it does not believe, and never asks for this."""
