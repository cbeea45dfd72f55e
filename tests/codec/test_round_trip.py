"""Any record comes back as it was handed over; plain ones are plain for RocketMQ, too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.codec.record_strategies import (
    INT64,
    any_records,
    any_text,
    hosts,
    plain_records,
    topics,
)
from tests.codec.workbench import HOST, NOW, Workbench

from penstock.codec.format import (
    ENVELOPE,
    FLAG_BORN_IPV6,
    FLAG_STORE_IPV6,
    KEYS,
    KIND_BATCH,
    KIND_SIMPLE,
    MULTI_TAG,
    TAGS,
    RawRecord,
    key_token,
)
from penstock.codec.properties import join, lookup
from penstock.codec.select import Core
from penstock.errors import BadRequestError
from penstock.record import Offset, Record, StoredRecord

LONG_AGO = -(1 << 63)


def as_stored(record: Record, offset: int, epoch: int) -> StoredRecord:
    return StoredRecord(
        Offset(offset),
        record.value,
        record.key,
        record.tags,
        record.headers,
        NOW if record.timestamp_ms is None else record.timestamp_ms,
        record.expires_at_ms,
        NOW,
        epoch,
    )


@given(
    records=st.lists(any_records, min_size=1, max_size=6),
    as_group=st.booleans(),
    kind=st.sampled_from([KIND_SIMPLE, KIND_BATCH]),
    topic=topics,
    pair=st.tuples(hosts, hosts),
)
def test_any_record_comes_back_as_it_was(
    core: Core,
    records: list[Record],
    as_group: bool,
    kind: int,
    topic: str,
    pair: tuple[bytes, bytes],
) -> None:
    bench = Workbench(core, topic=topic, kind=kind, hosts=pair, first_offset=7)
    if as_group:
        assert bench.append(*records, epoch=3) == 7
    else:
        assert [bench.append(record, epoch=3) for record in records] == [
            7 + n for n in range(len(records))
        ]
    page, next_offset, _, damage = bench.read(now_ms=LONG_AGO)
    expired = [r.expires_at_ms == LONG_AGO for r in records]
    assert damage is None
    assert next_offset == 7 + len(records)
    assert page == [
        as_stored(record, 7 + n, 3) for n, record in enumerate(records) if not expired[n]
    ]
    assert [(raw.store_host, raw.born_host) for raw in bench.raws()] == [pair] * len(records)


@given(record=plain_records)
def test_a_plain_record_is_plain_for_rocketmq(core: Core, record: Record) -> None:
    bench = Workbench(core)
    bench.append(record)
    raw = bench.raw(0)
    found = lookup(raw.properties)
    assert raw.body == record.value
    assert ENVELOPE not in found
    assert found.get(KEYS) == (None if record.key is None else record.key.decode())
    assert found.get(TAGS) == (record.tags[0] if record.tags else None)
    assert all(found[name] == (value or b"").decode() for name, value in record.headers)
    assert raw.properties[-1][0] == "__CRC32#"


@pytest.mark.parametrize(
    "record",
    [
        Record(value=None),
        Record(value=b"v", key=b""),
        Record(value=b"v", key=b"two words"),
        Record(value=b"v", key=b"\xff"),
        Record(value=b"v", key=b"a\x01b"),
        Record(value=b"v", tags=("a", "b")),
        Record(value=b"v", tags=("",)),
        Record(value=b"v", tags=("a\x02b",)),
        Record(value=b"v", headers=(("a", b"1"), ("a", b"2"))),
        Record(value=b"v", headers=(("", b"1"),)),
        Record(value=b"v", headers=(("a", b""),)),
        Record(value=b"v", headers=(("a", None),)),
        Record(value=b"v", headers=(("DELAY", b"3"),)),
        Record(value=b"v", headers=(("PSTK_ANY", b"3"),)),
        Record(value=b"v", headers=(("INNER_ANY", b"3"),)),
        Record(value=b"v", headers=(("a", b"\xff"),)),
        Record(value=b"v", headers=(("a", b"x" * 40_000),)),
        Record(value=b"v", tags=("t" * 40_000,)),
    ],
)
def test_what_properties_cannot_hold_travels_in_an_envelope(core: Core, record: Record) -> None:
    bench = Workbench(core, size=1 << 18)
    bench.append(record)
    assert lookup(bench.raw(0).properties)[ENVELOPE] == "1"
    assert bench.records() == [as_stored(record, 0, 0)]


def test_an_envelope_is_found_by_a_token_of_its_key(core: Core) -> None:
    bench = Workbench(core)
    bench.append(Record(value=None, key=b"order-1"))
    bench.append(Record(value=b"v", key=b""))
    tokens = [lookup(raw.properties)[KEYS] for raw in bench.raws()]
    assert tokens == [key_token(b"order-1"), key_token(b"")]
    assert tokens == ["~e0b37fef7", "~000000000"]


def test_an_envelope_shows_its_tag_where_it_can(core: Core) -> None:
    bench = Workbench(core, size=1 << 18)
    for tags in (("one",), ("one", "two"), ("odd\x01",), ("t" * 40_000,), ()):
        bench.append(Record(value=None, tags=tags))
    shown = [lookup(raw.properties).get(TAGS) for raw in bench.raws()]
    assert shown == ["one", MULTI_TAG, MULTI_TAG, MULTI_TAG, None]


def test_a_tag_that_fills_the_properties_is_plain_to_the_last_byte(core: Core) -> None:
    """32,767 bytes: TAGS, its two separators, and the checksum's 20."""
    bench = Workbench(core, size=1 << 18)
    fitting = "t" * (32_767 - 4 - 2 - 20)
    bench.append(Record(value=b"", tags=(fitting,)))
    bench.append(Record(value=b"", tags=(fitting + "t",)))
    first, second = bench.raws()
    assert len(first.raw_properties) == 32_767
    assert ENVELOPE not in lookup(first.properties)
    assert ENVELOPE in lookup(second.properties)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (Record(value=b"", tags=("\ud800",)), "tag"),
        (Record(value=b"", headers=(("\ud800", b""),)), "header"),
        (Record(value=b"", tags=("\udcc3\udca9",)), "tag"),
    ],
)
def test_text_that_no_bytes_stand_for_is_refused(core: Core, record: Record, field: str) -> None:
    bench = Workbench(core)
    with pytest.raises(BadRequestError, match=field):
        bench.append(record)
    assert bench.end == 0


raw_records = st.builds(
    RawRecord,
    topic=topics.filter(lambda topic: len(topic.encode()) <= 127),
    queue_id=st.integers(-(1 << 31), (1 << 31) - 1),
    queue_offset=INT64,
    position=st.just(0),
    size=st.just(0),
    version=st.sampled_from([1, 2]),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    sys_flag=st.sampled_from([0, 2, 4, 8, 12, 64, 128, 769]),
    born_timestamp_ms=INT64,
    born_host=hosts,
    store_timestamp_ms=INT64,
    store_host=hosts,
    reconsume_times=st.integers(0, (1 << 31) - 1),
    prepared_transaction_offset=INT64,
    body=st.binary(max_size=50),
    body_crc=st.just(0),
    properties=st.lists(
        st.tuples(any_text, any_text).filter(
            lambda each: (
                not any(separator in text for text in each for separator in "\x01\x02")
                and not each[0].startswith("__CRC")
            )
        ),
        max_size=3,
    ).map(tuple),
    raw_properties=st.just(b""),
)


@given(raw=raw_records, checksum=st.booleans())
def test_raw_records_of_every_version_and_address_come_back(
    core: Core, raw: RawRecord, checksum: bool
) -> None:
    data = core.encode_raw(raw, checksum)
    found = core.decode_raw(data, 0, 0, True)
    assert isinstance(found, RawRecord), found
    flags = (FLAG_BORN_IPV6 if len(raw.born_host) == 20 else 0) | (
        FLAG_STORE_IPV6 if len(raw.store_host) == 20 else 0
    )
    kept = found.properties[:-1] if checksum else found.properties
    assert kept == raw.properties
    assert found.raw_properties.startswith(join(raw.properties))
    assert found.size == len(data)
    assert found.sys_flag == raw.sys_flag | flags
    for field in raw.__struct_fields__:
        if field not in {"size", "body_crc", "sys_flag", "properties", "raw_properties"}:
            assert getattr(found, field) == getattr(raw, field), field
    assert core.encode_raw(found, checksum) == data


def test_a_property_without_its_last_separator_is_read(core: Core) -> None:
    """Old clients of RocketMQ leave it out."""
    bench = Workbench(core)
    bench.append(Record(value=b"v", key=b"k", tags=("tag",)))
    raw = bench.raw(0)
    kept = replace(raw, properties=raw.properties[:-1])
    data = bytearray(core.encode_raw(kept, False)[:-1])
    data[:4] = len(data).to_bytes(4)
    at = data.rindex(b"KEYS") - 2
    data[at : at + 2] = (len(data) - at - 2).to_bytes(2)
    found = core.decode_raw(data, 0, 0, True)
    assert isinstance(found, RawRecord), found
    assert found.properties == (("KEYS", "k"), ("TAGS", "tag"))


def test_a_host_of_another_size_is_refused(core: Core) -> None:
    with pytest.raises(BadRequestError, match="host"):
        core.Appender(HOST, b"1234", 1 << 20)
