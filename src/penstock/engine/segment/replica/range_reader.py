"""Reads ranges of whole records as the log holds them, for other replicas.

Unlike the readers of clients it goes past the commit offset, and gives deleted records, too: a
replica must have the same records at the same offsets, whatever is done to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.codec.format import (
    BATCH_UNIT,
    GAP_MAX,
    KIND_BATCH,
    KIND_SIMPLE,
    PRE_BLANK,
    Damage,
)
from penstock.codec.select import core
from penstock.engine.segment.log.commit_log import CommitLog
from penstock.engine.segment.queue.lookup import lost_record, without_gap
from penstock.engine.segment.queue.shard import ShardLog
from penstock.errors import CorruptionError
from penstock.record import QueueKind

_UNITS_PER_STEP: Final = 1024
_BASE_OFFSET: Final = 4
"""The field of a batch unit."""
_MORE: Final = 8


class RangeReader:
    """`repair` rebuilds the queue of a shard from the log."""

    def __init__(self, log: CommitLog, repair: Callable[[ShardLog], None]) -> None:
        self._log: Final = log
        self._repair: Final = repair

    def check_queue(self, shard: ShardLog) -> None:
        """Rebuild the queue of a shard if one of its files is damaged: the log has its records."""
        try:
            shard.rows_between(shard.first_unit, shard.next_unit)
        except (CorruptionError, FileNotFoundError):
            self._repair(shard)

    def hole_end(self, shard: ShardLog, offset: int) -> int | None:
        """Return where the hole ends that `offset` is in; None when a record is due there."""
        end = shard.state.hole_end(offset)
        if end is None:
            end = self._deleted_and_lost(shard, offset)
        return None if end is None else min(end, shard.next_offset, offset + GAP_MAX)

    def read(self, shard: ShardLog, offset: int, max_size: int) -> tuple[bytes, int]:
        """Return whole records and groups from `offset` on, at least one, and the offset after
        them. Raise `CorruptionError` when the first cannot be read."""
        # A group fills a file at most, and the other log must have room for it.
        max_size = min(max_size, self._log.files.file_size // 2)
        try:
            return self._copy(shard, offset, max_size)
        except (CorruptionError, FileNotFoundError) as error:
            if offset in shard.repaired:
                raise _as_corruption(self._log, shard, offset, error) from error
        self._repair(shard)
        shard.repaired |= {offset}
        try:
            copied = self._copy(shard, offset, max_size)
        except FileNotFoundError as error:
            raise _as_corruption(self._log, shard, offset, error) from error
        shard.repaired -= {offset}
        return copied

    @staticmethod
    def _deleted_and_lost(shard: ShardLog, offset: int) -> int | None:
        """Return where a range of deleted records ends whose first one is lost: nothing is missing
        when a hole takes its place."""
        if not shard.state.has_lost or not shard.state.is_deleted(offset):
            return None
        try:
            rows = shard.rows(shard.unit_of(offset), 1)
        except (CorruptionError, FileNotFoundError):
            return None  # of the queue: `read` rebuilds it
        is_there = bool(rows) and rows[0].first_offset <= offset and not rows[0].is_blank
        return None if is_there else offset + 1

    def _copy(self, shard: ShardLog, offset: int, max_size: int) -> tuple[bytes, int]:
        count = _UNITS_PER_STEP
        if not shard.check_units():
            raise lost_record(self._log.files, shard, offset)
        while True:
            units = self._units(shard, offset, count)
            data, after, damage = self._copy_units(shard, offset, units, max_size)
            if data:
                return data, after
            if damage is not None or len(units) < count * shard.units.unit_size:
                # Also a group that is not whole: its rest is damaged, or in a hole.
                raise self._corruption(shard, offset, damage)
            count *= _MORE  # the group has more records

    def _units(self, shard: ShardLog, offset: int, count: int) -> bytes:
        """Return the units from `offset` on, also where some are in files and some in memory."""
        unit = shard.unit_of(offset)
        units = shard.read_units(unit, count)
        size = shard.units.unit_size
        while len(units) < count * size:
            more = shard.read_units(unit + len(units) // size, count - len(units) // size)
            if not more:
                break
            units += more
        units = _up_to_hole(shard, offset, units)
        if not units or units.startswith(PRE_BLANK):
            raise lost_record(self._log.files, shard, offset)
        return units

    def _copy_units(
        self, shard: ShardLog, offset: int, units: bytes, max_size: int
    ) -> tuple[bytes, int, Damage | None]:
        files = self._log.files
        position = int.from_bytes(units[:8], "big", signed=True)
        if not files.holds(position):
            reason = "this file of the log is missing"
            return b"", offset, Damage(max(0, position), reason)
        base = files.base_of(position)
        return core.copy_records(
            files.buffer(base),
            base,
            units,
            KIND_SIMPLE if shard.kind is QueueKind.SIMPLE else KIND_BATCH,
            offset,
            shard.shard.topic,
            shard.shard.partition,
            [],
            max_size,
            files.strict,
            True,
        )

    def _corruption(self, shard: ShardLog, offset: int, damage: Damage | None) -> CorruptionError:
        if damage is None:
            return lost_record(self._log.files, shard, offset)
        files = self._log.files
        inside = damage.position - files.base_of(damage.position)
        return CorruptionError(
            files.path_of(damage.position), position=inside, reason=damage.reason
        )


def _up_to_hole(shard: ShardLog, offset: int, units: bytes) -> bytes:
    """Return the units of consecutive offsets before the next hole; none when the first is not
    that of `offset`."""
    hole = shard.state.next_hole(offset)
    if shard.kind is QueueKind.SIMPLE:
        return units if hole is None else units[: (hole - offset) * shard.units.unit_size]
    units = without_gap(units)
    for number, unit in enumerate(BATCH_UNIT.iter_unpack(units)):
        if (number == 0 and unit[_BASE_OFFSET] != offset) or unit[_BASE_OFFSET] == hole:
            return units[: number * BATCH_UNIT.size]
    return units


def _as_corruption(
    log: CommitLog, shard: ShardLog, offset: int, error: CorruptionError | FileNotFoundError
) -> CorruptionError:
    return error if isinstance(error, CorruptionError) else lost_record(log.files, shard, offset)
