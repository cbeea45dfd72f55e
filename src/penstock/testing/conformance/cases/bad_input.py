"""Bad input: a typed error, nothing changed, and the engine works on."""

from __future__ import annotations

from typing import Final

import pytest

from penstock.engine.contract import AdapterOffsetStrategy, Isolation, ShardConfig, StorageEngine
from penstock.errors import BadRequestError
from penstock.record import Offset, Producer, Record, ShardId
from penstock.testing.conformance.harness import (
    FAR,
    SHARD,
    Conformance,
    bounds,
    put,
    read_all,
    values,
)

NOT_INTS: Final = ("1", 1.5, None, b"1", [1])
NOT_OFFSETS: Final = (*NOT_INTS, -1, -FAR)
NOT_LIMITS: Final = (*NOT_INTS, 0, -1, -FAR)
NOT_KEYS: Final = ("k", None, 1, bytearray(b"k"), memoryview(b"k"))
NOT_TAGS: Final = (b"t", None, 1, "\ud800", "\udcc3\udca9", ("t",))
NOT_SHARDS: Final = (
    "orders_0",
    None,
    0,
    ("orders", 0, 0),
    ShardId("", 0),
    ShardId("orders", -1),
)

VALID: Final[dict[str, dict[str, object]]] = {
    "create_shard": {"shard": ShardId("new", 0), "config": ShardConfig()},
    "alter_shard": {"shard": SHARD, "config": ShardConfig()},
    "delete_shard": {"shard": SHARD},
    "list_shard": {"topic": "orders"},
    "seal_shard": {"shard": SHARD},
    "write": {"shard": SHARD, "record": Record(value=b"v"), "producer": None},
    "batch_write": {"shard": SHARD, "records": [Record(value=b"v")], "producer": None},
    "read_by_offset": {
        "shard": SHARD,
        "offset": 0,
        "max_records": 1,
        "max_size": 1,
        "isolation": Isolation.COMMITTED,
    },
    "read_by_tag": {
        "shard": SHARD,
        "tag": "t",
        "start_offset": 0,
        "max_records": 1,
        "max_size": 1,
    },
    "read_by_key": {"shard": SHARD, "key": b"k"},
    "query_by_key": {"shard": SHARD, "key": b"k", "begin_ms": 0, "end_ms": 0, "limit": 1},
    "delete_by_key": {"shard": SHARD, "key": b"k"},
    "delete_by_offset": {"shard": SHARD, "offset": 0},
    "delete_records_before": {"shard": SHARD, "offset": 0},
    "get_offset_by_timestamp": {
        "shard": SHARD,
        "timestamp_ms": 0,
        "strategy": AdapterOffsetStrategy.LATEST,
    },
    "compact": {"shard": SHARD},
    "apply_retention": {"shard": SHARD},
    "shard_info": {"shard": SHARD},
}

WRONG: Final[dict[str, tuple[object, ...]]] = {
    "shard": NOT_SHARDS,
    "config": (None, {}, "compact", ShardConfig(record_size_max=0)),
    "topic": (b"t", 1),
    "record": (None, b"v", {"value": b"v"}, [Record(value=b"v")]),
    "records": (None, [], (), [None], [b"v"], b"v", "v", Record(value=b"v"), {1: 2}, iter(())),
    "producer": (1, (1, 0), "p", Producer(1, -1, 0), Producer(1, 0, -1)),
    "offset": NOT_OFFSETS,
    "start_offset": NOT_OFFSETS,
    "max_records": NOT_LIMITS,
    "max_size": NOT_LIMITS,
    "limit": NOT_LIMITS,
    "isolation": ("committed", None, 1),
    "tag": NOT_TAGS,
    "key": NOT_KEYS,
    "begin_ms": NOT_INTS,
    "end_ms": ("1", 1.5, b"1"),
    "timestamp_ms": NOT_INTS,
    "strategy": ("Latest", None, 1),
}

NOT_RECORDS: Final[tuple[dict[str, object], ...]] = (
    {"value": "text"},
    {"value": 1},
    {"value": bytearray(b"v")},
    {"key": "text"},
    {"key": 1},
    {"tags": "t"},
    {"tags": ["t"]},
    {"tags": None},
    {"tags": (b"t",)},
    {"tags": ("t", None)},
    {"tags": ("\ud800",)},
    {"tags": ("\udcc3\udca9",)},
    {"headers": [("h", b"v")]},
    {"headers": {"h": b"v"}},
    {"headers": ("h", b"v")},
    {"headers": (("h",),)},
    {"headers": (("h", b"v", b"w"),)},
    {"headers": ((b"h", b"v"),)},
    {"headers": (("h", "v"),)},
    {"headers": (("\ud800", b"v"),)},
    {"timestamp_ms": "1"},
    {"timestamp_ms": 1.5},
    {"timestamp_ms": 1 << 63},
    {"expires_at_ms": "1"},
    {"expires_at_ms": 1 << 63},
)

OPERATIONS: Final = [(name, argument) for name in VALID for argument in VALID[name]]


def call(engine: StorageEngine, operation: str, arguments: dict[str, object]) -> object:
    """Call by name: what is tried here is what a type checker would not let pass."""
    result: object = getattr(engine, operation)(**arguments)
    return result


class BadInput(Conformance):
    @pytest.mark.parametrize(("operation", "argument"), OPERATIONS)
    def test_a_wrong_argument_is_refused_and_changes_nothing(
        self, engine: StorageEngine, operation: str, argument: str
    ) -> None:
        put(engine, Record(value=b"v", key=b"k", tags=("t",)))
        before = engine.shard_info(SHARD)
        for wrong in WRONG[argument]:
            with pytest.raises(BadRequestError):
                call(engine, operation, {**VALID[operation], argument: wrong})
        assert engine.shard_info(SHARD) == before
        assert engine.list_shard() == [SHARD]
        assert put(engine, b"next") == 1
        assert values(read_all(engine)) == [b"v", b"next"]

    @pytest.mark.parametrize("fields", NOT_RECORDS)
    def test_a_record_with_a_wrong_field_is_refused(
        self, engine: StorageEngine, fields: dict[str, object]
    ) -> None:
        build: type = Record
        bad = build(**{"value": b"v", **fields})
        put(engine, b"before")
        with pytest.raises(BadRequestError):
            call(engine, "write", {"shard": SHARD, "record": bad})
        batch = [Record(value=b"good"), bad]
        with pytest.raises(BadRequestError):
            call(engine, "batch_write", {"shard": SHARD, "records": batch})
        assert bounds(engine) == (0, 1)
        assert put(engine, b"after") == 1

    def test_huge_limits_are_no_error(self, engine: StorageEngine) -> None:
        put(engine, Record(value=b"v", key=b"k", tags=("t",)))
        huge = {"max_records": FAR, "max_size": FAR}
        for operation, arguments in (
            ("read_by_offset", {"offset": 0, **huge}),
            ("read_by_tag", {"tag": "t", **huge}),
            ("query_by_key", {"key": b"k", "limit": FAR, "end_ms": FAR}),
        ):
            records = call(engine, operation, {"shard": SHARD, **arguments})
            assert isinstance(records, list)
            assert len(records) == 1

    def test_huge_offsets_are_past_the_end(self, engine: StorageEngine) -> None:
        put(engine, b"v")
        for offset in ((1 << 63) - 1, 1 << 63, 1 << 64, FAR):
            assert engine.read_by_offset(SHARD, Offset(offset)) == []
            assert engine.read_by_tag(SHARD, "t", start_offset=Offset(offset)) == []
            assert engine.delete_by_offset(SHARD, Offset(offset)) is False
            assert engine.delete_records_before(SHARD, Offset(offset)) == 1
