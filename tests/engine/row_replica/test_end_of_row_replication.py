"""Row shards that have replicas, then one copy, then replicas again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.engine.row_replica.test_row_logs import SHARD, Node, RowEngine

from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.record import Offset, Producer
from penstock.testing.manual_clock import ManualClock

OpenEngine = Callable[[], RowEngine]


@pytest.fixture(params=["memory", "rocksdb"])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenEngine]:
    """Opens an engine without shards with every call."""
    clock, count = ManualClock(), iter(range(9))
    with ExitStack() as stack:

        def open_one() -> RowEngine:
            if request.param == "memory":
                return stack.enter_context(closing(MemoryStorageEngine(clock)))
            path = str(tmp_path / str(next(count)))
            return stack.enter_context(closing(RocksDBStorageEngine.open(path, clock)))

        yield open_one


def test_a_copy_from_before_a_shard_had_one_replica_is_compared_with_it(
    open_engine: OpenEngine,
) -> None:
    """The node of the copy was down meanwhile; the copy ends with records that others replaced."""
    old = Node(open_engine()).lead(0)
    leader = Node(open_engine())
    old.put(b"a")
    old.commit()
    leader.copy_from(old)
    old.put(b"lost 1", b"lost 2")
    leader.lead(1).commits_at_once()
    leader.put(b"b", b"c")
    leader.commit()
    assert leader.engine.delete_by_offset(SHARD, Offset(0))
    leader.engine.end_replication(SHARD)
    leader.put(b"d", b"e", producer=Producer(5, 0, 0))
    again = Node(leader.engine).lead(2)
    again.put(b"f")
    assert again.records.epoch_end(0) == (0, 1)
    assert again.records.epoch_end(1) == (1, 5)
    assert again.records.epoch_end(2) == (2, 6)
    assert (again.operations.start, again.operations.end) == (1, 1)
    fresh = Node(open_engine())
    fresh.operations.restart_at(1)
    fresh.copy_from(again)
    assert fresh.replica.histories.records.to_list() == [(0, 0), (1, 1), (2, 5)]


def test_an_epoch_without_a_record_is_not_in_the_history_of_the_next_replicas(
    open_engine: OpenEngine,
) -> None:
    node = Node(open_engine()).lead(1)
    node.put(b"a")
    node.commit()
    for log in node.logs:
        log.begin_epoch(7)
    node.engine.end_replication(SHARD)
    again = Node(node.engine)
    assert (again.records.last_epoch, again.records.epoch_end(9)) == (1, (1, 1))
