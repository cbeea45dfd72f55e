"""Bytes that a released version wrote must stay readable, and be written again, for ever.

`penstock-v1.txt` is never regenerated. A new format version adds a file; it does not change one.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from tests.codec.kafka_builder import kafka_batch
from tests.codec.test_batches import inner_message
from tests.codec.workbench import HOST, HOST_IPV6, NOW

from penstock.codec.format import KIND_BATCH, KIND_SIMPLE, index_file_size
from penstock.codec.select import Appender, Core
from penstock.record import Record

GOLDEN = Path(__file__).parents[1] / "golden" / "penstock-v1.txt"
FILE_SIZE = 6000
BASE = 1 << 32
SLOTS, ENTRIES = 7, 40
LONG_TOPIC = "t" * 130

SIMPLE = [
    Record(value=b"body", key=b"order-1", tags=("TagA",), headers=(("region", b"eu"),)),
    Record(value=b"", timestamp_ms=NOW - 77),
    Record(value=None, key=b"order-1", expires_at_ms=NOW + 1000),
    Record(value=b"v", key=b"", tags=("a", "b\udcff"), headers=(("h", None), ("h", b""))),
    Record(value=b"v", key=b"two words", tags=("one",), headers=(("KEYS", b"\xff"),)),
    Record(value="значение".encode(), key="键".encode(), tags=("标签",)),
]
BATCHED = [
    Record(value=b"k1", key=b"a", headers=(("h", b"x"),), timestamp_ms=NOW),
    Record(value=None, key=None, timestamp_ms=NOW + 5),
]


def written(core: Core) -> dict[str, str]:
    """Write everything that version 1 can write; return the bytes, as hexadecimal text."""
    log, index = bytearray(FILE_SIZE), bytearray(index_file_size(SLOTS, ENTRIES))
    appender = core.Appender(HOST, HOST, 1 << 20)
    appender.attach_log(log, BASE, BASE)
    appender.attach_index(index, SLOTS, ENTRIES)
    orders = appender.add_queue("orders", 3, KIND_SIMPLE, 10, 10)
    control = appender.add_queue("orders%ctl", 3, KIND_SIMPLE, 0, 0)
    batches = appender.add_queue("batches", 0, KIND_BATCH, 100, 4)
    long = appender.add_queue(LONG_TOPIC, 0, KIND_SIMPLE, 0, 0)
    for n, record in enumerate(SIMPLE):
        assert appender.append(orders, record, NOW + n * 400, 2) == 10 + n
    appender.append_many(orders, SIMPLE, NOW + 3000, 3, "17,1,5,6")
    appender.append(control, Record(value=b"delete"), NOW + 3001, 3)
    appender.append_batch(batches, kafka_batch(BATCHED), 2, NOW + 3002, 3, NOW, None, True)
    inner = inner_message(b"m1", b"KEYS\x01k\x02TAGS\x01t\x02") + inner_message(b"m2", b"")
    appender.append_batch(batches, inner, 2, NOW + 3003, 3, NOW, "17,1,11,2", False)
    appender.append(batches, SIMPLE[0], NOW + 3004, 3)
    appender.append(long, SIMPLE[0], NOW + 3005, 3)
    append_from_ipv6(core, appender, log)
    return {
        "log": log.rstrip(b"\0").hex(),
        "index": index.rstrip(b"\0").hex(),
        **{
            f"units of {topic[:10]}_{queue}": appender.peek_units(handle)[1].hex()
            for handle, topic, queue, _, _, _ in appender.queues()
        },
    }


def append_from_ipv6(core: Core, appender: Appender, log: bytearray) -> None:
    """End the log with a record that has long addresses, and a blank record."""
    other = core.Appender(HOST_IPV6, HOST_IPV6, 1 << 20)
    other.attach_log(log, BASE, appender.end)
    other.append(other.add_queue("ipv6", 0, KIND_SIMPLE, 0, 0), Record(value=b"6"), NOW + 3006, 3)
    other.finish_log()


def golden() -> dict[str, str]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_version_1_is_written_byte_for_byte(core: Core) -> None:
    assert written(core) == golden()


def test_version_1_is_read(core: Core) -> None:
    log = bytes.fromhex(golden()["log"]).ljust(FILE_SIZE, b"\0")
    units = bytes.fromhex(golden()["units of orders_3"])
    stop, count, damage = core.check_log(log, BASE, BASE, BASE + FILE_SIZE)
    assert (stop, count, damage) == (BASE + FILE_SIZE, 18, None)
    records, next_offset, _, damage = core.read_records(
        log, BASE, units, 10, "orders", 3, 99, 1 << 30, (), NOW, None, None
    )
    assert (next_offset, damage) == (22, None)
    assert [record.as_record() for record in records] == [
        stamped(record, born) for record, born in zip(SIMPLE * 2, born_times(), strict=True)
    ]
    assert [record.leader_epoch for record in records] == [2] * 6 + [3] * 6


def born_times() -> list[int]:
    return [NOW + n * 400 for n in range(6)] + [NOW + 3000] * 6


def stamped(record: Record, born: int) -> Record:
    return replace(record, timestamp_ms=born) if record.timestamp_ms is None else record


def test_version_1_batches_are_read(core: Core) -> None:
    log = bytes.fromhex(golden()["log"]).ljust(FILE_SIZE, b"\0")
    units = bytes.fromhex(golden()["units of batches_0"])
    records, next_offset, _, damage = core.read_batches(
        log, BASE, units, 100, "batches", 0, 99, 1 << 30, (), NOW, None, None
    )
    assert (next_offset, damage) == (105, None)
    values = [record.value for record in records]
    assert values == [b"k1", None, b"m1", b"m2", b"body"]
    assert [record.key for record in records] == [b"a", None, b"k", None, b"order-1"]
