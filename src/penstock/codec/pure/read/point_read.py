"""One record by the shortest way. Whatever is not as expected is answered with None or -1, and the
caller takes the long way, which can tell why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.codec.format import is_plain_key, key_token
from penstock.codec.pure.read.key_index import index_lookup
from penstock.codec.pure.read.reading import LogFile, RecordFilter, read_at
from penstock.record import StoredRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

SIZE_MAX: Final = 4096
"""Longer records are read by the long way: natively, without the interpreter."""
ANY: Final = -1
_TIME_MAX: Final = (1 << 63) - 1


def read_one(
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
) -> StoredRecord | None:
    """Return the record at `position`, checked as any reader does, if it is of this queue, has
    `key` and is not expired. `size` and `offset` are what its unit says, or -1."""
    file = LogFile(log, base, topic, queue_id, strict=strict)
    if not file.holds(position):
        return None
    start = position - base
    stored = int.from_bytes(file.view[start : start + 4], "big", signed=True)
    if stored > SIZE_MAX or size not in (ANY, stored):
        return None
    record = read_at(file, RecordFilter((), now_ms, None, key), position, stored)
    if record is None or offset not in (ANY, record.offset):
        return None
    return record


def index_newest(index: Buffer, slots: int, entries_max: int, topic: str, key: bytes) -> int:
    """Return the newest position that an index file has for a plain key, or for its token; -1:
    none, or the key is not plain."""
    if not is_plain_key(key):
        return -1
    newest = [-1]
    for text in (key.decode(), key_token(key)):
        newest += index_lookup(index, slots, entries_max, f"{topic}#{text}", 0, _TIME_MAX, 1)
    return max(newest)
