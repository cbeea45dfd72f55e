"""Records one by one: of a shard, of the log, by key, tag or time, and one with all its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.codec.format import FLAG_INNER_BATCH, RECORD_HEAD, Damage, RawRecord
from penstock.codec.select import core
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.errors import (
    BadRequestError,
    CorruptionError,
    RequestError,
    UnknownTopicError,
    UnreadableContentError,
)
from penstock.record import ShardId, StoredRecord

_RECORDS_PER_STEP: Final = 1_000


class Hit(NamedTuple):
    """A record and the shard it was found in."""

    shard: ShardId
    record: StoredRecord


class LogEntry(Struct, frozen=True):
    """A record as the log holds it, whatever shard it belongs to."""

    path: str
    position: int
    """In the log, not in the file."""
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    body_size: int
    properties: dict[str, str]


class RecordDetail(Struct, frozen=True):
    """A record with everything that the log says about it. In a batch shard the fields below
    `record` are those of the whole batch."""

    shard: ShardId
    record: StoredRecord
    entry: LogEntry
    version: int
    flag: int
    born_timestamp_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    in_batch: bool


def records(
    store: ReadOnlyStore,
    shard: ShardId,
    *,
    offset: int | None = None,
    until: int | None = None,
    tag: str | None = None,
    limit: int | None = None,
    pass_over: Callable[[UnreadableContentError], None] | None = None,
) -> Iterator[StoredRecord]:
    """Yield the records of [offset, until), all there are by default, at most `limit`. `pass_over`
    is called for what cannot be decoded; without it, that raises."""
    bounds = store.bounds(shard)
    next_offset = bounds.earliest if offset is None else offset
    end = bounds.commit if until is None else min(until, bounds.commit)
    left = limit
    while next_offset < end and (left is None or left > 0):
        count = _RECORDS_PER_STEP if left is None else min(_RECORDS_PER_STEP, left)
        try:
            page = store.read_page(shard, next_offset, max_records=count, tag=tag)
        except UnreadableContentError as error:
            if pass_over is None:
                raise
            pass_over(error)
            next_offset = error.next_offset
            continue
        for record in page.records:
            if record.offset >= end:
                return
            yield record
        left = None if left is None else left - len(page.records)
        if page.next_offset <= next_offset:
            return
        next_offset = page.next_offset


def find_by_key(
    store: ReadOnlyStore,
    shards: Iterable[ShardId],
    key: bytes,
    *,
    begin_ms: int = 0,
    end_ms: int | None = None,
    limit: int,
) -> Iterator[Hit]:
    """Yield the records of a key, newest first in each shard, at most `limit`."""
    left = limit
    for shard in shards:
        matches = store.query_by_key(shard, key, begin_ms=begin_ms, end_ms=end_ms, limit=left)
        yield from (Hit(shard, record) for record in matches)
        left -= len(matches)
        if left <= 0:
            return


def find_by_tag(
    store: ReadOnlyStore, shards: Iterable[ShardId], tag: str, *, limit: int
) -> Iterator[Hit]:
    """Yield the records of a tag, oldest first in each shard, at most `limit`."""
    left = limit
    for shard in shards:
        for record in records(store, shard, tag=tag, limit=left):
            yield Hit(shard, record)
            left -= 1
        if left <= 0:
            return


def find_by_time(
    store: ReadOnlyStore, shards: Iterable[ShardId], timestamp_ms: int
) -> Iterator[Hit]:
    """Yield the first record of each shard with this timestamp or a later one."""
    for shard in shards:
        offset = store.offset_by_timestamp(shard, timestamp_ms)
        if offset is not None:
            yield from (Hit(shard, record) for record in store.read(shard, offset, max_records=1))


def shards_named(store: ReadOnlyStore, name: str | None) -> list[ShardId]:
    """Return the shard of this name, or all shards of the topic of this name, or all there are."""
    known = store.shards()
    if name is None:
        return known
    shards = [shard for shard in known if name in (shard.name, shard.topic)]
    if not shards:
        raise UnknownTopicError(name)
    return shards


def record_detail(store: ReadOnlyStore, shard: ShardId, offset: int) -> RecordDetail:
    """Return one record; raise a `RequestError` that says why when there is none to be read."""
    stored_records = store.read(shard, offset, max_records=1)
    if not stored_records or stored_records[0].offset != offset:
        raise RequestError(_why_not(store, shard, offset))
    (data,) = store.read_raw(shard, offset, max_records=1)
    raw = _decode(data)
    return RecordDetail(
        shard=shard,
        record=stored_records[0],
        entry=_entry(store, raw),
        version=raw.version,
        flag=raw.flag,
        born_timestamp_ms=raw.born_timestamp_ms,
        born_host=_host(raw.born_host),
        store_host=_host(raw.store_host),
        reconsume_times=raw.reconsume_times,
        prepared_transaction_offset=raw.prepared_transaction_offset,
        body_crc=raw.body_crc,
        in_batch=bool(raw.sys_flag & FLAG_INNER_BATCH),
    )


def _why_not(store: ReadOnlyStore, shard: ShardId, offset: int) -> str:
    bounds = store.bounds(shard)
    if not bounds.earliest <= offset < bounds.commit:
        return f"shard {shard.name!r} holds offsets [{bounds.earliest}, {bounds.commit})"
    if store.state(shard).is_deleted(offset):
        return f"the record at offset {offset} of {shard.name!r} was deleted"
    return f"the record at offset {offset} of {shard.name!r} has expired"


def log_entries(store: ReadOnlyStore, *, start: int | None = None) -> Iterator[LogEntry]:
    """Yield the records of the log in their order, from position `start` on, until it ends or is
    damaged. `start` must be where a record begins."""
    files = store.snapshot().files
    if start is not None and not files.holds(start):
        raise BadRequestError(f"the log holds positions [{files.start}, {files.stop})")
    position = files.start if start is None else start
    while position < files.stop:
        base = files.base_of(position)
        buffer = files.buffer(base)
        # One record, a blank, or the end: whatever stands here.
        after, _, damage = core.check_log(buffer, base, position, base + len(buffer), files.strict)
        stop = after if damage is None else damage.position
        while position < stop:
            raw = core.decode_raw(buffer, base, position, False)
            if isinstance(raw, Damage):
                break
            yield _entry(store, raw)
            position += raw.size
        if damage is not None:
            path = files.path_of(base)
            raise CorruptionError(path, position=damage.position - base, reason=damage.reason)
        if after < base + len(buffer):
            return
        position = base + files.file_size


def _entry(store: ReadOnlyStore, raw: RawRecord) -> LogEntry:
    return LogEntry(
        path=store.snapshot().files.path_of(raw.position),
        position=raw.position,
        size=raw.size,
        topic=raw.topic,
        queue_id=raw.queue_id,
        queue_offset=raw.queue_offset,
        sys_flag=raw.sys_flag,
        store_timestamp_ms=raw.store_timestamp_ms,
        body_size=len(raw.body),
        properties=dict(raw.properties),
    )


def _decode(data: bytes) -> RawRecord:
    start = RECORD_HEAD.position_of("position")
    position = int.from_bytes(data[start : start + 8], "big")
    raw = core.decode_raw(data, position, position, True)
    assert isinstance(raw, RawRecord), "the store has checked it"
    return raw


def _host(host: bytes) -> str:
    """Return an address and port as people write them."""
    port = int.from_bytes(host[-4:], "big")
    if len(host) == 8:
        return ".".join(str(byte) for byte in host[:4]) + f":{port}"
    groups = [host[start : start + 2].hex() for start in range(0, 16, 2)]
    return f"[{':'.join(groups)}]:{port}"
