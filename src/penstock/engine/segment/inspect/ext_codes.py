"""Tag codes that a RocketMQ broker keeps outside the queue, in consumequeue_ext."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from penstock.codec.format import QUEUE_UNIT, Damage
from penstock.codec.select import core
from penstock.engine.segment.log.log_files import is_file_name
from penstock.engine.segment.queue.queue_ext import (
    QueueExtUnit,
    ext_position,
    is_ext_address,
    read_ext_unit,
)
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.record import ShardId

_CODE_AT: Final = QUEUE_UNIT.position_of("tag_code")


class ExtCodes:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot: Final = snapshot
        self._file: tuple[str, bytes] = ("", b"")

    def means(self, shard: ShardId, expected: bytes, actual: bytes) -> bool:
        """Say whether a queue unit stands for `expected`, its tag code being in the extension."""
        code = int.from_bytes(actual[_CODE_AT:], "big", signed=True)
        if expected[:_CODE_AT] != actual[:_CODE_AT] or not is_ext_address(code):
            return False
        tag_code = int.from_bytes(expected[_CODE_AT:], "big", signed=True)
        unit = self._unit_at(shard, ext_position(code))
        if unit is None or unit.tag_code != tag_code:
            return False
        time_ms = self._store_time(int.from_bytes(actual[:8], "big"))
        return time_ms is None or unit.store_timestamp_ms == time_ms

    def _store_time(self, position: int) -> int | None:
        files = self._snapshot.files
        base = files.base_of(position)
        if base not in files.bases:
            return None
        raw = core.decode_raw(files.buffer(base), base, position, False)
        return None if isinstance(raw, Damage) else raw.store_timestamp_ms

    def _unit_at(self, shard: ShardId, position: int) -> QueueExtUnit | None:
        root = self._snapshot.paths.root
        directory = f"{root}/consumequeue_ext/{shard.topic}/{shard.partition}"
        names = [name for name in self._snapshot.disk.list(directory) if is_file_name(name)]
        below = [name for name in names if int(name) <= position]
        if not below:
            return None
        unit = read_ext_unit(self._load(f"{directory}/{below[-1]}"), int(below[-1]), position)
        return None if isinstance(unit, Damage) else unit

    def _load(self, path: str) -> bytes:
        if self._file[0] != path:
            with closing(self._snapshot.disk.open(path, writable=False)) as file:
                self._file = (path, file.read_at(0, file.size()))
        return self._file[1]
