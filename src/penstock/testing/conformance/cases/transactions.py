"""Transactions: what an abort removes, with other writers, and after restarts."""

from __future__ import annotations

import pytest

from penstock.engine.contract import StorageEngine, TransactionalEngine
from penstock.record import Offset, Producer, Record, ShardId
from penstock.testing.conformance.harness import (
    FIRST,
    SHARD,
    Conformance,
    EngineHarness,
    bounds,
    offsets,
    put,
    read_all,
    values,
)

OURS, THEIRS = 7, 70
"""Producers; the one's id is how the other's begins."""


def transact(
    engine: StorageEngine, sequence: int, *contents: bytes, producer_id: int = OURS
) -> None:
    records = [Record(value=content, key=b"k-" + content, tags=("t",)) for content in contents]
    producer = Producer(producer_id, 0, sequence, is_transactional=True)
    engine.batch_write(SHARD, records, producer=producer)


class Transactions(Conformance):
    @pytest.fixture
    def transactional(self, engine: StorageEngine) -> TransactionalEngine:
        if not isinstance(engine, TransactionalEngine):
            pytest.skip("this engine has no transactions")
        return engine

    def test_an_abort_deletes_what_its_producer_wrote_in_it_and_nothing_else(
        self, engine: StorageEngine, transactional: TransactionalEngine
    ) -> None:
        transact(engine, 0, b"earlier")
        start = Offset(bounds(engine)[1])
        put(engine, b"plain", b"PSTK_TXN\x017\x02")
        transact(engine, 1, b"a", b"b", b"c")
        transact(engine, 0, b"theirs", producer_id=THEIRS)
        transact(engine, 4, b"d")
        put(engine, b"last")
        assert transactional.end_transaction(SHARD, OURS, start, is_commit=False) == 4
        left = [b"earlier", b"plain", b"PSTK_TXN\x017\x02", b"theirs", b"last"]
        assert values(read_all(engine)) == left
        assert offsets(engine.read_by_tag(SHARD, "t")) == [0, 6]
        assert engine.read_by_key(SHARD, b"k-b") is None
        assert bounds(engine) == (0, 9)
        assert transactional.end_transaction(SHARD, OURS, start, is_commit=False) == 0
        assert transactional.end_transaction(SHARD, THEIRS, start, is_commit=True) == 0
        assert values(read_all(engine)) == left

    def test_what_was_kept_stays_when_the_next_transaction_is_aborted(
        self, engine: StorageEngine, transactional: TransactionalEngine
    ) -> None:
        transact(engine, 0, b"kept")
        transactional.end_transaction(SHARD, OURS, FIRST, is_commit=True)
        transact(engine, 1, b"gone")
        assert transactional.end_transaction(SHARD, OURS, Offset(1), is_commit=False) == 1
        assert values(read_all(engine)) == [b"kept"]

    def test_an_abort_finds_what_is_left_of_a_write_that_lost_its_beginning(
        self, engine: StorageEngine, transactional: TransactionalEngine
    ) -> None:
        transact(engine, 0, b"a", b"b", b"c")
        transact(engine, 3, b"d", b"e")
        engine.delete_records_before(SHARD, Offset(1))
        engine.delete_by_offset(SHARD, Offset(3))
        assert transactional.end_transaction(SHARD, OURS, FIRST, is_commit=False) == 3
        assert read_all(engine) == []
        assert bounds(engine) == (1, 5)

    def test_a_large_transaction_is_aborted_whole(
        self, engine: StorageEngine, transactional: TransactionalEngine
    ) -> None:
        for number in range(6):
            transact(engine, 300 * number, *[b"%0100d" % number] * 300)
            put(engine, b"plain")
        assert transactional.end_transaction(SHARD, OURS, FIRST, is_commit=False) == 1_800
        assert values(read_all(engine)) == [b"plain"] * 6

    @pytest.mark.parametrize("restart", ["reopen", "crash"])
    def test_an_abort_finds_what_an_earlier_process_wrote_and_is_not_undone_by_the_next(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        if not isinstance(engine, TransactionalEngine):
            pytest.skip("this engine has no transactions")
        if not harness.capabilities.durable:
            pytest.skip("this engine does not claim to be durable")
        again = harness.crash if restart == "crash" else harness.reopen
        put(engine, b"plain")
        transact(engine, 0, b"a", b"b")
        transact(engine, 0, b"theirs", producer_id=THEIRS)
        engine = again()
        transact(engine, 2, b"c")
        assert isinstance(engine, TransactionalEngine)
        assert engine.end_transaction(SHARD, OURS, Offset(1), is_commit=False) == 3
        engine = again()
        assert values(read_all(engine)) == [b"plain", b"theirs"]
        assert bounds(engine) == (0, 5)

    def test_a_deleted_shard_takes_its_transactions_with_it(
        self, harness: EngineHarness, engine: StorageEngine, transactional: TransactionalEngine
    ) -> None:
        transact(engine, 0, b"old")
        engine.delete_shard(SHARD)
        engine.create_shard(ShardId(*SHARD), harness.config())
        put(engine, b"new")
        assert transactional.end_transaction(SHARD, OURS, FIRST, is_commit=False) == 0
        assert values(read_all(engine)) == [b"new"]
