"""A log, a queue and an index in memory, around one appender of either backend."""

from __future__ import annotations

from collections.abc import Callable

from penstock.codec.append_interface import Replayed
from penstock.codec.format import (
    KIND_SIMPLE,
    QUEUE_UNIT,
    Damage,
    RawRecord,
    index_file_size,
)
from penstock.codec.interface import ReadPage
from penstock.codec.select import Core
from penstock.record import Record, StoredRecord

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
HOST_IPV6 = bytes(range(16)) + HOST[4:]
NOW = 1_700_000_000_000
LIMIT = 1 << 40


class Workbench:
    """Everything that an append needs, and what it leaves behind."""

    def __init__(
        self,
        core: Core,
        *,
        size: int = 1 << 16,
        base: int = 0,
        topic: str = "orders",
        kind: int = KIND_SIMPLE,
        first_offset: int = 0,
        hosts: tuple[bytes, bytes] = (HOST, HOST),
        indexes: tuple[tuple[int, int], ...] = ((16, 1000),),
    ) -> None:
        self.core = core
        self.topic = topic
        self.kind = kind
        self.base = base
        self.log = bytearray(size)
        self.first_offset = first_offset
        self.appender = core.Appender(hosts[0], hosts[1], 1 << 20)
        self.appender.attach_log(self.log, base, base)
        first_unit = first_offset if kind == KIND_SIMPLE else 0
        self.handle = self.appender.add_queue(topic, 0, kind, first_offset, first_unit)
        self.indexes = attach_indexes(self.appender.attach_index, indexes)
        self.sizes = indexes

    @property
    def end(self) -> int:
        return self.appender.end

    @property
    def units(self) -> bytes:
        return self.appender.peek_units(self.handle)[1]

    def append(self, *records: Record, now_ms: int = NOW, epoch: int = 0) -> int:
        if len(records) == 1:
            return self.appender.append(self.handle, records[0], now_ms, epoch)
        return self.appender.append_many(self.handle, records, now_ms, epoch, None)

    def read(
        self,
        start: int | None = None,
        *,
        max_records: int = 1 << 30,
        max_size: int = LIMIT,
        deleted: tuple[tuple[int, int], ...] = (),
        now_ms: int = NOW,
        tag: str | None = None,
        key: bytes | None = None,
        units: bytes | None = None,
    ) -> ReadPage:
        """Read from the units held, or from `units`."""
        is_simple = self.kind == KIND_SIMPLE
        held = self.units if units is None else units
        offset = self.first_offset if start is None else start
        if is_simple and units is None:
            held = held[(offset - self.first_offset) * QUEUE_UNIT.size :]
        read = self.core.read_records if is_simple else self.core.read_batches
        return read(
            bytes(self.log),
            self.base,
            held,
            offset,
            self.topic,
            0,
            max_records,
            max_size,
            deleted,
            now_ms,
            tag,
            key,
        )

    def records(self) -> list[StoredRecord]:
        """Return everything that can be read, all of it undamaged."""
        records, next_offset, _, damage = self.read()
        assert damage is None
        assert next_offset == self.appender.next_offset(self.handle)
        return records

    def raw(self, position: int) -> RawRecord:
        found = self.core.decode_raw(self.log, self.base, position, True)
        assert isinstance(found, RawRecord), found
        return found

    def raws(self) -> list[RawRecord]:
        """Return every record of the log."""
        found: list[RawRecord] = []
        position = self.base
        while position < self.end:
            found.append(self.raw(position))
            position += found[-1].size
        return found

    def replayed(self, *, log: bytes | None = None, index: bool = True) -> Rebuilt:
        """Return what a fresh appender derives from the log."""
        return Rebuilt(self.core, bytes(self.log) if log is None else log, self, index=index)


class Rebuilt:
    """Queues and indexes derived from a log by a fresh appender."""

    def __init__(self, core: Core, log: bytes, like: Workbench, *, index: bool) -> None:
        self.appender = core.Appender(HOST, HOST, 1 << 20)
        self.indexes = attach_indexes(self.appender.attach_index, like.sizes)
        self.outcome: Replayed = self.appender.replay(
            log, like.base, like.base, like.base + len(log), index, "%ctl"
        )

    @property
    def damage(self) -> Damage | None:
        return self.outcome[3]

    def handle_of(self, topic: str, queue_id: int = 0) -> int:
        (handle,) = (
            each[0] for each in self.appender.queues() if (each[1], each[2]) == (topic, queue_id)
        )
        return handle

    def units_of(self, topic: str, queue_id: int = 0) -> bytes:
        return self.appender.peek_units(self.handle_of(topic, queue_id))[1]


def attach_indexes(
    attach: Callable[[bytearray, int, int], None], sizes: tuple[tuple[int, int], ...]
) -> list[bytearray]:
    indexes = [bytearray(index_file_size(slots, entries)) for slots, entries in sizes]
    for index, (slots, entries) in zip(indexes, sizes, strict=True):
        attach(index, slots, entries)
    return indexes
