"""An alteration of a topic reaches all of its replicas at once, on every engine."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import wait_until
from tests.remote.monitoring.test_metrics_of_a_cluster import start_three

import penstock
from penstock.engine.contract import ShardConfig
from penstock.engine.per_shard_engine import ShardedEngine
from penstock.engine.segment import SegmentEngine
from penstock.errors import AlreadyExistsError, BadRequestError, RetryableError, UnknownTopicError
from penstock.record import ShardId
from penstock.remote.server.node_server import Server

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

ENGINES = ("segment", "rocksdb", "memory")
HOUR_MS = 3_600_000


def config_at(server: Server, topic: str) -> ShardConfig:
    """Return how the engine of a node keeps partition 0 of a topic."""
    known = server.node.broker_cache.get_topic(topic)
    shard = ShardId(known.topic_id, 0)
    engine = server.node.engines.get(known.config.storage_type)
    if isinstance(engine, SegmentEngine):
        return engine._configs[shard]
    assert isinstance(engine, ShardedEngine)
    config = engine._shards[shard].config
    assert isinstance(config, ShardConfig)
    return config


def is_created(store: penstock.Store, engine: str) -> bool:
    try:
        store.create_topic(engine, storage=engine, replication=3)
    except AlreadyExistsError:
        return True
    except (BadRequestError, RetryableError):
        return False
    return True


def is_kept(server: Server, topic: str, size: int) -> bool:
    config = config_at(server, topic)
    return (config.retention_ms, config.record_size_max) == (HOUR_MS, size)


def has_shard(server: Server, topic: str) -> bool:
    try:
        config_at(server, topic)
    except (KeyError, UnknownTopicError):
        return False
    return True


def leader_of(server: Server, topic: str) -> int | None:
    known = server.node.broker_cache.get_topic(topic)
    shard = server.node.storage_cache.shards[ShardId(known.topic_id, 0).name].meta
    return None if shard is None else shard.leader


@pytest.mark.timeout(300)
def test_an_alteration_reaches_the_followers_at_once(tmp_path: Path) -> None:
    servers = start_three(tmp_path)
    assert set(servers) == {1, 2, 3}
    try:
        with penstock.connect([f"127.0.0.1:{server.port}" for server in servers.values()]) as store:
            for engine in ENGINES:
                wait_until(partial(is_created, store, engine), "three nodes can have replicas")
                for server in servers.values():
                    wait_until(partial(has_shard, server, engine), "all nodes have a copy")
        for engine, server in product(ENGINES, servers.values()):
            # Whether the node that is asked leads the shard or follows makes no difference.
            size = 20_000 + server.port
            with penstock.connect(f"127.0.0.1:{server.port}", deadline_s=60) as store:
                store.topic(engine).alter(retention_ms=HOUR_MS, record_size_max=size)
            leader = leader_of(server, engine)
            assert leader is not None
            assert is_kept(servers[leader], engine, size), "the leader has it when alter returns"
            for other in servers.values():
                wait_until(partial(is_kept, other, engine, size), "a follower has it")
    finally:
        for server in servers.values():
            server.close()
