"""The open transactions of a node: requests that come late change no later transaction."""

from __future__ import annotations

import pytest

from penstock.brokers.kafka.transactions.index import TransactionIndex, Writer
from penstock.engine.transactions import StableOffsets

pytest.importorskip("penstock._native", reason="the Kafka front end needs the extension")

PRODUCER, SHARD = 7, "t_0"
BAD_STATE = 48


def write_of(index: TransactionIndex) -> int:
    """Return the error code for a write of the producer."""
    return index.check_write(SHARD, PRODUCER, 0, "t")


def test_a_late_stop_of_a_transaction_leaves_the_next_one_open() -> None:
    index = TransactionIndex(StableOffsets())
    index.open(PRODUCER, Writer("t", 0, {SHARD: 0}, 10))
    index.shut(PRODUCER, 10)
    assert write_of(index) == BAD_STATE
    assert index.begin_end(PRODUCER, 0, 10)
    index.release(PRODUCER, 10, ())
    index.end_is_over(PRODUCER)
    index.open(PRODUCER, Writer("t", 0, {SHARD: 4}, 20))
    index.shut(PRODUCER, 10)
    assert write_of(index) == 0
