"""One record by the shortest way: the same record as by the long way, or none."""

from __future__ import annotations

import pytest
from tests.codec.workbench import NOW, Workbench

from penstock.codec.format import RawRecord, index_strings
from penstock.codec.select import Core
from penstock.record import Record, StoredRecord

BASE = 1 << 20
KEYS = (b"k", b"k2", "schlüssel".encode(), b"\x00\xff", b"two words", b"~", b"")


def mixed(core: Core) -> Workbench:
    bench = Workbench(core, base=BASE, first_offset=7)
    for key in KEYS:
        bench.append(Record(b"v", key=key, tags=("t",), headers=(("h", b"1"),)))
        bench.append(Record(None, key=key, tags=("t", "u")))
    return bench


def one(
    bench: Workbench,
    raw: RawRecord,
    *,
    position: int | None = None,
    size: int | None = None,
    topic: str = "orders",
    queue_id: int = 0,
    offset: int | None = None,
    now_ms: int = NOW,
    key: bytes | None = None,
) -> StoredRecord | None:
    return bench.core.read_one(
        bench.log,
        BASE,
        raw.position if position is None else position,
        raw.size if size is None else size,
        topic,
        queue_id,
        raw.queue_offset if offset is None else offset,
        now_ms,
        key,
    )


def test_the_short_way_gives_what_the_long_way_gives(core: Core) -> None:
    bench = mixed(core)
    for raw, expected in zip(bench.raws(), bench.records(), strict=True):
        assert one(bench, raw) == expected
        assert one(bench, raw, size=-1, offset=-1) == expected
        for key in KEYS:
            assert one(bench, raw, key=key) == (expected if key == expected.key else None)


def test_a_record_that_its_unit_does_not_speak_of_is_not_given(core: Core) -> None:
    bench = mixed(core)
    raw = bench.raws()[2]
    assert one(bench, raw) is not None
    assert one(bench, raw, position=raw.position + 1) is None
    assert one(bench, raw, position=0) is None
    assert one(bench, raw, position=-1) is None
    assert one(bench, raw, position=BASE + len(bench.log)) is None
    assert one(bench, raw, position=BASE + len(bench.log) - 2) is None
    assert one(bench, raw, size=raw.size + 1) is None
    assert one(bench, raw, offset=raw.queue_offset + 1) is None
    assert one(bench, raw, topic="order") is None
    assert one(bench, raw, queue_id=1) is None


def test_a_damaged_record_is_not_given(core: Core) -> None:
    bench = mixed(core)
    raw = bench.raws()[1]
    good = one(bench, raw)
    for at in range(raw.position - BASE, raw.position - BASE + raw.size):
        for bit in (1, 128):
            bench.log[at] ^= bit
            assert one(bench, raw) is None, at
            bench.log[at] ^= bit
    assert one(bench, raw) == good


def test_an_expired_record_is_not_given(core: Core) -> None:
    bench = Workbench(core, base=BASE)
    bench.append(Record(b"v", expires_at_ms=NOW))
    raw = bench.raws()[0]
    assert one(bench, raw, now_ms=NOW - 1) is not None
    assert one(bench, raw, now_ms=NOW) is None


@pytest.mark.parametrize(("size", "given"), [(3000, True), (5000, False)])
def test_a_long_record_is_left_to_the_long_way(core: Core, size: int, given: bool) -> None:
    bench = Workbench(core, base=BASE)
    bench.append(Record(b"v" * size))
    assert (one(bench, bench.raws()[0]) is not None) == given


def test_the_newest_position_is_the_first_that_a_look_up_finds(core: Core) -> None:
    bench = mixed(core)
    slots, entries = bench.sizes[0]
    for key in (*KEYS, b"nobody's"):
        hits = [
            position
            for text in index_strings(key)
            for position in core.index_lookup(
                bench.indexes[0], slots, entries, f"orders#{text}", 0, (1 << 63) - 1, 99
            )
        ]
        plain = key not in (b"\x00\xff", b"two words", b"")
        expected = max(hits, default=-1) if plain else -1
        assert core.index_newest(bench.indexes[0], slots, entries, "orders", key) == expected
