"""What the rows hold besides records, whose rows are in `penstock.engine.record_rows`.

RocksDB checks every block that it reads; rows have no checksum of their own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from penstock.codec.validation import INT64_MIN
from penstock.engine.contract import ShardConfig
from penstock.engine.epoch_table import EpochTable
from penstock.engine.producer_table import Undone, Write
from penstock.engine.row_replica import Histories, LoggedWrite, Saved
from penstock.engine.row_replica.logged_write import LOGGED_WRITE
from penstock.platform.layout import Field, Layout

SHARD_END: Final = Layout(
    "RocksDB shard end",
    Field("latest", "u64", "offset of the next record"),
    Field("earliest", "u64", "first offset that can be read"),
    Field("swept", "u64", "first offset that may still have rows"),
    Field("size", "u64", "bytes of all record rows"),
    Field("store_timestamp_ms", "i64", "of the last record"),
    Field("newest_in_block", "i64", "newest timestamp of the unfinished block"),
    Field("newest_in_group", "i64", "newest timestamp of the finished blocks of their group"),
    size=56,
)

PRODUCER_WRITE: Final = Layout(
    "RocksDB producer write",
    Field("epoch", "i64", "the producer's epoch"),
    Field("sequence", "i64", "of the first record"),
    Field("count", "i64", "records"),
    Field("first_offset", "i64", "that the write got"),
    Field("timestamp_ms", "i64", "when"),
    size=40,
)

FORGOTTEN_WRITE: Final = Layout(
    "RocksDB forgotten write",
    Field("producer_id", "i64", "of which the shard forgot the write for a newer one"),
    *PRODUCER_WRITE.fields,
    size=48,
)

REPLICA_STATE: Final = Layout(
    "RocksDB replica state",
    Field("commit", "u64", "end of the committed records"),
    Field("operations_start", "u64", "first operation that is kept"),
    Field("operations_end", "u64", "index of the next operation"),
    Field("operations_commit", "u64", "end of the committed operations"),
    Field("acted", "u64", "operations before this one have acted"),
    Field("snapshot", "u64", "the newest snapshot that has acted"),
    size=48,
)

TRANSACTED_ROW: Final = Layout(
    "RocksDB write in a transaction",
    Field("count", "i64", "records"),
    size=8,
)

KEY_ROW: Final = Layout(
    "RocksDB key row",
    Field("expires_at_ms", "i64", "as in the record"),
    Field("timestamp_ms", "i64", "as in the record"),
    size=16,
)

TAG_ROW: Final = Layout(
    "RocksDB tag row",
    Field("expires_at_ms", "i64", "as in the record"),
    size=8,
)

BLOCK_ROW: Final = Layout(
    "RocksDB block row",
    Field("timestamp_ms", "i64", "none of the block's records is newer"),
    size=8,
)


class End(NamedTuple):
    """The fields of `SHARD_END`, in its order."""

    latest: int = 0
    earliest: int = 0
    swept: int = 0
    size: int = 0
    store_timestamp_ms: int = 0
    newest_in_block: int = INT64_MIN
    newest_in_group: int = INT64_MIN


class ShardRow(Struct, frozen=True):
    """A shard in the directory; written as JSON, whose fields can grow."""

    generation: int
    config: ShardConfig
    sealed: bool = False
    replicated: bool = False
    """Whether the shard has replicas on other nodes."""


_shard_rows: Final = msgspec.json.Decoder(ShardRow)


def encode_shard(row: ShardRow) -> bytes:
    return msgspec.json.encode(row)


def decode_shard(row: bytes) -> ShardRow:
    return _shard_rows.decode(row)


def encode_end(end: End) -> bytes:
    return SHARD_END.pack(*end)


def decode_end(row: bytes) -> End:
    return End(*SHARD_END.unpack(row))


def encode_writes(writes: tuple[Write, ...]) -> bytes:
    return b"".join(PRODUCER_WRITE.pack(*write) for write in writes)


def decode_writes(row: bytes) -> tuple[Write, ...]:
    return tuple(Write(*fields) for fields in PRODUCER_WRITE.iter_unpack(row))


class _History(Struct, frozen=True):
    """`Histories` as JSON, whose fields can grow: epochs, and the offsets at which they begin."""

    records: list[tuple[int, int]]
    operations: list[tuple[int, int]]


_histories: Final = msgspec.json.Decoder(_History)


def encode_history(histories: Histories) -> bytes:
    records, operations = histories
    return msgspec.json.encode(_History(records.to_list(), operations.to_list()))


def decode_history(row: bytes) -> Histories:
    history = _histories.decode(row)
    return Histories(
        EpochTable.from_list(history.records), EpochTable.from_list(history.operations)
    )


def encode_saved(saved: Saved) -> bytes:
    return REPLICA_STATE.pack(*saved)


def decode_saved(row: bytes) -> Saved:
    return Saved(*REPLICA_STATE.unpack(row))


def encode_write(write: LoggedWrite, forgotten: Undone) -> bytes:
    """Return a write's row: the write, then what the shard's producers forgot for it."""
    rest = (FORGOTTEN_WRITE.pack(producer_id, *old) for producer_id, old in forgotten)
    return write.pack() + b"".join(rest)


def decode_write(first: int, row: bytes) -> tuple[LoggedWrite, list[tuple[int, Write]]]:
    rest = row[LOGGED_WRITE.size :]
    forgotten = [(fields[0], Write(*fields[1:])) for fields in FORGOTTEN_WRITE.iter_unpack(rest)]
    return LoggedWrite.unpack(first, row), forgotten
