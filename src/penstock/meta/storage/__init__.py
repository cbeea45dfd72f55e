"""Where logs and state are stored: the database, its format, and the rows of offsets.

Other packages import from here.
"""

from penstock.meta.state.keys import after_prefix, decode_texts, encode_key
from penstock.meta.state.offsets.rows import (
    OFFSET_ROW,
    OFFSETS_TABLE,
    group_prefix,
    offset_key,
    unpack_offset,
    unpack_pair,
)
from penstock.meta.storage.database import ROOM_CHECKED_EVERY, Batch, Database, RocksDatabase
from penstock.meta.storage.log_format import FAMILIES

__all__ = [
    "FAMILIES",
    "OFFSETS_TABLE",
    "OFFSET_ROW",
    "ROOM_CHECKED_EVERY",
    "Batch",
    "Database",
    "RocksDatabase",
    "after_prefix",
    "decode_texts",
    "encode_key",
    "group_prefix",
    "offset_key",
    "unpack_offset",
    "unpack_pair",
]
