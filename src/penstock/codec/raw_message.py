"""The message of a record of the log, of any writer."""

from __future__ import annotations

from penstock.codec.envelope import Stamps, leader_epoch_of, stored_from_parts
from penstock.codec.format import FLAG_COMPRESSED, Damage, RawRecord
from penstock.codec.select import core
from penstock.record import StoredRecord


def body_of(raw: RawRecord) -> bytes:
    """Return the body as its producer handed it over; `ValueError` when a client of RocketMQ
    compressed it and it does not decompress."""
    if not raw.sys_flag & FLAG_COMPRESSED or not raw.body:
        return raw.body
    return core.inflate_body(raw.body, raw.sys_flag)


def stored_from_raw(raw: RawRecord) -> StoredRecord | Damage:
    """Return the message that `raw` holds, under its queue offset."""
    stamps = Stamps(
        raw.queue_offset,
        raw.born_timestamp_ms,
        raw.store_timestamp_ms,
        leader_epoch_of(raw.sys_flag, raw.prepared_transaction_offset),
    )
    try:
        return stored_from_parts(body_of(raw), raw.properties, stamps)
    except ValueError as error:
        return Damage(raw.position, str(error))
