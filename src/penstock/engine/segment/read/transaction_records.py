"""Which records a producer wrote in a transaction: each says so itself (`PSTK_TXN`).

That is only asked for when the transaction is aborted. Most bytes in between are of others, so the
log is searched for the property first, and only ranges that hold its bytes are decoded.
"""

from __future__ import annotations

from typing import Final

from penstock.codec.format import NAME_END, TRANSACTION, VALUE_END, Damage
from penstock.codec.select import core
from penstock.engine.segment.read.raw_reader import split_raw_range
from penstock.engine.segment.store import SegmentStore
from penstock.record import ShardId

_RUN_SIZE: Final = 1 << 20


def find_transaction_records(
    store: SegmentStore, shard: ShardId, producer_id: int, start: int
) -> list[int]:
    """Return the offsets of the live records from `start` on that belong to a transaction of a
    producer, ascending."""
    offsets: list[int] = []
    offset, until = start, int(store.bounds(shard).commit)
    while offset < until:
        run, after = store.read_raw_range(shard, offset, max_size=_RUN_SIZE, until=until)
        offsets += transaction_records_in(run, producer_id)
        if after <= offset:
            break
        offset = after
    return offsets


def transaction_records_in(run: bytes, producer_id: int) -> list[int]:
    """Return the offsets of such records that lie one after the other."""
    text = str(producer_id)
    encoded_property = TRANSACTION.encode() + NAME_END + text.encode() + VALUE_END
    offsets: list[int] = []
    for record in split_raw_range(run) if encoded_property in run else ():
        if encoded_property not in record:
            continue
        raw = core.decode_raw(record, 0, 0, False)
        assert not isinstance(raw, Damage), "runs are checked"
        if dict(raw.properties).get(TRANSACTION) == text:
            offsets.append(raw.queue_offset)
    return offsets
