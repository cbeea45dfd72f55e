"""What every storage engine promises, whatever it keeps its records in.

Brokers and programs never see an engine: they call the adapter above, which has the same
operations as coroutines and by topic. Each sentence below is a test of the conformance suite in
`penstock.testing.conformance`, which any engine, also a third party's, can run.

General promises:

  * Methods may be called from any thread. A call that raises has changed nothing.
  * A method that names a shard raises `UnknownShardError` when it does not exist.
  * A key is bytes or None (b"" is a key); a value is bytes or None (a tombstone); a tag is text.
  * Negative offsets, limits below 1 and wrong types raise `BadRequestError`.
  * Engines differ only in their declared `Capabilities`.

An engine declares what else it can do by the classes that it inherits from: `BatchEngine`,
`ColumnEngine`, `TryWriteEngine`, `NativeAppendEngine`, `SharedSyncEngine`, `VerifiedEngine`. An
engine that lacks one of their methods cannot be constructed. The handler asks for these classes
with every request, so they are not protocols. It asks for `TransactionalEngine` once per
transaction.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from penstock.errors import StoreError
from penstock.record import (
    Flush,
    Offset,
    Producer,
    QueueKind,
    Record,
    ShardId,
    StoredRecord,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.codec.append_interface import AppendPath
    from penstock.engine.replication.log import ReplicaLog

RECORDS_PER_READ: Final = 1_000
SIZE_PER_READ: Final = 4 << 20
RECORD_SIZE_MAX: Final = 4 << 20
TOMBSTONE_RETENTION_MS: Final = 24 * 3_600_000
FOREVER_MS: Final = (1 << 63) - 1
"""A retention time without a limit. A number that no age reaches, so that code which compares
ages without a look at it keeps records instead of deleting them."""


class Cleanup(Enum):
    """What may be removed from a shard by itself."""

    DELETE = "delete"  # the oldest records, by the topic's retention
    COMPACT = "compact"  # records whose key was written again later
    BOTH = "compact,delete"

    @property
    def compacts(self) -> bool:
        return self is not Cleanup.DELETE

    @property
    def deletes(self) -> bool:
        return self is not Cleanup.COMPACT


class AdapterOffsetStrategy(Enum):
    """What a look-up by time answers when no record is that young."""

    EARLIEST = "Earliest"
    LATEST = "Latest"


class Isolation(Enum):
    """How far a read may go."""

    COMMITTED = "committed"  # up to the last stable offset; aborted records are holes
    UNCOMMITTED = "uncommitted"  # up to the commit offset


class Acks(Enum):
    """Which replicas have a write when it is acknowledged."""

    NONE = "none"  # the caller waits for no answer
    LEADER = "leader"  # the leader; the write is lost if the leader is
    ALL = "all"  # every replica in sync, of which there are at least `min_insync`


OnCommitted = Callable[[StoreError | None], None]
"""Called once: with None when a write is on all replicas that its `Acks` name, with the reason when
it may never be."""


class Capabilities(Struct, frozen=True):
    """The only ways in which engines may differ."""

    durable: bool  # acknowledged records survive the end of the process
    evicts: bool  # may drop the oldest records at a size limit
    power_safe: bool  # records written with `Flush.SYNC` survive a power cut


class ShardTiering(Struct, frozen=True):
    """What becomes of a shard's old records: they live on in a tier. Engines that have none ignore
    it."""

    url: str = ""
    """Where the tier is; empty: the node's own."""
    uploader: str = "broker"
    local_retention_ms: int | None = None
    """How long records that the tier holds stay in the engine as well; None: as for others,
    `FOREVER_MS`: no limit."""
    local_retention_bytes: int | None = None
    retention_ms: int | None = None
    """How long the tier keeps records; None: as long as the shard does, `FOREVER_MS`: no limit."""
    upload_interval_ms: int | None = None
    """How long records wait for others to be uploaded with; None: as the node's settings."""
    upload_bytes: int | None = None
    """Bytes of records in one object, with which an upload begins; None: as the node's settings."""
    enabled: bool = True
    """Off: the shard has no tier, whatever the node's settings say of others."""


class ShardConfig(Struct, frozen=True):
    """How one shard is kept. The queue kind is fixed at creation; the rest can be altered."""

    kind: QueueKind = QueueKind.SIMPLE
    cleanup: Cleanup = Cleanup.DELETE
    flush: Flush = Flush.ASYNC
    record_size_max: int = RECORD_SIZE_MAX
    """Bytes of value, key, tags and headers of one record."""
    retention_ms: int | None = None
    """None: the engine's default, `FOREVER_MS`: no limit."""
    retention_bytes: int | None = None
    retention_records: int | None = None
    memory_records_max: int | None = None
    memory_bytes_max: int | None = None
    tiering: ShardTiering | None = None
    tombstone_retention_ms: int = TOMBSTONE_RETENTION_MS
    """How long a compacted shard keeps a tombstone, so that readers learn of it."""
    compaction_lag_ms: int = 0
    """How long compaction leaves a record alone."""
    tag_header: str | None = None
    """The header of a Kafka batch whose values are tags; None: the process's, empty: none."""
    compaction_lag_max_ms: int | None = None
    """How long a superseded record may stay; None: until the node's next compaction."""


class ShardInfo(Struct, frozen=True):
    """Where a shard begins and ends. Offsets in [earliest, commit) can be read; `latest` is the
    offset that the next record gets."""

    shard: ShardId
    earliest: Offset
    commit: Offset
    latest: Offset
    size: int
    """Bytes that the live range takes in the engine, about."""
    sealed: bool = False
    log_start: Offset | None = None
    """With a tier: the first offset that the engine itself still holds."""
    appended: Offset | None = None
    """With replicas: what the next record of the leader gets; `latest` is the commit offset."""
    is_lagging: bool = False
    """With replicas: a new leader does not know yet how far the last one had committed."""

    @property
    def end(self) -> Offset:
        """The offset after the last record, committed or not."""
        return self.latest if self.appended is None else self.appended


class Written(Struct, frozen=True, gc=False):
    """The offsets [first, first + count) that a write got."""

    first: Offset
    count: int
    repeated: bool = False
    """True when the producer had sent this write before: nothing was written again."""

    @property
    def offsets(self) -> range:
        return range(self.first, self.first + self.count)


class ShardPart(NamedTuple):
    """Records for one of several shards."""

    shard: ShardId
    records: Sequence[Record]


class Compacted(Struct, frozen=True):
    """What a compaction removed; a record that log and tier held counts once."""

    records: int
    size: int
    again_ms: int | None = None
    """When another one would remove more, even if nothing is written until then."""


class ForeignBatch(NamedTuple):
    """A record of a batch shard that is not a Kafka batch, or one of which some messages are
    gone."""

    end_offset: int
    body: bytes
    """As the log holds it; of a Kafka batch it begins with its head."""


class ColumnQuery(NamedTuple):
    """A read of Arrow columns: records of [offset, until), about `max_size` bytes of them."""

    offset: int
    until: int
    columns: tuple[str, ...]
    tag: str | None
    max_size: int


class BatchPage(NamedTuple):
    """Kafka batches as an engine holds them, ready to be sent."""

    parts: list[bytes | memoryview]
    """One after the other: whole batches. A view is of the log's mapping; it must be dropped
    soon."""
    size: int
    next_offset: int
    foreign: ForeignBatch | None = None
    """What is at `next_offset`, when it cannot be returned unchanged."""


class EngineExtension:
    """The base of the classes by which an engine declares what else it can do.

    Their methods are abstract as in an `abc.ABC`: constructing an engine that lacks some raises
    `TypeError`, which names them. The metaclass is `type`, because `isinstance` of an `abc.ABC`
    takes six times as long, and the handler asks with every write.
    """

    __abstractmethods__: frozenset[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        methods = ((name, getattr(cls, name, None)) for name in dir(cls))
        cls.__abstractmethods__ = frozenset(
            name for name, method in methods if getattr(method, "__isabstractmethod__", False)
        )


class BatchEngine(EngineExtension):
    """For engines that store Kafka batches unchanged."""

    @abstractmethod
    def write_batch(
        self,
        shard: ShardId,
        body: bytes | memoryview,
        count: int,
        *,
        timestamp_ms: int,
        producer: Producer | None = None,
    ) -> Written:
        """Append a checked batch of `count` messages, the newest of `timestamp_ms`; its base
        offset and leader epoch are set on the way."""

    @abstractmethod
    def read_batches(self, shard: ShardId, offset: int, until: int, max_size: int) -> BatchPage:
        """Return the batches from that of `offset` on which end at or below `until`; the first
        one whatever its size."""

    @abstractmethod
    def bounds(self, shard: ShardId) -> tuple[int, int]:
        """Return the earliest and the commit offset."""

    @abstractmethod
    def epoch_end(self, shard: ShardId, epoch: int) -> tuple[int, int]:
        """Return the greatest leader epoch that is not above `epoch`, and where it ends."""

    @abstractmethod
    def sync(self) -> None:
        """Put everything that was written on the device, whatever its shard's flush mode."""

    @abstractmethod
    def is_hot(self, shard: ShardId, offset: int) -> bool:
        """Say whether the records from `offset` on were written so lately that they are in
        memory."""


@runtime_checkable
class TransactionalEngine(Protocol):
    """What an engine offers besides when its shards can be written in transactions. Who may read
    what is open is not its business: `StableOffsets` says so to readers, and to compactions."""

    def end_transaction(
        self, shard: ShardId, producer_id: int, start: Offset, *, is_commit: bool
    ) -> int:
        """End what a producer wrote from `start` on with `Producer.is_transactional`, by this
        process or an earlier one: keep it, or delete it, which outlasts a power cut whatever the
        shard's flush mode. Return how many records were deleted. Again: nothing changes."""
        ...


class TryWriteEngine(EngineExtension):
    """For engines that can append without waiting, which event loops need."""

    @abstractmethod
    def try_write(self, shard: ShardId, record: Record) -> Written | None:
        """Append a record if that takes microseconds: without waiting for a device, the network or
        another caller. None: nothing was written, and the caller has to call `write`."""


class NativeAppend(NamedTuple):
    """With what native code appends to a shard by itself."""

    path: AppendPath
    shard: ShardId
    size_max: int
    """Bytes of value, key, tags and headers of a record."""


class NativeAppendEngine(EngineExtension):
    """For engines whose appends are native calls, which front ends make from native code."""

    @abstractmethod
    def native_append(self, shard: ShardId) -> NativeAppend | None:
        """Return with what to append to a shard, until the metadata changes. None: there is no
        native code."""


class ForwardingEngine(EngineExtension):
    """For the engine of another node: that node waits for the replicas of its shards."""

    @abstractmethod
    def forward_write(
        self,
        shard: ShardId,
        records: Sequence[Record],
        *,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
    ) -> Written:
        """Have the node write records as `batch_write` does, and acknowledge them as `acks`
        says."""


class SharedSyncEngine(EngineExtension):
    """For engines in which writes to several shards can share one sync of the device."""

    @abstractmethod
    def batch_write_parts(self, parts: Sequence[ShardPart]) -> list[Written | StoreError]:
        """Write each part as `batch_write` does, and sync once for all of them. Returns, in their
        order, what was written, or the error of a part that was not."""


class ColumnEngine(EngineExtension):
    """For engines that read records as Arrow columns."""

    @abstractmethod
    def read_columns(self, shard: ShardId, query: ColumnQuery) -> list[pa.RecordBatch] | None:
        """Return about `max_size` bytes of records; None where this shard has only rows."""


class VerifiedEngine(EngineExtension):
    """For engines whose records are on a disk, where they can be damaged before a client reads
    them."""

    @abstractmethod
    def verify_records(self, shard: ShardId, offset: int, max_size: int) -> tuple[int, int]:
        """Read about `max_size` bytes of committed records from `offset` on, and verify their
        checksums. Return the offset to go on at, `offset` itself at the end, and how many bytes
        were read. Raise `CorruptionError` when the record of `offset` is damaged."""


class ReplicatedEngine(EngineExtension):
    """For engines whose shards can have copies on several nodes.

    A call that changes a replicated shard other than by a write (a delete, a seal, a compaction)
    appends to one of its logs, and returns when that is committed. Before it waits it calls
    `on_operation`, so that the followers get what was appended.
    """

    on_operation: Callable[[ShardId], None]
    """Set by the node; called from any thread, with no lock of the engine held."""

    @abstractmethod
    def replica_logs(self, shard: ShardId) -> Sequence[ReplicaLog]:
        """Return the logs of a shard that are copied between nodes, in an order that is the same
        on all of them; the same objects each time while the shard exists. From the first call on
        the shard is replicated: it takes no writes before `ReplicaLog.begin_epoch`, and shows
        nothing past the commit offset that replication sets."""

    @abstractmethod
    def end_replication(self, shard: ShardId) -> None:
        """Keep a shard as one without replicas: this node has the only one that is left, and what
        is in its logs counts as committed. Does nothing to a shard that is not replicated."""

    @abstractmethod
    def sync(self) -> None:
        """Put everything that was written on the device, whatever its shard's flush mode."""


class StorageEngine(Protocol):
    """The storage operations on one node's own shards; see the module's head for what holds for
    all of them."""

    @property
    def capabilities(self) -> Capabilities: ...

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        """Create `shard` empty, its first offset 0; do nothing if it exists with this queue
        kind. A name that was deleted before starts empty again."""
        ...

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        """Use `config` from now on; a changed queue kind raises `BadRequestError`."""
        ...

    def delete_shard(self, shard: ShardId) -> None:
        """Forget `shard` and its records; do nothing if it does not exist."""
        ...

    def list_shard(self, topic: str | None = None) -> list[ShardId]:
        """Return the shards of `topic`, or all, sorted."""
        ...

    def seal_shard(self, shard: ShardId) -> None:
        """Refuse further writes with `ShardSealedError`; reads and deletes go on."""
        ...

    def write(
        self, shard: ShardId, record: Record, *, producer: Producer | None = None
    ) -> Written: ...

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        """Append `records`, all or none, in order, with contiguous offsets that are never used
        again; they can be read when this returns. An empty batch raises `BadRequestError`.

        With `producer`, a repeat of one of its last five writes returns the first offsets and
        writes nothing; a gap raises `SequenceGapError`, an old epoch `ProducerFencedError`.
        """
        ...

    def read_by_offset(
        self,
        shard: ShardId,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        """Return records from `offset` on, ascending, holes skipped, never past the commit
        offset. At or past the end: empty. Before the earliest: from the earliest on. The first
        record is returned even if it alone exceeds `max_size`. Expired and deleted records are
        skipped without ending the page early."""
        ...

    def read_by_tag(
        self,
        shard: ShardId,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        """Return records that carry exactly `tag` from `start_offset` on, with the same limits."""
        ...

    def read_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        """Return the newest live record of `key`, or None."""
        ...

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        """Return the live records of `key` with begin_ms <= timestamp <= end_ms, newest first."""
        ...

    def delete_by_key(self, shard: ShardId, key: bytes) -> int:
        """Delete every record of `key`; return how many there were."""
        ...

    def delete_by_offset(self, shard: ShardId, offset: Offset) -> bool:
        """Delete one record; return whether it was there. Deleted records are gone from every
        read immediately and for good; earliest and latest do not move; offsets are not reused."""
        ...

    def delete_records_before(self, shard: ShardId, offset: Offset) -> Offset:
        """Move the earliest offset to `offset` (at most to the commit offset; never back) and
        return it."""
        ...

    def get_offset_by_timestamp(
        self, shard: ShardId, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset:
        """Return the offset of the first live record with a timestamp >= `timestamp_ms`,
        whatever the order of timestamps; when there is none, the earliest offset or the next
        writable one, as `strategy` says."""
        ...

    def compact(self, shard: ShardId) -> Compacted:
        """Remove the records of a shard that is compacted whose key was written again later. On
        other shards: nothing. `read_by_key` answers the same before and after.

        A tombstone goes when the store has had it for `tombstone_retention_ms` and nothing that it
        replaced was left before: a reader of that has had time to read the tombstone, too. Records
        that came within `compaction_lag_ms` stay, and replace nothing.
        """
        ...

    def apply_retention(self, shard: ShardId) -> Offset:
        """Delete what the shard's configuration does not let it keep; return the earliest offset.

        A shard begins with its first live record that is at most `retention_ms` old (by the
        record's timestamp), holds at most the last `retention_records` offsets, and about
        `retention_bytes` of what the engine counts as its size; the limit that keeps least wins.
        An offset whose record damage took counts for none of them.
        A record in front of that goes however young it is. `Cleanup.COMPACT` shards are left
        alone: they keep the newest record of each key (`BOTH`: until it is too old). A node calls
        this by itself.
        """
        ...

    def shard_info(self, shard: ShardId) -> ShardInfo: ...

    def close(self) -> None: ...
