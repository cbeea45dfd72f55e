"""The write side of a codec backend: the appender of a log, its lock, its group commit.

Part of `penstock.codec.interface`, which has the read side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from penstock.codec.format import Damage
from penstock.record import Record, ShardId

if TYPE_CHECKING:
    from typing_extensions import Buffer

Replayed = tuple[int, int, int, Damage | None, list[tuple[int, int]]]
"""Position reached, records dispatched, a REPLAY_ status, the damage, and (position, queue) of the
records that the caller must look at."""

if TYPE_CHECKING:
    Column = tuple[Buffer, Buffer, int, Buffer | None, int]
    """Arrow's data, offsets, bytes per offset (4 or 8), validity bitmap, index of the first row."""


class IndexSink(Protocol):
    """Takes index files that entries go to, one after the other."""

    def attach_index(self, index: memoryview, slots: int, entries_max: int) -> None:
        """Write entries to `index` once the files attached before it are full."""
        ...

    def release_index(self) -> None:
        """Release the index file attached first."""
        ...

    @property
    def index_full(self) -> int:
        """How many of the attached files, oldest first, are full."""
        ...


class Appender(Protocol):
    """Encodes records into the log file that is being written, and derives queue units, time
    blocks and index entries from them, at the append and from a log that exists.

    One thread at a time may use it. It writes only into buffers that were handed to it, and opens
    no files: queue units are held in memory until `drop_units` says that they are in their file.
    """

    def attach_log(self, log: Buffer, base: int, start: int) -> None:
        """Append to `log` from position `start` on; the buffer is held until replaced."""
        ...

    def attach_device(self, descriptor: int) -> None:
        """Name the file of the attached log to the operating system, which may then sync it
        without `Disk` (`GroupCommit.sync_natively`)."""
        ...

    def finish_log(self) -> None:
        """Write the blank record; `end` is the end of the file then."""
        ...

    def detach_log(self) -> None: ...

    @property
    def end(self) -> int:
        """The position after the last record appended."""
        ...

    @property
    def last_store_timestamp_ms(self) -> int: ...
    @last_store_timestamp_ms.setter
    def last_store_timestamp_ms(self, value: int) -> None: ...

    @property
    def accepting(self) -> bool:
        """Whether append paths may append; False while the log rejects appends."""
        ...

    @accepting.setter
    def accepting(self, value: bool) -> None: ...

    @property
    def durable(self) -> int:
        """The log is on the device up to this position, as far as the appender was notified."""
        ...

    @durable.setter
    def durable(self, value: int) -> None: ...

    def add_queue(
        self, topic: str, queue_id: int, kind: int, next_offset: int, next_unit: int
    ) -> int:
        """Return a handle for the queue; `AlreadyExistsError` when it has one."""
        ...

    def remove_queue(self, handle: int) -> None: ...

    def queues(self) -> list[tuple[int, str, int, int, int, int]]:
        """Return handle, topic, queue id, kind, next offset and next unit of each queue."""
        ...

    def next_offsets(self) -> bytes:
        """Return the next offset of every handle that was ever given, as 64-bit integers of this
        machine; 0 for a deleted queue. So does `shown_offsets`."""
        ...

    def shown_offsets(self) -> bytes: ...
    def next_offset(self, handle: int) -> int: ...
    def next_unit(self, handle: int) -> int: ...

    def shown_offset(self, handle: int) -> int:
        """Return the offset after the last visible record: records that were appended while the
        admission had `is_sync` are invisible until they are durable."""
        ...

    def set_admission(
        self, handle: int, is_open: bool, is_sync: bool, epoch: int, is_following: bool = False
    ) -> None:
        """Set whether an append path may append to the queue, whether its records wait for the
        device, the leader epoch of its records, and whether another node decides what it holds:
        replayed records of such a queue do not move `last_store_timestamp_ms`. A new queue is
        closed."""
        ...

    def dirty_queues(self) -> list[int]:
        """Return the queues that hold units."""
        ...

    def peek_units(self, handle: int) -> tuple[int, bytes]:
        """Return the number of the first unit held, and all units held."""
        ...

    def held_units(self, handle: int) -> tuple[int, int]:
        """Return the number of the first unit held, and how many are."""
        ...

    def drop_units(self, handle: int, until_unit: int) -> None:
        """Forget units below `until_unit`: they are in their file."""
        ...

    def read_units(self, handle: int, unit: int, count: int) -> bytes:
        """Return up to `count` units from those held; none when `unit` is not held."""
        ...

    def truncate_queue(self, handle: int, next_offset: int, next_unit: int) -> None:
        """Forget everything from `next_offset` on."""
        ...

    def restart_queue(self, handle: int, next_offset: int, next_unit: int) -> None:
        """Forget everything; the queue goes on at `next_offset`, which is unit `next_unit`."""
        ...

    def skip_offsets(self, handle: int, until: int) -> None:
        """Leave the offsets before `until`, at most `GAP_MAX`, without a record."""
        ...

    def drain_times(self, handle: int) -> list[tuple[int, int]]:
        """Return the blocks completed since the last call: number, greatest BORNTIMESTAMP."""
        ...

    def block_max(self, handle: int) -> int:
        """Return the greatest BORNTIMESTAMP of the unfinished block; -1 when it is empty."""
        ...

    def set_block_max(self, handle: int, timestamp_ms: int) -> None: ...

    def attach_index(self, index: Buffer, slots: int, entries_max: int) -> None:
        """Write entries to `index` once the files attached before it are full."""
        ...

    def release_index(self) -> None:
        """Release the index file attached first."""
        ...

    def set_index_end(self, position: int, count: int) -> None:
        """Say that the index ends with `count` entries of the record at `position`, not all of
        them perhaps in files that are attached: a replay adds those that it lacks."""
        ...

    @property
    def index_attached(self) -> int: ...
    @property
    def index_full(self) -> int:
        """How many of the attached files, oldest first, are full."""
        ...

    @property
    def index_room(self) -> int:
        """Free entries over all attached files."""
        ...

    def append(self, handle: int, record: Record, now_ms: int, epoch: int) -> int:
        """Return the record's offset, NO_LOG_ROOM or NO_INDEX_ROOM. `now_ms < 0`: the clock."""
        ...

    def append_many(
        self,
        handle: int,
        records: Sequence[Record],
        now_ms: int,
        epoch: int,
        producer: str | None,
        transaction: str | None = None,
    ) -> int:
        """Append an atomic group, of a producer's `transaction`; return as `append`."""
        ...

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
        """Append `count` rows as an atomic group; return as `append_many`."""
        ...

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
        """Append one record that holds `count` messages; return the offset of the first. A
        `tag_header` says which header of a Kafka batch gives tags; None: the process's."""
        ...

    def append_encoded(self, handle: int, data: Buffer, strict: bool = False) -> int:
        """Append whole records as another log holds them, with their positions changed. With
        `strict`, each must have a checksum. `last_store_timestamp_ms` stays: theirs are of another
        node's clock."""
        ...

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
        """Derive units, times and index entries from the records of an existing log. Without
        `groups`, part of a group is good enough: to go on after damage. With `strict`, a record
        without a checksum is damaged."""
        ...


class WriteLock(Protocol):
    """Held by the writer of the log; excludes every append path. Not reentrant. Natively, who has
    waited for some time goes before intakes: these need no interpreter, and are always faster."""

    def acquire(self, timeout_s: float) -> bool:
        """Return False when another thread held it all that time."""
        ...

    def release(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class GroupCommit(Protocol):
    """Group commit: of those who wait for the device, one syncs for all."""

    @property
    def durable(self) -> int: ...

    def set_durable(self, durable: int) -> None:
        """Set `durable`, also backwards, while no writer waits."""
        ...

    def sync_natively(
        self,
        appender: Appender,
        synced: Callable[[int, int, list[float]], None],
        failed: Callable[[str], None],
    ) -> None:
        """Sync the log of `appender` without `sync`, where that can be done. `synced` is called
        afterwards, out of order perhaps, of one or of several: how far, the newest store
        timestamp below, how many seconds each took. `failed` is called with the error of the device
        and must raise; from then on only `sync` is called. The Python backend never does so."""
        ...

    def wait(self, position: int, sync: Callable[[], int]) -> None:
        """Return when `durable` has reached `position`. One of all who wait calls `sync`, which
        puts the log on the device and returns how far; its error is raised to that caller only,
        and the next one tries."""
        ...


class AppendPath(Protocol):
    """Appends as the only writer, then waits for the device if the admission has `is_sync`. A
    negative result (one of an append's, or UNKNOWN_SHARD, NOT_ADMITTED, BUSY, TOO_LARGE) means that
    nothing was written. Only records of at most `size_max` bytes (of value, key, tags and headers)
    are taken.
    """

    def append(self, shard: ShardId, record: Record, size_max: int | None = None) -> int:
        """Append one record; return its offset, or what the last of the arguments returns."""
        ...

    def try_append(self, shard: ShardId, record: Record, size_max: int) -> int:
        """Append one small record if nothing has to be waited for: a lock that is held
        (BUSY), a device (NOT_ADMITTED)."""
        ...

    def append_many(
        self, shard: ShardId, records: Sequence[Record], size_max: int | None = None
    ) -> int:
        """Append an atomic group; return the first offset."""
        ...


MakeAppendPath = Callable[
    [
        Appender,
        WriteLock,
        GroupCommit,
        Callable[[], int],
        Mapping[ShardId, int],
        Callable[[], int] | None,
        float,
        Callable[[ShardId, Record, int | None, int], int],
    ],
    AppendPath,
]
