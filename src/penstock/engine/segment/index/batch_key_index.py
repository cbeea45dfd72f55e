"""Finds keys inside batches: an index of our own, filled up to the commit offset.

    penstock/index/         RocketMQ's index files: hash of `topic#key` -> position of the batch
    penstock/batch-keys/    how far the dispatcher has come in each shard, and the index's mark

A batch is opaque to the append; its keys are taken out by a dispatcher, which may lag. So a look-up
has two halves: what the dispatcher has not reached is read, the rest is found by the index. The
index is put on the device before the dispatcher's positions: after a crash it holds at least what
they say, and entries beyond are found twice, never missed. When it does not pass its checksums, it
is dropped and filled again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from penstock.codec.format import index_strings
from penstock.codec.index_writer import IndexFile, IndexFiles
from penstock.codec.select import core
from penstock.engine.segment.dispatch.changed_shards import ChangedShards
from penstock.engine.segment.dispatch.pipeline import DispatchPipeline
from penstock.engine.segment.index.block_checksums import BlockChecksums
from penstock.engine.segment.index.index_file import IndexMark
from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.recovery.checksummed_file import Kind, frame, read_whole, unframe
from penstock.errors import CorruptionError, NotSupportedError
from penstock.platform.log import get_logger
from penstock.record import QueueKind, ShardId

_log: Final = get_logger(__name__)
BATCH_KEYS: Final = "batch-keys"
MARK: Final = Kind(b"PSTKBKEY", 1)

_ENTRY_SIZE: Final = 20
_POSITION: Final = slice(4, 12)
_RECORDS_MAX: Final = 32_768
_SIZE_MAX: Final = 4 << 20

ReadKeys = Callable[[ShardId, int, int, int], tuple[bytes | None, int]]
"""(shard, offset, records at most, bytes at most): keys of committed messages from `offset` on, as
entries of an index, and the offset after them."""
Bounds = Callable[[], Iterator[tuple[ShardId, int, int]]]


class _Sink:
    """The attached index files, as `KeyIndex` hands them to an appender."""

    def __init__(self, position_max: int) -> None:
        self.files: Final = IndexFiles()
        self.position_max = position_max
        """No entry speaks of a record after this. The last one may lie far before it, because
        one shard is indexed after the other."""

    def attach_index(self, index: memoryview, slots: int, entries_max: int) -> None:
        self.files.attach(IndexFile(index, slots, entries_max))

    def release_index(self) -> None:
        self.files.release()

    @property
    def index_full(self) -> int:
        return self.files.full

    def put(self, entries: bytes) -> int:
        """Put entries into the file that is being filled; return how many it had room for."""
        file = self.files.next_file()
        added = core.index_fill(file.view, file.slots, file.entries_max, entries)
        last = entries[_ENTRY_SIZE * (added - 1) : _ENTRY_SIZE * added]
        self.position_max = max(self.position_max, int.from_bytes(last[_POSITION]))
        file.next_entry += added
        self.files.room -= added
        return added


# Made here, for msgspec must not look at a type for the first time in two threads together.
_marks: Final = msgspec.msgpack.Decoder(IndexMark)


class BatchKeys:
    """The key index of all batch shards of a store."""

    name: Final = BATCH_KEYS

    def __init__(self, parts: StoreParts, read_keys: ReadKeys, bounds: Bounds) -> None:
        disk, paths = parts.disk, parts.paths
        self._disk: Final = disk
        self._directory: Final = f"{paths.own}/{BATCH_KEYS}"
        self._clock: Final = parts.clock
        self._read_keys: Final = read_keys
        # What is in the index is already below the end of the log.
        sink = _Sink(parts.log.end)
        self._sink: Final = sink
        disk.make_directory(paths.batch_index)
        sums = BlockChecksums(disk, f"{paths.sums}/{BATCH_KEYS}")
        self._log: Final = parts.log
        self._index: Final = KeyIndex(
            disk, paths.batch_index, parts.sizes, sums, lambda: sink.position_max
        )
        if not self._restore(parts.log.files.start):
            _log.warning("batch_keys_rebuilt", path=paths.batch_index)
            self._index.clear()
            disk.remove_tree(self._directory)
        self._pipeline: Final = DispatchPipeline(
            disk,
            self._directory,
            read=None,
            bounds=bounds,
            find_changed=lambda: (
                ChangedShards(parts.table, parts.log.appender, QueueKind.BATCH).changed
            ),
            threads=parts.settings.background,
            clock=parts.clock,
            metrics=parts.metrics,
        )
        self._pipeline.register(self)

    def _restore(self, log_start: int) -> bool:
        data = read_whole(self._disk, f"{self._directory}/mark")
        if data is None:
            self._index.load()
            return not self._index.names
        try:
            _, body = unframe(MARK, f"{self._directory}/mark", data)
            mark = _marks.decode(body)
        except (CorruptionError, NotSupportedError, msgspec.MsgspecError):
            self._index.load()
            return False
        self._index.load()
        return self._index.restore(mark, self._sink, log_start)

    # Filling

    def advance(self, shard: ShardId, offset: int, commit: int) -> int:
        """Index the keys of committed messages from `offset` on; return where to go on."""
        entries, after = self._read_keys(shard, offset, _RECORDS_MAX, _SIZE_MAX)
        start = 0
        while entries is not None and start < len(entries):
            if self._sink.files.room == 0:
                self._index.add_file(self._sink, self._clock.now_ms())
                self._index.seal_full(self._sink)
            start += _ENTRY_SIZE * self._sink.put(entries[start:])
        return min(max(after, offset + 1), commit)

    def flush(self) -> None:
        """Put the index on the device; the dispatcher's positions are saved after this."""
        self.remove_before(self._log.files.start)
        self._index.sync()
        mark = self._index.finish_mark(self._index.begin_mark())
        body = msgspec.msgpack.encode(mark)
        self._disk.replace(f"{self._directory}/mark", frame(MARK, 1, body))
        self._index.unmap_idle()

    def run_once(self) -> None:
        self._pipeline.run_once()

    def cut(self, shard: ShardId, offset: int) -> None:
        self._pipeline.cut(shard, offset)

    # Looking up

    def reached(self, shard: ShardId) -> int:
        """The offset below which every key of the shard is in the index."""
        return self._pipeline.position(BATCH_KEYS, shard)

    def lookup(self, shard: ShardId, key: bytes) -> list[int]:
        """Return positions of batches that may hold `key`, newest first."""
        text = f"{shard.topic}#{index_strings(key)[0]}"
        return sorted(set(self._index.lookup_all(text)), reverse=True)

    def remove_before(self, position: int) -> None:
        """Drop index files that only speak of log files which are gone."""
        self._index.remove_before(position)

    def close(self) -> None:
        self._pipeline.close()
        self._index.detach(self._sink)
        self._index.close()
