"""Bodies that RocketMQ's clients compressed: read as what was sent, raw as they lie.

The compressed data below was made by the compressors that RocketMQ's clients use (deflate with a
zlib head, LZ4's frame, Zstandard's frame), or by the same of another implementation.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from typing import Final

import lz4.frame
import pytest
import zstandard
from tests.codec.workbench import LIMIT

from penstock.codec import pure
from penstock.codec.codes import FIELD_VALUE
from penstock.codec.format import (
    BATCH_UNIT,
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    INNER_BASE,
    INNER_NUM,
    KIND_SIMPLE,
    QUEUE_UNIT,
    Damage,
    RawRecord,
)
from penstock.codec.interface import Core, ReadPage
from penstock.errors import NotSupportedError

OLD: Final = FLAG_COMPRESSED  # clients that knew no other kind did not say which
LZ4: Final = FLAG_COMPRESSED | 1 << 8
ZSTD: Final = FLAG_COMPRESSED | 2 << 8
ZLIB: Final = FLAG_COMPRESSED | 3 << 8
UNKNOWN: Final = FLAG_COMPRESSED | 4 << 8
KINDS: Final = (OLD, LZ4, ZSTD, ZLIB)

TEXT: Final = b"penstock " * 40 + b"and something else"


def compress(data: bytes, flags: int) -> bytes:
    if flags == LZ4:
        return bytes(lz4.frame.compress(data))
    if flags == ZSTD:
        return zstandard.compress(data)
    return zlib.compress(data)


def record(core: Core, body: bytes, flags: int, properties: tuple[tuple[str, str], ...]) -> bytes:
    raw = RawRecord(
        topic="t",
        queue_id=0,
        queue_offset=0,
        position=0,
        size=0,
        version=1,
        flag=0,
        sys_flag=flags,
        born_timestamp_ms=7,
        born_host=bytes(8),
        store_timestamp_ms=8,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        body_crc=0,
        properties=properties,
        raw_properties=b"",
    )
    return core.encode_raw(raw, False)


def read(
    core: Core,
    body: bytes,
    flags: int,
    *,
    properties: tuple[tuple[str, str], ...] = (),
    tag: str | None = None,
) -> ReadPage:
    log = record(core, body, flags, properties)
    unit = QUEUE_UNIT.pack(0, len(log), core.java_hash(dict(properties).get("TAGS", "")))
    return core.read_records(log, 0, unit, 0, "t", 0, 9, LIMIT, (), 0, tag, None)


@pytest.mark.parametrize("flags", KINDS)
@pytest.mark.parametrize("text", [TEXT, b"x", bytes(100_000), random.Random(1).randbytes(70_000)])
def test_a_compressed_body_is_read_as_what_was_sent(core: Core, flags: int, text: bytes) -> None:
    (found,), after, size, damage = read(core, compress(text, flags), flags)
    assert found.value == text
    assert (after, damage) == (1, None)
    assert size >= len(text), "a page is as long as what it hands out"


@pytest.mark.parametrize("flags", KINDS)
def test_columns_hold_what_was_sent(core: Core, flags: int) -> None:
    log = record(core, compress(TEXT, flags), flags, ())
    unit = QUEUE_UNIT.pack(0, len(log), 0)
    columns, _, _, damage = core.read_columns(
        log, 0, unit, KIND_SIMPLE, 0, "t", 0, 9, LIMIT, (), 0, None, FIELD_VALUE
    )
    assert damage is None
    assert columns["value"][2] == TEXT


@pytest.mark.parametrize("flags", KINDS)
def test_raw_stays_raw(core: Core, flags: int) -> None:
    body = compress(TEXT, flags)
    raw = core.decode_raw(record(core, body, flags, ()), 0, 0, True)
    assert isinstance(raw, RawRecord)
    assert raw.body == body


@pytest.mark.parametrize("flags", KINDS)
def test_every_cut_of_a_compressed_body_is_damage(core: Core, flags: int) -> None:
    body = compress(TEXT, flags)
    for end in range(5, len(body) - (4 if flags == LZ4 else 0)):
        records, after, _, damage = read(core, body[:end], flags)
        assert (records, after) == ([], 0), end
        assert isinstance(damage, Damage)
        assert "does not decompress" in damage.reason


@pytest.mark.parametrize("flags", KINDS)
def test_no_garbage_in_a_compressed_body_does_harm(core: Core, flags: int) -> None:
    chance = random.Random(flags)
    body = compress(TEXT, flags)
    for _ in range(300):
        broken = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            broken[chance.randrange(4, len(body))] = chance.randrange(256)
        records, after, _, damage = read(core, bytes(broken), flags)
        assert after == len(records) == (damage is None)


def test_a_body_that_does_not_begin_as_its_flag_says_was_never_compressed(core: Core) -> None:
    for flags in KINDS:
        (found,), _, _, damage = read(core, b"as it is", flags)
        assert (found.value, damage) == (b"as it is", None)
        (found,), _, _, damage = read(core, b"", flags)
        assert (found.value, damage) == (b"", None)


def test_an_unknown_compression_is_damage(core: Core) -> None:
    records, _, _, damage = read(core, compress(TEXT, ZLIB), UNKNOWN)
    assert records == []
    assert damage is not None
    assert "unknown compression" in damage.reason


def test_a_body_may_not_inflate_without_bound(core: Core) -> None:
    deflater = zlib.compressobj()
    head = deflater.compress(b"") + deflater.flush(zlib.Z_FULL_FLUSH)
    megabyte = deflater.compress(bytes(1 << 20)) + deflater.flush(zlib.Z_FULL_FLUSH)
    _, _, _, damage = read(core, head + 257 * megabyte, ZLIB)
    assert damage is not None
    assert "256 MiB" in damage.reason


def test_what_is_not_wanted_is_not_inflated(core: Core) -> None:
    """… so that a look for a tag in compressed records costs no memory."""
    broken = compress(TEXT, ZLIB)[:-3]
    tags = (("TAGS", "a"),)
    records, after, _, damage = read(core, broken, ZLIB, properties=tags, tag="*multi*")
    assert (records, after, damage) == ([], 1, None)


def test_a_page_ends_before_inflated_bodies_pass_its_size(core: Core) -> None:
    body = compress(bytes(10_000), ZLIB)
    first = record(core, body, ZLIB, ())
    second = bytearray(first)
    struct.pack_into(">qq", second, 20, 1, len(first))  # offset and position
    units = QUEUE_UNIT.pack(0, len(first), 0) + QUEUE_UNIT.pack(len(first), len(first), 0)
    page = core.read_records(first + second, 0, units, 0, "t", 0, 9, 15_000, (), 0, None, None)
    assert (len(page[0]), page[1], page[3]) == (1, 1, None)


@pytest.mark.parametrize("flags", KINDS)
@pytest.mark.parametrize("inner", [False, True])
def test_compressed_records_of_batch_queues_are_read(core: Core, flags: int, inner: bool) -> None:
    message = struct.pack(">iiiii", 22 + len(TEXT), 0, 0, 0, len(TEXT)) + TEXT + bytes(2)
    body = compress(message if inner else TEXT, flags)
    properties = ((INNER_NUM, "1"), (INNER_BASE, "0"))
    log = record(core, body, flags | (FLAG_INNER_BATCH if inner else 0), properties)
    unit = BATCH_UNIT.pack(0, len(log), 0, 8, 0, 1, -1, 0)
    (found,), after, size, damage = core.read_batches(
        log, 0, unit, 0, "t", 0, 9, LIMIT, (), 0, None, None
    )
    assert (found.value, after, damage) == (TEXT, 1, None)
    assert size >= len(TEXT)


def test_one_record_by_the_shortest_way_is_never_a_compressed_one(core: Core) -> None:
    log = record(core, compress(TEXT, ZLIB), ZLIB, ())
    assert core.read_one(log, 0, 0, len(log), "t", 0, 0, 0, None) is None


def test_bodies_are_inflated_by_themselves(core: Core) -> None:
    for flags in KINDS:
        assert core.inflate_body(compress(TEXT, flags), flags) == TEXT
        with pytest.raises(ValueError, match="does not decompress"):
            core.inflate_body(compress(TEXT, flags)[:20], flags)


def test_without_a_decoder_the_pure_twin_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(NotSupportedError, match="zstandard"):
        pure.inflate_body(compress(TEXT, ZSTD), ZSTD)
