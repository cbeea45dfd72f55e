"""Reading by tag: exactly that tag, from an offset on, with the limits of any read."""

from __future__ import annotations

from penstock.engine.contract import StorageEngine
from penstock.record import Offset, Record
from penstock.testing.conformance.cases.writes import ODD_TEXTS
from penstock.testing.conformance.harness import (
    SHARD,
    Conformance,
    offsets,
    put,
    values,
)


def tagged(*tags: str, value: bytes = b"v") -> Record:
    return Record(value=value, tags=tags)


class Tags(Conformance):
    def test_only_records_that_carry_exactly_the_tag_are_returned(
        self, engine: StorageEngine
    ) -> None:
        put(engine, tagged("a"), tagged("a/b"), tagged("b"), tagged("A"), tagged("ab"), tagged())
        assert offsets(engine.read_by_tag(SHARD, "a")) == [0]
        assert offsets(engine.read_by_tag(SHARD, "a/b")) == [1]
        for part in ("", "/", "a/", "/b", "a b", "*"):
            assert engine.read_by_tag(SHARD, part) == []

    def test_a_record_is_found_by_each_of_its_tags_once(self, engine: StorageEngine) -> None:
        put(engine, tagged("a", "b"), tagged("b", "a/b"), tagged("a", "a"), tagged("a/b"))
        assert offsets(engine.read_by_tag(SHARD, "a")) == [0, 2]
        assert offsets(engine.read_by_tag(SHARD, "b")) == [0, 1]
        assert offsets(engine.read_by_tag(SHARD, "a/b")) == [1, 3]

    def test_any_text_is_a_tag(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, [tagged(text) for text in ODD_TEXTS])
        engine.batch_write(SHARD, [tagged(text, "other") for text in ODD_TEXTS])
        engine.batch_write(SHARD, [Record(value=b"untagged")])
        count = len(ODD_TEXTS)
        for number, text in enumerate(ODD_TEXTS):
            assert offsets(engine.read_by_tag(SHARD, text)) == [number, number + count], text

    def test_tags_with_equal_hashes_are_told_apart(self, engine: StorageEngine) -> None:
        put(engine, tagged("Aa"), tagged("BB"), tagged("AaAa"), tagged("BBBB"), tagged("AaBB"))
        for number, tag in enumerate(("Aa", "BB", "AaAa", "BBBB", "AaBB")):
            assert offsets(engine.read_by_tag(SHARD, tag)) == [number]

    def test_a_tag_is_not_a_key(self, engine: StorageEngine) -> None:
        put(engine, tagged("red"), Record(value=b"v", key=b"red"), Record(value=b"v", key=b"T#red"))
        assert offsets(engine.read_by_tag(SHARD, "red")) == [0]
        assert offsets(engine.query_by_key(SHARD, b"red")) == [1]
        assert offsets(engine.query_by_key(SHARD, b"T#red")) == [2]

    def test_reading_starts_at_the_offset_inclusive(self, engine: StorageEngine) -> None:
        put(engine, *(tagged("even" if n % 2 == 0 else "odd") for n in range(10)))
        for start in range(12):
            records = engine.read_by_tag(SHARD, "odd", start_offset=Offset(start))
            assert offsets(records) == [n for n in (1, 3, 5, 7, 9) if n >= start]

    def test_pages_of_a_tag_have_the_same_limits(self, engine: StorageEngine) -> None:
        for _ in range(6):
            put(engine, tagged("t", value=bytes(10_000)), tagged("u", value=bytes(50_000)))
        assert offsets(engine.read_by_tag(SHARD, "t", max_records=3)) == [0, 2, 4]
        assert offsets(engine.read_by_tag(SHARD, "t", max_size=25_000)) == [0, 2]
        assert offsets(engine.read_by_tag(SHARD, "t", max_size=1)) == [0]
        following = engine.read_by_tag(SHARD, "t", start_offset=Offset(3), max_size=1)
        assert offsets(following) == [4]

    def test_a_rare_tag_is_found_behind_many_other_records(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, [tagged("common", value=bytes(2_000))] * 5_000)
        put(engine, tagged("rare", value=b"found"))
        assert values(engine.read_by_tag(SHARD, "rare", max_records=1)) == [b"found"]

    def test_tags_below_the_earliest_offset_are_gone(self, engine: StorageEngine) -> None:
        put(engine, *[tagged("t")] * 6)
        engine.delete_records_before(SHARD, Offset(4))
        engine.delete_by_offset(SHARD, Offset(5))
        assert offsets(engine.read_by_tag(SHARD, "t")) == [4]
