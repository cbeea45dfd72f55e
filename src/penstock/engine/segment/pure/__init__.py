"""The byte loops of the store in Python: the specification of the native extension, its stand-in
where it was not built, and the oracle of its tests."""

from penstock.engine.segment.format import java_hash
from penstock.engine.segment.pure.appender import Appender
from penstock.engine.segment.pure.batch_keys import index_fill, read_keys
from penstock.engine.segment.pure.codec import (
    check_log,
    crc_patch,
    decode_raw,
    encode_raw,
    find_record,
    warm,
)
from penstock.engine.segment.pure.columns import read_columns
from penstock.engine.segment.pure.inflating import inflate_body
from penstock.engine.segment.pure.inner_batch import decode_inner
from penstock.engine.segment.pure.intake import Intake, all_fit
from penstock.engine.segment.pure.kafka_batch import set_tag_header
from penstock.engine.segment.pure.key_index import index_lookup, index_relink
from penstock.engine.segment.pure.reading import read_batches, read_records
from penstock.engine.segment.pure.single import index_newest, read_one
from penstock.engine.segment.pure.sync_turns import SyncTurns
from penstock.engine.segment.pure.tier_records import (
    block_sums,
    copy_records,
    index_records,
    place_records,
)
from penstock.engine.segment.pure.write_lock import WriteLock

__all__ = [
    "Appender",
    "Intake",
    "SyncTurns",
    "WriteLock",
    "all_fit",
    "block_sums",
    "check_log",
    "copy_records",
    "crc_patch",
    "decode_inner",
    "decode_raw",
    "encode_raw",
    "find_record",
    "index_fill",
    "index_lookup",
    "index_newest",
    "index_records",
    "index_relink",
    "inflate_body",
    "java_hash",
    "place_records",
    "read_batches",
    "read_columns",
    "read_keys",
    "read_one",
    "read_records",
    "set_tag_header",
    "warm",
]
