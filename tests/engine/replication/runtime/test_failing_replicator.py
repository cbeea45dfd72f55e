"""A mistake in the replication of a node costs that node its shards, not the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engine.replication.metadata_in_process import Metadata
from tests.engine.replication.replicated_engine import NODES, RotatingEngine

from penstock.engine.contract import Acks, ShardConfig
from penstock.engine.memory import MemoryStorageEngine
from penstock.errors import ClosedError, NotLeaderError
from penstock.platform.clock import SystemClock
from penstock.record import Record, ShardId

WAIT_S = 60.0
SHARD = ShardId("t", 0)


@pytest.fixture
def metadata() -> Metadata:
    return Metadata(NODES, min_insync=2)


@pytest.fixture
def cluster(metadata: Metadata) -> Iterator[RotatingEngine]:
    cluster = RotatingEngine({node: MemoryStorageEngine(SystemClock()) for node in NODES}, metadata)
    cluster.create_shard(SHARD, ShardConfig())
    cluster.write(SHARD, Record(value=b"before"))
    yield cluster
    cluster.stop()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def fail(_now: float) -> None:
    raise TypeError("a mistake")


def test_a_node_whose_replication_fails_leaves_its_shards_to_others(
    cluster: RotatingEngine, metadata: Metadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leader = metadata.shards[SHARD.name].leader
    assert leader is not None
    failing = cluster.nodes[leader].replicator
    replica = cluster.nodes[leader].replica(SHARD.name)
    assert replica is not None
    monkeypatch.setattr(failing._core, "tick", fail)
    wait_until(lambda: failing.failure is not None, "the failure is known")
    assert isinstance(failing.failure, ClosedError)
    assert "TypeError('a mistake')" in str(failing.failure)
    assert not failing.lease_holds()
    with pytest.raises(NotLeaderError):
        replica.check(Acks.ALL)
    wait_until(
        lambda: leader not in metadata.shards[SHARD.name].in_sync, "the node has left the set"
    )
    monkeypatch.undo()


def test_a_replication_that_has_failed_closes(
    cluster: RotatingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = cluster.nodes[2].replicator
    monkeypatch.setattr(failing._core, "tick", fail)
    wait_until(lambda: failing.failure is not None, "the failure is known")
    failing.close()
    left = failing._inbox.qsize()  # what came just before the failure
    failing.touch(SHARD.name)
    assert failing._inbox.qsize() == left, "what comes after the failure is dropped"
