"""All shards of an open store, by name and by the appender's handle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.codec.format import BATCH_UNIT, BLOCK_MAX_UNKNOWN, TIME_BLOCK
from penstock.engine.segment.control.control_records import is_control
from penstock.engine.segment.index.sealed_files import SealedFiles
from penstock.engine.segment.log.commit_log import CommitLog
from penstock.engine.segment.paths import StorePaths, sums_root
from penstock.engine.segment.queue.queue_files import OpenFiles, UnitFiles
from penstock.engine.segment.queue.shard import KIND_NUMBER, ShardLog
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.time_index import TimeIndex
from penstock.engine.segment.settings import FileSizes
from penstock.errors import StoreError, UnknownShardError
from penstock.record import QueueKind, ShardId

_KINDS: Final = {number: kind for kind, number in KIND_NUMBER.items()}


class ShardTable:
    def __init__(
        self,
        log: CommitLog,
        paths: StorePaths,
        sizes: FileSizes,
        open_files: OpenFiles,
        sealed: SealedFiles,
    ) -> None:
        self._log: Final = log
        self._paths: Final = paths
        self._sizes: Final = sizes
        self._open_files: Final = open_files
        self._sealed: Final = sealed
        self._checksums_roots: Final = {
            kind: f"{paths.sums}/{sums_root(kind)}" for kind in QueueKind
        }
        self._by_shard: dict[ShardId, ShardLog] = {}
        self._by_handle: dict[int, ShardLog] = {}
        self.handles: Final[dict[ShardId, int]] = {}
        """Where an append path looks shards up."""
        self._closed: StoreError | None = None

    def __iter__(self) -> Iterator[ShardLog]:
        return iter(list(self._by_shard.values()))

    def __len__(self) -> int:
        return len(self._by_shard)

    def get(self, shard: ShardId) -> ShardLog:
        """Return an existing shard; deleted ones do not exist."""
        log = self._by_shard.get(shard)
        if log is None or log.state.dropped:
            raise self._closed or UnknownShardError(shard.name)
        return log

    def close(self, error: StoreError) -> None:
        """Answer every later request with `error`."""
        self._closed = error
        self._by_shard.clear()
        self._by_handle.clear()
        self.handles.clear()

    def find(self, shard: ShardId) -> ShardLog | None:
        """Return the shard whether deleted or not."""
        return self._by_shard.get(shard)

    def by_handle(self, handle: int) -> ShardLog:
        return self._by_handle[handle]

    def find_handle(self, handle: int) -> ShardLog | None:
        return self._by_handle.get(handle)

    def has_user_shard(self, shard: ShardId) -> bool:
        log = self._by_shard.get(shard)
        return log is not None and not log.state.dropped

    def user_shards(self) -> list[ShardId]:
        return sorted(
            log.shard for log in self if not log.state.dropped and not is_control(log.shard)
        )

    def user_kinds(self) -> list[tuple[ShardId, QueueKind]]:
        return [(shard, self._by_shard[shard].kind) for shard in self.user_shards()]

    def user_bounds(self) -> Iterator[tuple[ShardId, int, int]]:
        """Yield every shard with its earliest and its commit offset."""
        for log in self:
            if not log.state.dropped and not is_control(log.shard):
                yield log.shard, log.earliest, log.commit

    def add(self, shard: ShardId, state: ShardState, next_offset: int, next_unit: int) -> ShardLog:
        """Add a shard and its queue, which goes on at `next_offset`."""
        if self._closed is not None:
            raise self._closed
        return self._keep(shard, self._add_queue(shard, state.kind, next_offset, next_unit), state)

    def _add_queue(self, shard: ShardId, kind: QueueKind, next_offset: int, next_unit: int) -> int:
        appender = self._log.appender
        handle = appender.add_queue(
            shard.topic, shard.partition, KIND_NUMBER[kind], next_offset, next_unit
        )
        if next_offset % TIME_BLOCK:
            # The appender has not seen the records of this block that are there already.
            appender.set_block_max(handle, BLOCK_MAX_UNKNOWN)
        return handle

    def adopt(self, states: dict[ShardId, ShardState]) -> None:
        """Add the shards that a replay of the log found by itself."""
        for handle, topic, partition, kind, _, _ in self._log.appender.queues():
            if handle in self._by_handle:
                continue
            shard = ShardId(topic, partition)
            state = states.get(shard)
            if state is None:
                # Whatever came before is gone with files that retention removed.
                first = self._first_offset(handle, _KINDS[kind])
                state = states[shard] = ShardState(_KINDS[kind], first)
            # A control record may have come first, which does not tell the kind.
            state.kind = _KINDS[kind]
            self._keep(shard, handle, state)

    def _first_offset(self, handle: int, kind: QueueKind) -> int:
        unit, data = self._log.appender.peek_units(handle)
        if kind is QueueKind.SIMPLE or not data:
            return unit
        return int(BATCH_UNIT.unpack_from(data)[4])

    def _keep(self, shard: ShardId, handle: int, state: ShardState) -> ShardLog:
        log = ShardLog(
            shard,
            handle,
            self._log,
            state,
            self.unit_files(shard, state.kind),
            TimeIndex(self._open_files.disk, self._paths.times, shard),
            self._sealed,
        )
        self._by_shard[shard] = log
        self._by_handle[handle] = log
        self.handles[shard] = handle
        return log

    def remove(self, log: ShardLog) -> None:
        """Forget a shard that was deleted. The caller holds the log's lock."""
        self._log.appender.remove_queue(log.handle)
        del self._by_shard[log.shard], self._by_handle[log.handle], self.handles[log.shard]

    def restart(self, log: ShardLog, next_offset: int, next_unit: int) -> None:
        """Let a shard's queue go on further ahead than the appender knows."""
        self._log.appender.remove_queue(log.handle)
        del self._by_handle[log.handle]
        log.handle = self._add_queue(log.shard, log.kind, next_offset, next_unit)
        self._by_handle[log.handle] = log
        self.handles[log.shard] = log.handle
        log.update_admission()

    def unit_files(self, shard: ShardId, kind: QueueKind) -> UnitFiles:
        simple = kind is QueueKind.SIMPLE
        size = self._sizes.consume_queue_file_size if simple else self._sizes.batch_queue_file_size
        return UnitFiles(
            self._open_files,
            self._paths.queue_root(kind),
            shard,
            kind,
            size,
            self._checksums_roots[kind],
        )

    def drain_dirty(self, mark: Callable[[ShardLog], object]) -> None:
        """Move all units from memory to their files. Each shard that has any is marked before: one
        that is not known to have moved units would be taken for unchanged."""
        for handle in self._log.appender.dirty_queues():
            log = self._by_handle.get(handle)
            if log is not None:
                mark(log)
                log.drain()
