"""The appender: records into the log file that is being written, and all that derives from them.

Invariants:

  * nothing is changed by an append that raises or finds no room
  * `end` moves only when a record, or a whole group, is in the buffer
  * store timestamps never decrease in the order of appends

Every public method takes the lock, as the native one does: a reader may ask for units while
another thread appends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from penstock.codec.append_interface import Replayed
from penstock.codec.codes import NO_INDEX_ROOM, NO_LOG_ROOM
from penstock.codec.format import (
    BATCH_COUNT_MAX,
    CONTROL_SUFFIX,
    FLAG_INNER_BATCH,
    GAP_MAX,
    KAFKA_BATCH,
    KIND_BATCH,
    KIND_SIMPLE,
    tag_code,
)
from penstock.codec.index_writer import IndexFile, IndexFiles
from penstock.codec.pure.arrow_rows import records_from_columns
from penstock.codec.pure.copying import Copy, moved, read_copies
from penstock.codec.pure.encoding import (
    Draft,
    check_int64,
    draft_record,
    group_property,
    inner_properties,
    producer_property,
    tag_header_property,
    transaction_property,
)
from penstock.codec.pure.log_buffer import LogBuffer
from penstock.codec.pure.queue_table import Admission, Queue, QueueTable
from penstock.codec.pure.read.codec import view_of
from penstock.codec.pure.read.dispatching import entry_hash, tag_entry_hash
from penstock.codec.pure.record_writer import RecordWriter
from penstock.codec.pure.replay import Replay
from penstock.errors import BadRequestError, RecordTooLargeError
from penstock.record import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.codec.append_interface import Column

_INT32_MAX: Final = 0x7FFF_FFFF
_GROUP_SIZE: Final = len(group_property(0))


class Appender:
    """See `append_interface.Appender` for what each method promises."""

    def __init__(self, store_host: bytes, born_host: bytes, max_record_size: int) -> None:
        self._lock = threading.RLock()
        self._writer = RecordWriter(store_host, born_host)
        self._record_size_max = max_record_size
        self._log: LogBuffer | None = None
        self._end = 0
        self._queues = QueueTable()
        self._index = IndexFiles()
        self._last_store_timestamp_ms = 0
        self.accepting = True
        self.durable = 0

    # ---------------------------------------------------------------------------- the log

    def attach_log(self, log: Buffer, base: int, start: int) -> None:
        with self._lock:
            self._log = LogBuffer(log, base, start)
            self._end = start

    def attach_device(self, descriptor: int) -> None:
        """Unused: here everything is synced through `Disk`."""

    def finish_log(self) -> None:
        with self._lock:
            if self._log is None:
                raise BadRequestError("no log is attached")
            self._log.finish()
            self._end = self._log.end

    def detach_log(self) -> None:
        with self._lock:
            self._log = None

    @property
    def end(self) -> int:
        return self._end

    @property
    def last_store_timestamp_ms(self) -> int:
        return self._last_store_timestamp_ms

    @last_store_timestamp_ms.setter
    def last_store_timestamp_ms(self, value: int) -> None:
        self._last_store_timestamp_ms = value

    # -------------------------------------------------------------------------- the queues

    def add_queue(
        self, topic: str, queue_id: int, kind: int, next_offset: int, next_unit: int
    ) -> int:
        with self._lock:
            return self._queues.add(topic, queue_id, kind, next_offset, next_unit).handle

    def remove_queue(self, handle: int) -> None:
        with self._lock:
            self._queues.remove(handle)

    def queues(self) -> list[tuple[int, str, int, int, int, int]]:
        with self._lock:
            return [
                (q.handle, q.topic, q.queue_id, q.kind, q.next_offset, q.next_unit)
                for q in self._queues.all()
            ]

    def next_offsets(self) -> bytes:
        with self._lock:
            return self._queues.table_of(lambda queue: queue.next_offset)

    def shown_offsets(self) -> bytes:
        with self._lock:
            return self._queues.table_of(lambda queue: queue.shown_offset(self.durable))

    def next_offset(self, handle: int) -> int:
        with self._lock:
            return self._queues.get(handle).next_offset

    def shown_offset(self, handle: int) -> int:
        with self._lock:
            return self._queues.get(handle).shown_offset(self.durable)

    def set_admission(
        self, handle: int, is_open: bool, is_sync: bool, epoch: int, is_following: bool = False
    ) -> None:
        check_int64("epoch", epoch)
        with self._lock:
            admission = Admission(is_open, is_sync, epoch, is_following)
            self._queues.get(handle).admission = admission

    def admission(self, handle: int) -> Admission:
        """For `AppendPath`; the native one looks inside."""
        with self._lock:
            return self._queues.get(handle).admission

    def next_unit(self, handle: int) -> int:
        with self._lock:
            return self._queues.get(handle).next_unit

    def dirty_queues(self) -> list[int]:
        with self._lock:
            return [queue.handle for queue in self._queues.all() if queue.units]

    def peek_units(self, handle: int) -> tuple[int, bytes]:
        with self._lock:
            queue = self._queues.get(handle)
            return queue.first_unit, bytes(queue.units)

    def held_units(self, handle: int) -> tuple[int, int]:
        with self._lock:
            queue = self._queues.get(handle)
            return queue.first_unit, queue.next_unit - queue.first_unit

    def drop_units(self, handle: int, until_unit: int) -> None:
        with self._lock:
            self._queues.get(handle).drop(until_unit)

    def read_units(self, handle: int, unit: int, count: int) -> bytes:
        with self._lock:
            return self._queues.get(handle).held(unit, count)

    def truncate_queue(self, handle: int, next_offset: int, next_unit: int) -> None:
        with self._lock:
            self._queues.get(handle).cut(next_offset, next_unit)

    def restart_queue(self, handle: int, next_offset: int, next_unit: int) -> None:
        if next_offset < 0 or next_unit < 0:
            raise BadRequestError("a queue starts at offset and unit 0 or later")
        with self._lock:
            self._queues.get(handle).restart(next_offset, next_unit)

    def skip_offsets(self, handle: int, until: int) -> None:
        with self._lock:
            queue = self._queues.get(handle)
            if not 0 <= until - queue.next_offset <= GAP_MAX:
                raise BadRequestError(
                    f"shard {queue.shard!r} ends at offset {queue.next_offset}, it cannot go on "
                    f"at {until}"
                )
            queue.skip_to(until)

    def drain_times(self, handle: int) -> list[tuple[int, int]]:
        with self._lock:
            queue = self._queues.get(handle)
            times, queue.times = queue.times, []
            return times

    def block_max(self, handle: int) -> int:
        with self._lock:
            return self._queues.get(handle).block_max

    def set_block_max(self, handle: int, timestamp_ms: int) -> None:
        with self._lock:
            self._queues.get(handle).block_max = timestamp_ms

    # ----------------------------------------------------------------------- the key index

    def attach_index(self, index: Buffer, slots: int, entries_max: int) -> None:
        with self._lock:
            self._index.attach(IndexFile(index, slots, entries_max))

    def release_index(self) -> None:
        with self._lock:
            self._index.release()

    def set_index_end(self, position: int, count: int) -> None:
        with self._lock:
            self._index.last = (position, count)

    @property
    def index_attached(self) -> int:
        with self._lock:
            return self._index.attached

    @property
    def index_full(self) -> int:
        with self._lock:
            return self._index.full

    @property
    def index_room(self) -> int:
        with self._lock:
            return self._index.room

    # ---------------------------------------------------------------------------- appending

    def append(self, handle: int, record: Record, now_ms: int, epoch: int) -> int:
        check_int64("epoch", epoch)
        with self._lock:
            queue = self._queues.get(handle)
            draft = draft_record(record, self._more(queue, 0))
            return self._append_drafts(queue, [draft], 1, now_ms, epoch, 0)

    def append_many(
        self,
        handle: int,
        records: Sequence[Record],
        now_ms: int,
        epoch: int,
        producer: str | None,
        transaction: str | None = None,
    ) -> int:
        check_int64("epoch", epoch)
        with self._lock:
            queue = self._queues.get(handle)
            drafts = self._draft_all(queue, records, producer, transaction)
            if len(drafts) > 1:
                total = sum(self._writer.size_of(queue, draft) for draft in drafts)
                first = drafts[0].properties[:-_GROUP_SIZE] + group_property(total)
                drafts[0] = drafts[0]._replace(properties=first)
            return self._append_drafts(queue, drafts, 1, now_ms, epoch, 0)

    def append_columns(
        self,
        handle: int,
        count: int,
        values: Column,
        keys: Column | None,
        tags: Column | None,
        timestamps: Buffer | None,
        now_ms: int,
        epoch: int,
        producer: str | None,
    ) -> int:
        records = records_from_columns(count, values, keys, tags, timestamps)
        return self.append_many(handle, records, now_ms, epoch, producer)

    def append_batch(
        self,
        handle: int,
        body: Buffer,
        count: int,
        now_ms: int,
        epoch: int,
        born_ms: int,
        producer: str | None,
        kafka: bool,
        tag_header: str | None = None,
    ) -> int:
        check_int64("epoch", epoch)
        check_int64("born_ms", born_ms)
        with self._lock:
            queue = self._queues.get(handle)
            if queue.kind != KIND_BATCH:
                raise BadRequestError(f"shard {queue.shard!r} takes single records, not batches")
            if not 1 <= count <= BATCH_COUNT_MAX:
                raise BadRequestError(f"a batch of {count} messages; 1 to 32767 are possible")
            content = bytes(view_of(body))
            if kafka:
                content = _patched_kafka(content, queue.next_offset, epoch)
            properties = inner_properties(queue.next_offset, count, kafka=kafka)
            properties += tag_header_property(tag_header) + producer_property(producer)
            draft = Draft(content, properties, None, None, None if born_ms < 0 else born_ms)
            return self._append_drafts(queue, [draft], count, now_ms, epoch, FLAG_INNER_BATCH)

    def append_encoded(self, handle: int, data: Buffer, strict: bool = False) -> int:
        with self._lock:
            queue = self._queues.get(handle)
            view = view_of(data)
            copies = read_copies(view, queue, strict=strict)
            hashes = [copy.facts.index_hashes() for copy in copies]
            log = self._log
            if log is not None and len(view) > log.size_max:
                self._refuse("group", queue, len(view), log.size_max)
            if log is None or len(view) > log.room:
                return NO_LOG_ROOM
            if sum(map(len, hashes)) > self._index.room:
                return NO_INDEX_ROOM
            first_offset = queue.next_offset
            for copy, entries in zip(copies, hashes, strict=True):
                self._append_copy(log, queue, copy, view, entries)
            self._finish_append(queue, first_offset, log.end)
            return first_offset

    def replay(
        self,
        log: Buffer,
        base: int,
        start: int,
        end: int,
        index: bool,
        special_topic_suffix: str,
        groups: bool = True,
        strict: bool = False,
    ) -> Replayed:
        with self._lock:
            target = self._index if index else None
            suffix = special_topic_suffix
            run = Replay(self._queues, target, view_of(log), base, suffix, strict=strict)
            replayed = run.run(start, end, groups=groups)
            self._last_store_timestamp_ms = max(
                self._last_store_timestamp_ms, run.last_store_timestamp_ms
            )
            return replayed

    # ------------------------------------------------------------------------------ private

    def _draft_all(
        self,
        queue: Queue,
        records: Sequence[Record],
        producer: str | None,
        transaction: str | None,
    ) -> list[Draft]:
        if not records:
            raise BadRequestError("an append needs at least one record")
        in_transaction = transaction_property(transaction)
        first_more = producer_property(producer) + (group_property(0) if len(records) > 1 else b"")
        drafts: list[Draft] = []
        for n, record in enumerate(records):
            more = self._more(queue, n) + in_transaction
            drafts.append(draft_record(record, more + first_more if n == 0 else more))
        return drafts

    @staticmethod
    def _more(queue: Queue, n: int) -> bytes:
        """Return the properties of ours that the n-th single record of an append needs."""
        if queue.kind == KIND_SIMPLE:
            return b""
        return inner_properties(queue.next_offset + n, 1, kafka=False)

    def _append_drafts(
        self, queue: Queue, drafts: list[Draft], count: int, now_ms: int, epoch: int, sys_flag: int
    ) -> int:
        """Append drafts of `count` offsets each, all or none."""
        log = self._log
        writer = self._writer
        total, entries = 0, 0
        sized: list[tuple[Draft, int, list[int]]] = []
        for draft in drafts:
            size = writer.size_of(queue, draft)
            if size > self._record_size_max and not queue.topic.endswith(CONTROL_SUFFIX):
                self._refuse("record", queue, size, self._record_size_max)
            hashes = _entry_hashes(queue, draft)
            total += size
            entries += len(hashes)
            sized.append((draft, size, hashes))
        if log is not None and total > log.size_max:
            self._refuse("record" if len(drafts) == 1 else "group", queue, total, log.size_max)
        if log is None or total > log.room:
            return NO_LOG_ROOM
        if entries > self._index.room:
            return NO_INDEX_ROOM
        now = time.time_ns() // 1_000_000 if now_ms < 0 else now_ms
        store_ms = max(now, self._last_store_timestamp_ms)
        first_offset = queue.next_offset
        for draft, size, hashes in sized:
            position = log.end
            born_ms = draft.born_timestamp_ms
            stamps = (store_ms, store_ms if born_ms is None else born_ms)
            log.write(writer.encode(queue, draft, size, position, stamps, epoch, sys_flag))
            code = 0 if draft.tag is None else tag_code(draft.tag)
            queue.add_unit(position, size, code, stamps, count)
            if hashes:
                self._index.put_all(hashes, position, store_ms)
        queue.epoch = epoch
        self._last_store_timestamp_ms = store_ms
        self._finish_append(queue, first_offset, log.end)
        return first_offset

    def _finish_append(self, queue: Queue, first_offset: int, end: int) -> None:
        self._end = end
        if queue.admission.is_sync:
            queue.hide(first_offset, end, self.durable)

    @staticmethod
    def _refuse(kind: str, queue: Queue, size: int, size_max: int) -> NoReturn:
        raise RecordTooLargeError(f"{kind} of shard {queue.shard!r}", size=size, size_max=size_max)

    def _append_copy(
        self, log: LogBuffer, queue: Queue, copy: Copy, data: memoryview, entries: list[int]
    ) -> None:
        record = copy.facts.record
        position = log.end
        store_ms = record.store_timestamp_ms
        log.write(moved(data, record, position))
        stamps = (store_ms, record.born_timestamp_ms)
        queue.add_unit(position, record.size, copy.facts.tag_code, stamps, copy.offsets)
        if entries:
            self._index.put_all(entries, position, store_ms)
        queue.epoch = copy.facts.epoch


def _entry_hashes(queue: Queue, draft: Draft) -> list[int]:
    """Return what the key index gets for a draft, as `Facts.index_hashes` finds it later."""
    hashes = [] if draft.key is None else [entry_hash(queue.index_prefix, draft.key)]
    if draft.tag is not None:
        hashes.append(tag_entry_hash(queue.index_prefix, draft.tag))
    return hashes


def _patched_kafka(body: bytes, base_offset: int, epoch: int) -> bytes:
    """Put base offset and leader epoch into a Kafka batch; both lie before its checksum's range."""
    if len(body) < KAFKA_BATCH.size:
        raise BadRequestError(f"a Kafka batch has at least 61 bytes, not {len(body)}")
    if not -_INT32_MAX - 1 <= epoch <= _INT32_MAX:
        raise BadRequestError(f"epoch {epoch} does not fit in a Kafka batch")
    return base_offset.to_bytes(8) + body[8:12] + epoch.to_bytes(4, signed=True) + body[16:]
