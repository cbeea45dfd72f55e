"""One record by offset or key, by the shortest way.

The checks are those of `ShardReader`: the record's checksums, that it is the one which the unit (or
the index entry) speaks of and the unit points back, bounds, deletions, expiry. Whatever is not as
it mostly is, damage above all, is answered with None: `ShardReader` then finds out.
"""

from __future__ import annotations

from typing import Final

from penstock.codec.select import core
from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.queue.shard import ShardLog
from penstock.errors import CorruptionError
from penstock.platform.clock import Clock
from penstock.record import QueueKind, StoredRecord

_UNIT_POSITION: Final = slice(0, 8)
_UNIT_SIZE: Final = slice(8, 12)
_ANY: Final = -1
_from_bytes: Final = int.from_bytes


class PointReader:
    def __init__(self, files: FileSet, index: KeyIndex, clock: Clock) -> None:
        self._files: Final = files
        self._file_size: Final = files.file_size
        self._index: Final = index
        self._clock: Final = clock

    def read(self, log: ShardLog, offset: int) -> StoredRecord | None:
        """Return the record at `offset`."""
        state = log.state
        if state.kind is not QueueKind.SIMPLE or offset >= log.commit or state.is_deleted(offset):
            return None
        try:
            if not log.check_units():
                return None
            unit = log.read_unit(offset)
            position = _from_bytes(unit[_UNIT_POSITION])
            base = position - position % self._file_size
            if not self._files.holds(position):
                return None
            return core.read_one(
                self._files.point_buffer(base),
                base,
                position,
                _from_bytes(unit[_UNIT_SIZE]),
                log.shard.topic,
                log.shard.partition,
                offset,
                self._clock.expiry_ms(),
                None,
                self._files.strict,
            )
        except (OSError, CorruptionError):
            return None

    def newest(self, log: ShardLog, key: bytes) -> StoredRecord | None:
        """Return the newest record of `key`."""
        state = log.state
        if state.kind is not QueueKind.SIMPLE or state.has_lost:
            return None
        topic, partition = log.shard
        try:
            if not log.check_units():
                return None
            position = self._index.newest(topic, key)
            if position < 0 or not self._files.holds(position):
                return None
            base = position - position % self._file_size
            record = core.read_one(
                self._files.point_buffer(base),
                base,
                position,
                _ANY,
                topic,
                partition,
                _ANY,
                self._clock.expiry_ms(),
                key,
                self._files.strict,
            )
            if record is None:
                return None
            offset = record.offset
            if offset >= log.commit or state.is_deleted(offset):
                return None
            if _from_bytes(log.read_unit(offset)[_UNIT_POSITION]) != position:
                return None
        except (OSError, CorruptionError):
            return None
        return record
