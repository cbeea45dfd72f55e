"""Keys inside batches as entries of an index: read alike, and put into its files alike."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from tests.codec.kafka_builder import kafka_batch
from tests.codec.record_strategies import any_bytes
from tests.codec.workbench import NOW, Workbench

from penstock.codec.format import (
    KIND_BATCH,
    index_file_size,
    index_hash,
    index_strings,
    java_hash,
)
from penstock.codec.select import Core
from penstock.record import Record

ENTRY = struct.Struct(">Iqq")
TOPIC, QUEUE = "orders", 0
LARGE = 1 << 30

keys = st.none() | any_bytes | st.sampled_from([b"a", b"b", b"a b", b"\x01", b"", "ü".encode()])
batches = st.lists(st.lists(keys, min_size=1, max_size=5), min_size=1, max_size=4)


def filled(core: Core, batches: list[list[bytes | None]]) -> Workbench:
    bench = Workbench(core, kind=KIND_BATCH, first_offset=7)
    for each in batches:
        body = kafka_batch([Record(value=b"v", key=key) for key in each])
        bench.appender.append_batch(bench.handle, body, len(each), NOW, 4, NOW, None, True)
    return bench


def read(core: Core, bench: Workbench, start: int, deleted: list[tuple[int, int]]) -> object:
    return core.read_keys(
        bytes(bench.log), 0, bench.units, start, TOPIC, QUEUE, LARGE, LARGE, deleted, NOW
    )


def hash_of(key: bytes) -> int:
    return index_hash(java_hash(f"{TOPIC}#{index_strings(key)[0]}"))


def searched_as(key: bytes) -> list[bytes]:
    """A message is found by its key, and by the words of one that RocketMQ would split."""
    return [key, *key.split(b" ")] if b" " in key else [key]


@given(batches=batches, skip=st.integers(0, 6), deleted=st.integers(7, 20))
def test_each_key_of_a_batch_is_an_entry_with_its_place(
    core: Core, batches: list[list[bytes | None]], skip: int, deleted: int
) -> None:
    bench = filled(core, batches)
    found = read(core, bench, 7 + skip, [(deleted, deleted + 1)])
    expected: list[tuple[int, int, int]] = []
    offset = 7
    for place, each in zip(bench.raws(), batches, strict=True):
        hashes: set[int] = set()
        for key in each:
            if key is not None and offset >= 7 + skip and offset != deleted:
                hashes.update(hash_of(each) for each in searched_as(key))
            offset += 1
        expected += [(hashed, place.position, NOW) for hashed in sorted(hashes)]
    assert isinstance(found, tuple)
    assert list(ENTRY.iter_unpack(found[0])) == expected
    assert found[1] == max(offset, 7 + skip)
    assert found[3] is None


@given(
    entries=st.lists(
        st.tuples(st.integers(0, (1 << 31) - 1), st.integers(0, 1 << 40), st.integers(0, 1 << 41)),
        max_size=12,
    ),
    room=st.integers(2, 8),
)
def test_an_index_is_filled_alike_as_far_as_there_is_room(
    both: tuple[Core, Core], entries: list[tuple[int, int, int]], room: int
) -> None:
    packed = b"".join(ENTRY.pack(*entry) for entry in entries)
    files = [bytearray(index_file_size(3, room)) for _ in both]
    added = [core.index_fill(file, 3, room, packed) for core, file in zip(both, files, strict=True)]
    assert added == [min(len(entries), room - 1)] * 2
    assert files[0] == files[1]
    again = [core.index_fill(file, 3, room, packed) for core, file in zip(both, files, strict=True)]
    assert again[0] == again[1]
    assert files[0] == files[1]
