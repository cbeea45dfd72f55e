"""What RocketMQ wrote is read as RocketMQ reads it, and derived again byte for byte."""

from __future__ import annotations

import hashlib
import ipaddress

from tests.codec.golden_store import GoldenStore
from tests.codec.workbench import HOST, LIMIT

from penstock.codec.envelope import has_key
from penstock.codec.format import (
    BATCH_UNIT,
    CHECKPOINT,
    CHECKPOINT_FILE_SIZE,
    KIND_BATCH,
    KIND_SIMPLE,
    QUEUE_UNIT,
    RawRecord,
    index_file_size,
    index_strings,
)
from penstock.codec.properties import lookup
from penstock.codec.raw_message import stored_from_raw
from penstock.codec.select import Core
from penstock.record import StoredRecord

FOREVER = (1 << 63) - 1


def record_at(core: Core, golden: GoldenStore, position: int) -> RawRecord:
    log, base = golden.log_of(position)
    raw = core.decode_raw(log, base, position, True)
    assert isinstance(raw, RawRecord), raw
    return raw


def host_text(host: bytes) -> str:
    address = ipaddress.ip_address(host[:-4])
    port = int.from_bytes(host[-4:])
    if isinstance(address, ipaddress.IPv4Address):
        return f"{address}:{port}"
    groups = address.exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups) + f":{port}"


def test_every_message_agrees_with_the_manifest_field_by_field(
    core: Core, golden: GoldenStore
) -> None:
    messages = list(golden.lines("msg"))
    assert len(messages) == 655
    for line in messages:
        position = line["physicalOffset"]
        assert isinstance(position, int)
        raw = record_at(core, golden, position)
        assert line == {
            **line,
            "topic": raw.topic,
            "queueId": raw.queue_id,
            "queueOffset": raw.queue_offset,
            "physicalOffset": raw.position,
            "size": raw.size,
            "magic": {1: "daa320a7", 2: "daa320ab"}[raw.version],
            "bodyCRC": raw.body_crc,
            "flag": raw.flag,
            "sysFlag": raw.sys_flag,
            "bornTimestamp": raw.born_timestamp_ms,
            "bornHost": host_text(raw.born_host),
            "storeTimestamp": raw.store_timestamp_ms,
            "storeHost": host_text(raw.store_host),
            "reconsumeTimes": raw.reconsume_times,
            "preparedTransactionOffset": raw.prepared_transaction_offset,
            "bodyLength": len(raw.body),
            "bodySha256": hashlib.sha256(raw.body).hexdigest(),
            "properties": lookup(raw.properties),
            "tags": lookup(raw.properties).get("TAGS"),
            "keys": lookup(raw.properties).get("KEYS"),
            "msgId": (raw.store_host + raw.position.to_bytes(8)).hex().upper(),
        }


def test_every_record_is_encoded_again_to_the_same_bytes(core: Core, golden: GoldenStore) -> None:
    for line in golden.lines("msg"):
        position = line["physicalOffset"]
        assert isinstance(position, int)
        log, base = golden.log_of(position)
        raw = record_at(core, golden, position)
        index = position - base
        assert core.encode_raw(raw, False) == log[index : index + raw.size]


def test_every_log_file_is_sound_to_its_end(core: Core, golden: GoldenStore) -> None:
    counts = []
    for base, log in golden.logs.items():
        stop, records, damage = core.check_log(log, base, base, base + len(log))
        assert damage is None
        counts.append((stop, records))
    blanks = [line["physicalOffset"] for line in golden.lines("blank")]
    assert len(blanks) == 2
    assert [stop for stop, _ in counts[:2]] == [1 << 20, 2 << 20]
    assert counts[2][0] < 3 << 20
    assert sum(records for _, records in counts) == len(list(golden.lines("msg")))


def test_queues_and_index_are_derived_from_the_log_byte_for_byte(
    core: Core, golden: GoldenStore
) -> None:
    appender = core.Appender(HOST, HOST, 1 << 20)
    size = index_file_size(golden.slots, golden.entries_max)
    indexes = [bytearray(size) for _ in range(len(golden.index_files()) + 1)]
    for index in indexes:
        appender.attach_index(index, golden.slots, golden.entries_max)
    for base, log in golden.logs.items():
        *_, status, damage, _ = appender.replay(log, base, base, base + len(log), True, "%ctl")
        assert (status, damage) == (0, None)
    files = golden.queue_files()
    assert {(topic, queue, kind) for _, topic, queue, kind, _, _ in appender.queues()} == set(files)
    for handle, topic, queue, kind, _, _ in appender.queues():
        first, units = appender.peek_units(handle)
        expected = files[topic, queue, kind]
        assert first == 0
        assert units + bytes(len(expected) - len(units)) == expected
    assert indexes[:-1] == golden.index_files()
    assert not any(indexes[-1])


def test_queue_ends_agree_with_the_manifest(core: Core, golden: GoldenStore) -> None:
    appender = core.Appender(HOST, HOST, 1 << 20)
    for base, log in golden.logs.items():
        appender.replay(log, base, base, base + len(log), False, "")
    ends = {(topic, queue): end for _, topic, queue, _, end, _ in appender.queues()}
    lines = list(golden.lines("queue"))
    assert {(line["topic"], line["queueId"]): line["maxOffset"] for line in lines} == ends


def test_every_key_query_is_answered_as_rocketmq_answers_it(
    core: Core, golden: GoldenStore
) -> None:
    queries = list(golden.lines("key"))
    assert len(queries) == 595
    indexes = golden.index_files()
    for query in queries:
        topic, key = str(query["topic"]), str(query["key"]).encode()
        hits: list[int] = []  # a key that stands twice in KEYS is indexed, and found, twice
        for text in index_strings(key):
            for index in indexes:
                hits += core.index_lookup(
                    index, golden.slots, golden.entries_max, f"{topic}#{text}", 0, FOREVER, 999
                )
        found = []
        for position in sorted(hits):
            raw = record_at(core, golden, position)
            stored = stored_from_raw(raw)
            assert isinstance(stored, StoredRecord)
            if raw.topic == topic and has_key(stored, raw.properties, key):
                found.append(position)
        assert found == query["physicalOffsets"]


def test_every_queue_is_read_through_its_units(core: Core, golden: GoldenStore) -> None:
    """Everything that has a unit comes back, in order, from whichever file holds it."""
    for (topic, queue, kind), file in golden.queue_files().items():
        size = QUEUE_UNIT.size if kind == KIND_SIMPLE else BATCH_UNIT.size
        units = file[: -(-len(file.rstrip(b"\0")) // size) * size]
        (line,) = (
            each
            for each in golden.lines("queue")
            if (each["topic"], each["queueId"]) == (topic, queue)
        )
        offsets: list[int] = []
        next_offset = 0
        for base, log in golden.logs.items():
            if kind == KIND_SIMPLE:
                rest = units[next_offset * size :]
                page = core.read_records(
                    log, base, rest, next_offset, topic, queue, 999, LIMIT, (), 0, None, None
                )
            else:
                page = core.read_batches(
                    log, base, units, next_offset, topic, queue, 999, LIMIT, (), 0, None, None
                )
            records, next_offset, _, damage = page
            assert damage is None
            offsets += [record.offset for record in records]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) == line["maxOffset"]


def test_messages_of_inner_batches_carry_their_own_properties(
    core: Core, golden: GoldenStore
) -> None:
    (units,) = (each for (_, _, kind), each in golden.queue_files().items() if kind == KIND_BATCH)
    records, _, _, damage = core.read_batches(
        golden.logs[0], 0, units[: 46 * 30], 3, "TopicBCQ", 0, 4, LIMIT, (), 0, None, None
    )
    assert damage is None
    assert [record.offset for record in records] == [3, 4, 5, 6]
    assert all(record.value and record.store_timestamp_ms for record in records)
    raw = record_at(core, golden, 186092)
    inner = core.decode_inner(raw.body, False, 3, raw.store_timestamp_ms, 0)
    assert [message.value for message in inner] == [record.value for record in records[:3]]
    assert records[0].timestamp_ms == raw.born_timestamp_ms


def test_the_checkpoint_is_six_longs_in_a_page(golden: GoldenStore) -> None:
    data = (golden.root / "checkpoint").read_bytes()
    assert len(data) == CHECKPOINT_FILE_SIZE
    assert not any(data[CHECKPOINT.size :])
    log_ms, queues_ms, index_ms, flushed, confirmed, queues_position = CHECKPOINT.unpack_from(data)
    stamps = {line["storeTimestamp"] for line in golden.lines("msg")}
    assert {log_ms, queues_ms} <= stamps
    assert index_ms in stamps | {0}
    assert flushed >= 0
    assert confirmed >= 0
    assert queues_position in {line["physicalOffset"] for line in golden.lines("msg")} | {0}
