"""The byte loops of the store in Python: the specification of the native extension, its stand-in
where it was not built, and the oracle of its tests."""

from penstock.codec.format import java_hash
from penstock.codec.pure.append_path import AppendPath, all_fit
from penstock.codec.pure.appender import Appender
from penstock.codec.pure.copying import find_special
from penstock.codec.pure.group_commit import GroupCommit
from penstock.codec.pure.read.batch_keys import index_fill, read_keys
from penstock.codec.pure.read.codec import (
    check_log,
    crc_patch,
    decode_raw,
    encode_raw,
    find_record,
    prefault,
)
from penstock.codec.pure.read.columns import read_columns
from penstock.codec.pure.read.inflating import inflate_body
from penstock.codec.pure.read.inner_batch import decode_inner
from penstock.codec.pure.read.kafka_batch import set_tag_header
from penstock.codec.pure.read.key_index import index_lookup, index_relink
from penstock.codec.pure.read.point_read import index_newest, read_one
from penstock.codec.pure.read.reading import read_batches, read_records
from penstock.codec.pure.read.tier_records import (
    block_checksums,
    copy_records,
    index_records,
    place_records,
)
from penstock.codec.pure.write_lock import WriteLock

__all__ = [
    "AppendPath",
    "Appender",
    "GroupCommit",
    "WriteLock",
    "all_fit",
    "block_checksums",
    "check_log",
    "copy_records",
    "crc_patch",
    "decode_inner",
    "decode_raw",
    "encode_raw",
    "find_record",
    "find_special",
    "index_fill",
    "index_lookup",
    "index_newest",
    "index_records",
    "index_relink",
    "inflate_body",
    "java_hash",
    "place_records",
    "prefault",
    "read_batches",
    "read_columns",
    "read_keys",
    "read_one",
    "read_records",
    "set_tag_header",
]
