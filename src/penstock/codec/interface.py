"""The interface of the codec backends, which run the byte loops of the store.

`penstock._native` (Rust) and `penstock.codec.pure` (Python) both implement `Core`; `select` picks
one. The Python one is the reference: when the two disagree, the native one is wrong.

Positions are log positions: the base of the file plus an index into its buffer. `next_unit` counts
units of a queue's file, `next_offset` offsets of the shard; they differ for batch queues only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.codec.append_interface import Appender, GroupCommit, MakeAppendPath, WriteLock
from penstock.codec.format import Damage, RawRecord
from penstock.codec.kafka_interface import KafkaFunctions
from penstock.record import Record, StoredRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

Columns = dict[str, tuple[bytes, ...]]
"""Ready Arrow buffers by column; the layouts are listed in `pure/read/columns.py`."""

DeletedRanges = Sequence[tuple[int, int]]
"""Sorted, half-open ranges of offsets."""

ReadPage = tuple[list[StoredRecord], int, int, Damage | None]
"""Records, the next offset to read, bytes of the records in the log, why the page ended early."""

ColumnPage = tuple[Columns, int, int, Damage | None]
KeyPage = tuple[bytes, int, int, Damage | None]

CopiedRecords = tuple[bytes, int, Damage | None]
"""Whole records one after the other, the next offset to read, why they ended early."""

RecordIndex = tuple[bytes, bytes, int, int, Damage | None]
"""Pairs of a key's hash and a unit's number, a filter of keys, oldest and newest time, damage."""


class Core(Protocol):
    """The functions of a backend. The reference implementation specifies each."""

    @property
    def Appender(self) -> Callable[[bytes, bytes, int], Appender]:  # noqa: N802 - it is a class
        """Takes the store host, the born host (8 or 20 bytes each), and the record size limit."""
        ...

    @property
    def WriteLock(self) -> Callable[[], WriteLock]: ...  # noqa: N802 - it is a class

    @property
    def GroupCommit(self) -> Callable[[int], GroupCommit]:  # noqa: N802 - it is a class
        """Takes how far the log is on the device."""
        ...

    @property
    def AppendPath(self) -> MakeAppendPath:  # noqa: N802 - it is a class
        """Takes an appender, a lock and a group commit of the same backend, its `sync`, handles
        by shard, a clock (None: the system's), for how many seconds to wait for the lock, and what
        `put` does where its answer would be negative: it is called with that, too."""
        ...

    def java_hash(self, text: str) -> int: ...
    def encode_raw(self, raw: RawRecord, checksum: bool) -> bytes: ...
    def decode_raw(
        self, log: Buffer, base: int, position: int, check: bool, strict: bool = False
    ) -> RawRecord | Damage: ...
    def check_log(
        self, log: Buffer, base: int, start: int, end: int, strict: bool = False
    ) -> tuple[int, int, Damage | None]: ...
    def find_record(
        self, log: Buffer, base: int, start: int, end: int, strict: bool = False
    ) -> int: ...
    def inflate_body(self, body: bytes, sys_flag: int) -> bytes: ...
    def prefault(self, log: Buffer, start_index: int, size: int) -> None: ...
    def all_fit(self, records: Sequence[Record], size_max: int) -> bool: ...
    def crc_patch(self, checksum: int, size_after: int, delta: bytes) -> int: ...

    def read_one(
        self,
        log: Buffer,
        base: int,
        position: int,
        size: int,
        topic: str,
        queue_id: int,
        offset: int,
        now_ms: int,
        key: bytes | None,
        strict: bool = False,
    ) -> StoredRecord | None: ...
    def index_newest(
        self, index: Buffer, slots: int, entries_max: int, topic: str, key: bytes
    ) -> int: ...

    def read_records(
        self,
        log: Buffer,
        base: int,
        units: bytes,
        first_offset: int,
        topic: str,
        queue_id: int,
        max_records: int,
        max_size: int,
        deleted: DeletedRanges,
        now_ms: int,
        tag: str | None,
        key: bytes | None,
        strict: bool = False,
    ) -> ReadPage: ...
    def read_batches(
        self,
        log: Buffer,
        base: int,
        units: bytes,
        start_offset: int,
        topic: str,
        queue_id: int,
        max_records: int,
        max_size: int,
        deleted: DeletedRanges,
        now_ms: int,
        tag: str | None,
        key: bytes | None,
        strict: bool = False,
    ) -> ReadPage: ...
    def read_columns(
        self,
        log: Buffer,
        base: int,
        units: bytes,
        kind: int,
        start_offset: int,
        topic: str,
        queue_id: int,
        max_records: int,
        max_size: int,
        deleted: DeletedRanges,
        now_ms: int,
        tag: str | None,
        fields: int,
        strict: bool = False,
    ) -> ColumnPage: ...
    def read_keys(
        self,
        log: Buffer,
        base: int,
        units: bytes,
        start_offset: int,
        topic: str,
        queue_id: int,
        max_records: int,
        max_size: int,
        deleted: DeletedRanges,
        now_ms: int,
        strict: bool = False,
    ) -> KeyPage:
        """Return the keys inside the batches of consecutive units as entries for `index_fill`:
        hash 4 · position of the batch 8 · store time 8, ascending, each once in a batch."""
        ...

    def index_fill(self, index: Buffer, slots: int, entries_max: int, entries: bytes) -> int:
        """Put entries into an index file; return how many it had room for."""
        ...

    def decode_inner(
        self,
        body: Buffer,
        kafka: bool,
        base_offset: int,
        store_timestamp_ms: int,
        leader_epoch: int,
    ) -> list[StoredRecord]: ...

    def find_special(
        self, log: Buffer, base: int, start: int, end: int, epoch: int, special_suffix: str
    ) -> list[int]:
        """Return the positions, from `start` up to `end`, of the records that change more of a
        shard than its queue: those with a producer, those of another leader epoch than the record
        before (`epoch`, before the first), and all of topics with the suffix. The caller has
        verified the records."""
        ...

    def copy_records(
        self,
        log: Buffer,
        base: int,
        units: bytes,
        kind: int,
        offset: int,
        topic: str,
        queue_id: int,
        deleted: DeletedRanges,
        max_size: int,
        strict: bool = False,
        whole_groups: bool = False,
    ) -> CopiedRecords:
        """Copy the records that units point at, one after the other, without those that are
        wholly deleted, at most `max_size` bytes (the first comes whatever its size); return them,
        the offset to go on at, and damage, which ends them. `deleted` ranges do not touch. With
        `whole_groups`, a group is copied whole or not at all, the first whatever its size."""
        ...

    def place_records(
        self, data: Buffer, kind: int, position: int, offset: int, gap_max: int, max_size: int,
        topic: str | None = None, queue_id: int = 0,
    ) -> tuple[bytes, int, int]:  # fmt: skip
        """Move whole records to `position`, as many as follow on `offset` and on each other,
        ascending with gaps of at most `gap_max` offsets, and as `max_size` bytes hold, up to the
        first of another queue than `topic`'s, if given. Return them, the first offset and the end.
        Damage raises `BadRequestError`."""
        ...

    def index_records(
        self,
        data: Buffer,
        base: int,
        units: bytes,
        kind: int,
        offset: int,
        topic: str,
        queue_id: int,
        filter_size: int,
    ) -> RecordIndex:
        """Read and check everything that units point at; return the sorted (CRC-32 of a key,
        number of a unit) pairs as u32s, a filter of the keys (empty when it would tell nothing),
        the least and the greatest timestamp, and damage."""
        ...

    def block_checksums(self, data: Buffer, block_size: int) -> bytes:
        """Return the CRC-32 of every block of `data`, the last of which may be short, as u32s."""
        ...

    def index_lookup(
        self,
        index: Buffer,
        slots: int,
        entries_max: int,
        text: str,
        begin_ms: int,
        end_ms: int,
        count_max: int,
    ) -> list[int]: ...
    def set_tag_header(self, name: str) -> None:
        """Let the values of this header be the tags of a Kafka message; "": none are."""
        ...

    def index_relink(
        self, index: Buffer, slots: int, entries_max: int, keep: int, stop: int = ...
    ) -> None: ...


class NativeOnly(KafkaFunctions, Protocol):
    """Functions of the native extension for network front ends, without a reference in Python."""

    def crc32c(self, data: Buffer, /) -> int:
        """Return the checksum of Kafka's batches."""
        ...

    def build_batch(
        self,
        records: list[StoredRecord],
        tag_header: str,
        transaction: tuple[int, int, int] | None,
        /,
    ) -> bytes:
        """Return records with ascending offsets as one Kafka batch, not compressed; tags become
        headers of that name ("": they are left out)."""
        ...

    def slice_batches(
        self,
        log: Buffer,
        base: int,
        units: bytes,
        start_offset: int,
        until: int,
        topic: str,
        queue_id: int,
        max_size: int,
        deleted: Sequence[tuple[int, int]],
        strict: bool = False,
        /,
    ) -> tuple[list[bytes | tuple[int, int]], int, int, bool, Damage | None]:
        """Return the Kafka batches of consecutive batch units from `start_offset` on that end at
        or below `until`: parts, the next offset, the size, whether the record there is not a whole
        Kafka batch, damage. A part is bytes, or an index and a size in `log`."""
        ...
