"""The classes by which an engine declares what else it can do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.engine.contract import (
    BatchEngine,
    ColumnEngine,
    EngineExtension,
    ShardPart,
    SharedSyncEngine,
    TryWriteEngine,
    Written,
)
from penstock.errors import StoreError
from penstock.record import Offset, Record, ShardId


class Complete(TryWriteEngine, SharedSyncEngine):
    def try_write(self, shard: ShardId, record: Record) -> Written | None:
        return Written(Offset(0), 1)

    def batch_write_parts(self, parts: Sequence[ShardPart]) -> list[Written | StoreError]:
        return []


class WithoutSharedSync(TryWriteEngine, SharedSyncEngine):
    def try_write(self, shard: ShardId, record: Record) -> Written | None:
        return None


def test_an_engine_with_all_methods_can_be_constructed() -> None:
    engine = Complete()
    assert isinstance(engine, TryWriteEngine)
    assert isinstance(engine, SharedSyncEngine)
    assert not isinstance(engine, BatchEngine)


def test_an_engine_that_lacks_a_method_fails_at_construction_with_its_name() -> None:
    with pytest.raises(TypeError, match=r"WithoutSharedSync.*batch_write_parts") as raised:
        WithoutSharedSync()  # type: ignore[abstract]  # on purpose
    assert "try_write" not in str(raised.value)


def test_all_missing_methods_are_named() -> None:
    class Empty(BatchEngine):
        pass

    with pytest.raises(TypeError) as raised:
        Empty()  # type: ignore[abstract]  # on purpose
    for method in ("bounds", "epoch_end", "is_hot", "read_batches", "sync", "write_batch"):
        assert f"{method}" in str(raised.value)


def test_a_later_class_may_add_the_missing_method() -> None:
    class Added(WithoutSharedSync):
        def batch_write_parts(self, parts: Sequence[ShardPart]) -> list[Written | StoreError]:
            return []

    assert Added().batch_write_parts(()) == []


@pytest.mark.parametrize("extension", [BatchEngine, ColumnEngine, SharedSyncEngine, TryWriteEngine])
def test_asking_for_an_extension_is_as_fast_as_for_any_class(
    extension: type[EngineExtension],
) -> None:
    assert type(extension) is type  # isinstance of ABCMeta is slower
    with pytest.raises(TypeError, match="abstract"):
        extension()
