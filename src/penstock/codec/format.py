"""On-disk format of the segment engine: the files of Apache RocketMQ 5.5, byte for byte.

    commitlog/<base>                       record* (blank | zero bytes)    of all shards
    consumequeue/<topic>/<queue id>/<at>   unit*       unit n points at the record of offset n
    batchconsumequeue/…                    batch unit*     one unit for each inner batch
    index/<creation time>                  header, slots, entries          keys to positions
    checkpoint                             six timestamps and positions

A record is a fixed head, two hosts, a fixed tail, then three sized parts, with nothing between
records:

    ┌─────────┬───────────┬────────────┬────────────┬─────────┬──────┬───────┬────────────┐
    │ head 48 │ born host │ store time │ store host │ tail 16 │ body │ topic │ properties │
    └─────────┴───────────┴────────────┴────────────┴─────────┴──────┴───────┴────────────┘

Why the format is RocketMQ's and not our own: a trusted system can open what we wrote, and we can
read what brokers in production wrote. What its fields cannot say travels in properties of ours
(`PSTK_…`), which RocketMQ carries along unread.

Why every record of ours ends with `__CRC32#`: RocketMQ's own body checksum leaves topic, properties
and positions uncovered; a flipped byte there would be served unnoticed.

Why groups say their size in bytes: a multi-record append must come back whole or not at all, and
recovery sees only bytes; the first record of a group tells it how far to look.

`docs/format.md` holds the tables of every layout below; a test keeps them current.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Final

from msgspec import Struct

from penstock.platform.layout import Field, Layout

# ------------------------------------------------------------------------------------ record

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194

_HEAD: Final = (
    Field("size", "i32", "whole record in bytes (TOTALSIZE)"),
    Field("magic", "u32", "`DAA320A7` version 1, `DAA320AB` version 2, `CBD43194` blank"),
    Field("body_crc", "i32", "CRC-32 of the body, top bit cleared; 0 for an empty body"),
    Field("queue_id", "i32", "partition of the shard"),
    Field("flag", "i32", "the producer's, opaque; 0 in what Penstock writes"),
    Field("queue_offset", "i64", "offset in the shard; 0 for prepared and rolled back ones"),
    Field("position", "i64", "where this record starts in the log (PHYSICALOFFSET)"),
    Field("sys_flag", "i32", "see the flags below"),
    Field("born_timestamp_ms", "i64", "the producer's clock"),
)
_TAIL: Final = (
    Field("reconsume_times", "i32", "how often a consumer sent it back; 0 in what Penstock writes"),
    Field(
        "prepared_offset", "i64", "leader epoch; in a transaction, the position of its half message"
    ),
    Field("body_size", "i32", "bytes of the body, which follows"),
)

RECORD_HEAD: Final = Layout("record head", *_HEAD, size=48)
RECORD_TAIL: Final = Layout("record tail", *_TAIL, size=16)
RECORD_IPV4: Final = Layout(
    "record up to its body, both hosts IPv4",
    *_HEAD,
    Field("born_host", "8 bytes", "4 bytes address, i32 port; IPv6: 16 bytes address, i32 port"),
    Field("store_timestamp_ms", "i64", "the leader's clock at the append; never runs backwards"),
    Field("store_host", "8 bytes", "as born_host"),
    *_TAIL,
    size=88,
)
BLANK: Final = Layout(
    "blank record",
    Field("size", "i32", "bytes left in the file, this head included"),
    Field("magic", "u32", "`CBD43194`"),
    size=8,
)

HOLE: Final = Layout(
    "hole",
    Field("size", "i32", "bytes left in the file, this head included"),
    Field("magic", "u32", "`CBD43194`: for RocketMQ it is a blank record"),
    Field("mark", "8 bytes", "`PSTKHOLE`"),
    Field("saved_size", "u32", "bytes after this head: what was left of the record here"),
    Field("checksum", "u32", "CRC-32 of the saved bytes"),
    size=24,
)
HOLE_MARK: Final = b"PSTKHOLE"
HOLE_REASON: Final = "a repair found the rest of this file gone"

HOST_SIZE_IPV4: Final = 8
HOST_SIZE_IPV6: Final = 20
RECORD_SIZE_MIN: Final = RECORD_IPV4.size + 1 + 2  # no body, a topic of no bytes, no properties
TOPIC_SIZE_V1_MAX: Final = 127  # RocketMQ reads the length byte as signed
TOPIC_SIZE_MAX: Final = 32_767
PROPERTIES_SIZE_MAX: Final = 32_767
CHECKSUM_MASK: Final = 0x7FFF_FFFF

FLAG_COMPRESSED: Final = 1
FLAG_TRANSACTION: Final = 12  # mask: 0 none, then one of the next three
FLAG_PREPARED: Final = 4
FLAG_COMMIT: Final = 8
FLAG_ROLLBACK: Final = 12
FLAG_BORN_IPV6: Final = 16
FLAG_STORE_IPV6: Final = 32
FLAG_INNER_BATCH: Final = 128

# -------------------------------------------------------------------------------- properties

NAME_END: Final = b"\x01"
VALUE_END: Final = b"\x02"

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
DELAY: Final = "DELAY"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
CHECKSUM: Final = "__CRC32#"

ENVELOPE: Final = "PSTK_ENV"  # "1": the body is an envelope
EXPIRES: Final = "PSTK_EXP"  # decimal milliseconds since the epoch
KAFKA: Final = "PSTK_KFK"  # "1": the inner batch is a Kafka record batch, version 2
TAG_HEADER: Final = "PSTK_TAG"  # "=" and the name of the header that gives the batch's tags
PRODUCER: Final = "PSTK_PRD"  # "id,epoch,sequence,count", first record of a producer's write
TRANSACTION: Final = "PSTK_TXN"  # the id of the producer whose transaction the record belongs to
GROUP: Final = "PSTK_GRP"  # ten digits: bytes of the whole group, first record of a group
GROUP_DIGITS: Final = 10

CHECKSUM_START: Final = CHECKSUM.encode() + NAME_END
CHECKSUM_DIGITS: Final = 10
CHECKSUM_SIZE: Final = len(CHECKSUM_START) + CHECKSUM_DIGITS + len(VALUE_END)

RESERVED_PREFIXES: Final = ("PSTK_", "INNER_", "__RMQ.TRANSIENT.")
RESERVED_PROPERTIES: Final = frozenset(
    """
    1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CHECK_IMMUNITY_TIME_IN_SECONDS CLUSTER
    CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC
    DUP_INFO EXTEND_UNIQ_INFO E_T INNER_BASE INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET INNER_NUM
    INSTANCE_ID KEYS MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION MSG_TYPE
    ORIGIN_GROUP ORIGIN_MESSAGE_ID PGROUP POP_CK POP_CK_OFFSET PROPERTY_FORWARD_QUEUE_ID
    PUSH_REPLY_TIME REAL_QID REAL_TOPIC RECONSUME_TIME REDIRECT REPLY_TO_CLIENT RETRY_TOPIC TAGS
    TIMER_DELAY_LEVEL TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DEL_UNIQKEY
    TIMER_DEQUEUE_MS TIMER_ENQUEUE_MS TIMER_OUT_MS TIMER_ROLL_LABEL TIMER_ROLL_TIMES TRACE_CONTEXT
    TRACE_ON TRANSACTION_CHECK_TIMES TRANSFER_FLAG TRANS_OFFSET TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET
    TTL UNIQ_KEY WAIT _SYS_MSG_PRIORITY_ __BORNHOST __CRC32# __LITE_TOPIC __SHARDINGKEY
    __transactionId__
    """.split()
)
"""Names that RocketMQ 5.5 gives a meaning. A user's header of such a name would change what a
broker does with the record, so it goes into an envelope."""

MULTI_TAG: Final = "*multi*"
"""Stands in TAGS when a record's tags are only in its envelope."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DELAY_LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (
        *(1, 5, 10, 30),
        *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
    )
)

ENVELOPE_HEAD: Final = Layout(
    "envelope head",
    Field("version", "u8", "1"),
    Field("flags", "u8", "1: there is a key; 2: the value is null"),
    Field("key_size", "u32", "bytes of the key, which follows"),
    size=6,
)
ENVELOPE_VERSION: Final = 1
ENVELOPE_HAS_KEY: Final = 1
ENVELOPE_NULL_VALUE: Final = 2

# ------------------------------------------------------------------------------------ queues

QUEUE_UNIT: Final = Layout(
    "consume queue unit",
    Field("position", "i64", "where the record starts in the log"),
    Field("size", "i32", "bytes of the record; 0 or less: no unit"),
    Field("tag_code", "i64", "hash of TAGS, sign-extended; 0 without; delivery time if delayed"),
    size=20,
)
PRE_BLANK: Final = QUEUE_UNIT.pack(0, 0x7FFF_FFFF, 0)
"""A unit for an offset that the queue never held: it began, or went on, after it."""

BATCH_UNIT: Final = Layout(
    "batch consume queue unit",
    Field("position", "i64", "where the record starts in the log"),
    Field("size", "i32", "bytes of the record"),
    Field("tag_code", "i64", "hash of the outer TAGS; 0 without"),
    Field("store_timestamp_ms", "i64", "STORETIMESTAMP of the record"),
    Field("base_offset", "i64", "offset of the first message in the batch"),
    Field("count", "i16", "messages in the batch"),
    Field("compacted_offset", "i32", "-1"),
    Field("reserved", "i32", "0"),
    size=46,
)

QUEUE_EXT_UNIT: Final = Layout(
    "consume queue extension unit",
    Field("size", "i16", "whole unit; -1: go on in the next file"),
    Field("tag_code", "i64", "the code that the queue unit's address stands for"),
    Field("store_timestamp_ms", "i64", "STORETIMESTAMP of the record"),
    Field("bitmap_size", "i16", "bytes of the filter bitmap, which follows"),
    size=20,
)

KIND_SIMPLE: Final = 0
KIND_BATCH: Final = 1
BATCH_COUNT_MAX: Final = 32_767

TIME_BLOCK: Final = 1024
"""Offsets per block of the time lookup, which keeps the greatest BORNTIMESTAMP of each."""

BLOCK_MAX_NONE: Final = -1
BLOCK_MAX_UNKNOWN: Final = (1 << 63) - 1
"""A cut removed records from the block: its maximum may be anything, so look into it."""

GAP_MAX: Final = 1 << 20
"""Most offsets that a replay fills with pre-blanks; a longer gap is damage, not 20 GB of units."""

# ------------------------------------------------------------------------------ inner batches

INNER_HEAD: Final = Layout(
    "message of an inner batch, RocketMQ's form",
    Field("size", "i32", "whole message"),
    Field("magic", "i32", "0"),
    Field("body_crc", "i32", "0"),
    Field("flag", "i32", "the producer's, opaque"),
    Field("body_size", "i32", "bytes of the body; then i16 size of the properties, properties"),
    size=20,
)
KAFKA_BATCH: Final = Layout(
    "Kafka record batch",
    Field("base_offset", "i64", "offset of its first message; patched at the append"),
    Field("size", "i32", "bytes after this field"),
    Field("leader_epoch", "i32", "patched at the append"),
    Field("magic", "u8", "2"),
    Field("checksum", "u32", "CRC-32C of all that follows"),
    Field("attributes", "i16", "compression in bits 0 to 2, 8: log append time, 32: control"),
    Field("last_offset_delta", "i32", "offset of its last message, less the base offset"),
    Field("base_timestamp_ms", "i64", "timestamp of its first message"),
    Field("max_timestamp_ms", "i64", "greatest timestamp in it"),
    Field("producer_id", "i64", "-1: none"),
    Field("producer_epoch", "i16", "-1: none"),
    Field("base_sequence", "i32", "-1: none"),
    Field("count", "i32", "messages in it"),
    size=61,
)

# --------------------------------------------------------------------------------- key index

INDEX_HEADER: Final = Layout(
    "index header",
    Field("begin_timestamp_ms", "i64", "STORETIMESTAMP of the first record indexed here"),
    Field("end_timestamp_ms", "i64", "of the last one"),
    Field("begin_position", "i64", "position of the first record indexed here"),
    Field("end_position", "i64", "of the last one"),
    Field("slots_used", "i32", "slots that are not empty"),
    Field("entry_count", "i32", "number of the next entry; entry 0 is never used"),
    size=40,
)
INDEX_SLOT_SIZE: Final = 4
INDEX_ENTRY: Final = Layout(
    "index entry",
    Field("hash", "i32", "hash of `topic#key`, without its sign"),
    Field("position", "i64", "where the record starts in the log"),
    Field("seconds", "i32", "STORETIMESTAMP since begin_timestamp_ms, whole seconds"),
    Field("previous", "i32", "number of the next older entry of this slot; 0: none"),
    size=20,
)

CHECKPOINT: Final = Layout(
    "checkpoint",
    Field("log_timestamp_ms", "i64", "STORETIMESTAMP up to which the log is flushed"),
    Field("queues_timestamp_ms", "i64", "… the queues are flushed"),
    Field("index_timestamp_ms", "i64", "… the key index is flushed"),
    Field("flushed_position", "i64", "masterFlushedOffset: the log is on the device up to here"),
    Field("confirmed_position", "i64", "confirmPhyOffset"),
    Field("queues_position", "i64", "logicsPhysicalOffset: queues are flushed up to here"),
    size=48,
)
CHECKPOINT_FILE_SIZE: Final = 4096

CONTROL_SUFFIX: Final = "%ctl"
"""Ends the topic of a shard's control records."""


def index_file_size(slots: int, entries_max: int) -> int:
    return INDEX_HEADER.size + INDEX_SLOT_SIZE * slots + INDEX_ENTRY.size * entries_max


# ------------------------------------------------------------------------------------ values


class RawRecord(Struct, frozen=True):
    """A record as RocketMQ defines it, nothing interpreted.

    Text is UTF-8 with surrogate escapes. `properties` holds the entries in stored order;
    `raw_properties` the bytes they came from. The field order is part of the native extension's
    interface.
    """

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    size: int
    version: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    body_crc: int
    properties: tuple[tuple[str, str], ...]
    raw_properties: bytes


class Damage(Struct, frozen=True):
    """Why the bytes at `position` are not a record. A value, not an exception: a torn tail is the
    normal end of a log after a crash, and recovery decides what it means."""

    position: int
    reason: str


# -------------------------------------------------------------------------------------- keys


def java_hash(text: str) -> int:
    """Return `String.hashCode()` of `text`: over UTF-16 units, as a signed 32-bit number."""
    return java_hash_after(0, text)


def java_hash_after(start: int, text: str) -> int:
    """Return the hash of some text followed by `text`, where `start` is the hash of the former."""
    value = start & 0xFFFF_FFFF
    for unit in text.encode() if text.isascii() else _utf16_units(text):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - (1 << 32) if value & 0x8000_0000 else value


def _utf16_units(text: str) -> tuple[int, ...]:
    data = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(data) // 2}H", data)


@lru_cache(maxsize=4096)
def tag_code(tag: str) -> int:
    """Return what a queue unit holds for TAGS = `tag`, an int64."""
    return java_hash(tag)


def index_hash(hashed: int) -> int:
    """Return what an index entry holds for a text whose `java_hash` is `hashed`."""
    return 0 if hashed == -(1 << 31) else abs(hashed)


def key_token(key: bytes) -> str:
    """Return the text that stands in KEYS for the key of an envelope."""
    return f"~{zlib.crc32(key):08x}{len(key):x}"


def is_plain_key(key: bytes) -> bool:
    """Say whether KEYS can hold `key` itself: RocketMQ splits KEYS at spaces, and properties at
    0x01 and 0x02."""
    return b" " not in key and _plain_text(key) is not None


def index_strings(key: bytes) -> tuple[str, ...]:
    """Return the texts under which records of `key` may stand in the key index.

    Records hold a plain key as it is, or its token when they are envelopes for another reason (a
    tombstone, say). Of a foreign record whose whole KEYS is `key`, each word is indexed.
    """
    token = key_token(key)
    text = _plain_text(key)
    if text is None:
        return (token,)
    words = [word for word in text.split(" ") if word]
    if words == [text]:
        return (text, token)
    return (token, words[0]) if words else (token,)


def _plain_text(data: bytes) -> str | None:
    """Return `data` as text, or None when a property could not hold it."""
    if not data or NAME_END in data or VALUE_END in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def is_reserved(name: str) -> bool:
    """Say whether a property of this name means something to RocketMQ or to Penstock."""
    return name in RESERVED_PROPERTIES or name.startswith(RESERVED_PREFIXES)
