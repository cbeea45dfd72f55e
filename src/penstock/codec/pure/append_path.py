"""The append path of records that need nothing but the appender: one call from shard to offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.codec import append_interface as interface
from penstock.codec.codes import (
    BUSY,
    NOT_ADMITTED,
    TOO_LARGE,
    UNKNOWN_SHARD,
)
from penstock.codec.pure.appender import Appender
from penstock.codec.validation import check_record
from penstock.record import Record, ShardId

_SYSTEM_CLOCK: Final = -1
_BYTES_PER_CHARACTER: Final = 4
_TRY_SIZE_MAX: Final = 64 << 10


class AppendPath:
    """See `append_interface.AppendPath`."""

    def __init__(
        self,
        appender: interface.Appender,
        lock: interface.WriteLock,
        group_commit: interface.GroupCommit,
        sync: Callable[[], int],
        handles: Mapping[ShardId, int],
        now: Callable[[], int] | None,
        patience_s: float,
        otherwise: Callable[[ShardId, Record, int | None, int], int],
    ) -> None:
        assert isinstance(appender, Appender), "all parts are of one backend"
        self._appender = appender
        self._lock = lock
        self._group_commit = group_commit
        self._sync = sync
        self._handles = handles
        self._now = now
        self._patience_s = patience_s
        self._otherwise = otherwise

    def append(self, shard: ShardId, record: Record, size_max: int | None = None) -> int:
        append = self._appender.append
        offset = self._append(
            shard,
            (record,),
            size_max,
            lambda handle, now_ms, epoch: append(handle, record, now_ms, epoch),
        )
        return offset if offset >= 0 else self._otherwise(shard, record, size_max, offset)

    def try_append(self, shard: ShardId, record: Record, size_max: int) -> int:
        append = self._appender.append
        return self._append(
            shard,
            (record,),
            min(size_max, _TRY_SIZE_MAX),
            lambda handle, now_ms, epoch: append(handle, record, now_ms, epoch),
            without_waiting=True,
        )

    def append_many(
        self, shard: ShardId, records: Sequence[Record], size_max: int | None = None
    ) -> int:
        append = self._appender.append_many
        return self._append(
            shard,
            records,
            size_max,
            lambda handle, now_ms, epoch: append(handle, records, now_ms, epoch, None),
        )

    def _append(
        self,
        shard: ShardId,
        records: Sequence[Record],
        size_max: int | None,
        append: Callable[[int, int, int], int],
        *,
        without_waiting: bool = False,
    ) -> int:
        handle = self._handles.get(shard)
        if handle is None:
            return UNKNOWN_SHARD
        if size_max is not None and any(check_record(record) > size_max for record in records):
            return TOO_LARGE
        now_ms = _SYSTEM_CLOCK if self._now is None else self._now()
        if not self._lock.acquire(0.0 if without_waiting else self._patience_s):
            return BUSY
        try:
            admission = self._appender.admission(handle)
            if (
                not admission.is_open
                or not self._appender.accepting
                or (without_waiting and admission.is_sync)
            ):
                return NOT_ADMITTED
            offset = append(handle, now_ms, admission.epoch)
            position = self._appender.end
        finally:
            self._lock.release()
        if admission.is_sync and offset >= 0:
            self._group_commit.wait(position, self._sync)
        return offset


def all_fit(records: Sequence[Record], size_max: int) -> bool:
    """Return whether each record of a list surely has at most `size_max` bytes. False may only mean
    that the caller has to check more closely: headers, or what is not a list of records."""
    if type(records) is not list:
        return False
    for record in records:
        if type(record) is not Record or record.headers != ():
            return False
        size = 0
        parts: tuple[object, object] = (record.value, record.key)
        for part in parts:
            if isinstance(part, bytes):
                size += len(part)
            elif part is not None:
                return False
        tags: object = record.tags
        if not isinstance(tags, tuple) or not all(isinstance(tag, str) for tag in tags):
            return False
        if size + _BYTES_PER_CHARACTER * sum(map(len, tags)) > size_max:
            return False
    return bool(records)
