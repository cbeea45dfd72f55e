"""Produce requests as the native parser reads them, and what it does with bytes that are none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.brokers.kafka.running import WireClient, running
from tests.brokers.kafka.wire.test_data_requests import PRODUCE, batch, make, patched, write

from penstock.brokers.kafka.produce.partition_writer import PartitionWriter
from penstock.brokers.kafka.wire.batch_validation import BadBatchError, check_head, check_records
from penstock.brokers.kafka.wire.schema import request_layout
from penstock.codec.select import native_only

SIZE_MAX = 1 << 20
names = st.text(min_size=1, max_size=200)
batches = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=300)), max_size=4)
topics = st.lists(st.tuples(names, batches), max_size=4)


def encoded(
    version: int,
    transactional_id: str | None,
    acks: int,
    requested: list[tuple[str, list[tuple[int, bytes]]]],
) -> bytes:
    out = bytearray()
    fields: Mapping[str, object] = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 1_000,
        "topic_data": [
            {
                "name": name,
                "partition_data": [{"index": index, "records": data} for index, data in parts],
            }
            for name, parts in requested
        ],
    }
    request_layout(PRODUCE, version).write(out, fields)
    return bytes(out)


@pytest.mark.parametrize("version", [3, 8, 9, 12])
@given(
    transactional_id=st.none() | st.text(max_size=150), acks=st.integers(-1, 1), requested=topics
)
def test_every_version_of_a_request_is_read_as_it_was_written(
    version: int,
    transactional_id: str | None,
    acks: int,
    requested: list[tuple[str, list[tuple[int, bytes]]]],
) -> None:
    request = encoded(version, transactional_id, acks, requested)
    found_id, found_acks, found = native_only().parse_produce(request, version >= 9)
    assert (found_id, found_acks) == (transactional_id, acks)
    assert [
        (name.decode(), [(index, request[start:end]) for index, start, end in parts])
        for name, parts in found
    ] == requested


@pytest.mark.parametrize("version", [3, 9])
def test_a_request_that_is_cut_short_anywhere_is_refused(version: int) -> None:
    request = encoded(version, "t", -1, [("orders", [(0, b"batch"), (1, b"")])])
    for size in range(len(request)):
        with pytest.raises(ValueError, match="at byte"):
            native_only().parse_produce(request[:size], version >= 9)


@given(data=st.binary(max_size=100), is_flexible=st.booleans())
def test_any_bytes_are_a_request_or_a_value_error(data: bytes, is_flexible: bool) -> None:
    try:
        _, _, found = native_only().parse_produce(data, is_flexible)
    except ValueError:
        return
    assert all(0 <= start <= end <= len(data) for _, parts in found for _, start, end in parts)


def test_arrays_larger_than_any_request_are_refused_before_they_are_walked() -> None:
    endless = b"\0" + b"\0\1" + bytes(4) + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(ValueError, match="too many elements"):
        native_only().parse_produce(endless, True)


@given(
    at=st.integers(0, 60) | st.none(),
    bit=st.integers(0, 7),
    is_resealed=st.booleans(),
    needs_keys=st.booleans(),
)
def test_the_short_check_agrees_with_the_long_one(
    at: int | None, bit: int, is_resealed: bool, needs_keys: bool
) -> None:
    data = bytearray(batch(b"one", b"two", b"three"))
    if at is not None:
        data[at] ^= 1 << bit
    if is_resealed:
        data = bytearray(patched(bytes(data)))
    view = memoryview(bytes(data))
    short = native_only().check_plain(view, SIZE_MAX, needs_keys)
    try:
        head = check_head(view, SIZE_MAX)
        native = native_only().check_batch
        long = check_records(view, head, SIZE_MAX, native, needs_keys=needs_keys)
    except BadBatchError:
        assert short is None
        return
    assert long is not None
    assert (short is None) == (long.codec != 0)
    assert short is None or (*short, False) == tuple(long)


def test_an_unforeseen_error_ends_its_connection_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as one, WireClient(one.server.port) as healthy:
        topic = make(one, "orders")
        with WireClient(one.server.port) as client, monkeypatch.context() as patch:
            patch.setattr(PartitionWriter, "check_quickly", _fail)
            with pytest.raises(ConnectionError):
                write(client, topic, batch(b"v"))
        assert write(healthy, topic, batch(b"v")).number("error_code") == 0


def _fail(*_: object) -> None:
    raise TypeError("planted")
