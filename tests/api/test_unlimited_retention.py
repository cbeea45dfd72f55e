"""No limit and the node's default are two values of a retention, in every interface."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

import penstock
from penstock.api import EmbeddedBackend, Store
from penstock.engine.contract import FOREVER_MS
from penstock.engine.routing.storage_cache import shard_config
from penstock.meta.state.model import UNLIMITED, TieringPolicy, TopicConfig
from penstock.node.node import Node
from penstock.platform.disk import Usage
from penstock.platform.local_disk import LocalDisk
from penstock.settings import EMBEDDED, Settings
from penstock.testing import ManualClock

FILE = 1 << 20
RECORD = b"v" * 1000
COUNT = 4_000
DAY_S = 86_400.0


def settings_of(topics: Literal["chosen", "long"]) -> Settings:
    return replace(
        EMBEDDED,
        broker=replace(EMBEDDED.broker, commit_log_file_size=FILE, file_reserved_time=72.0),
        tiering=replace(EMBEDDED.tiering, topics=topics),
    )


def fill(store: Store, topic: str) -> None:
    for _ in range(COUNT // 400):
        store.topic(topic).write_many([RECORD] * 400)


def earliest(store: Store, topic: str) -> int:
    return int(store.topic(topic).describe().partitions[0].earliest)


@pytest.mark.parametrize("topics", ["chosen", "long"])
def test_a_topic_without_a_limit_outlives_the_reserved_time(
    directory: Path, topics: Literal["chosen", "long"]
) -> None:
    clock = ManualClock()
    with Node(directory, settings_of(topics), clock=clock, background=False) as node:
        store = Store(EmbeddedBackend(node))
        store.create_topic("default")
        store.create_topic("time", retention_ms=UNLIMITED)
        store.create_topic("size", retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
        store.create_topic("number", retention_ms=UNLIMITED, retention_records=UNLIMITED)
        store.create_topic("altered", retention_ms=1_000)
        store.topic("altered").alter(retention_ms=UNLIMITED)
        names = ("default", "time", "size", "number", "altered")
        for topic in names:
            fill(store, topic)
        clock.advance(10 * DAY_S)
        for topic in names:
            store.topic(topic).write(b"young")
        for _ in range(8):
            node.run_upkeep()
        assert earliest(store, "default") > 0
        assert {topic: earliest(store, topic) for topic in names[1:]} == dict.fromkeys(names[1:], 0)
        assert sum(1 for _ in store.topic("altered")) == COUNT + 1
        store.topic("altered").alter(retention_ms=None)
        assert store.topic("altered").describe().config.retention_ms is None


class FillingDisk(LocalDisk):
    """Nearly full when the test says so."""

    percent = 10

    def usage(self, path: str) -> Usage:
        return Usage(100, self.percent)


def test_a_full_disk_takes_nothing_of_a_topic_without_a_limit(directory: Path) -> None:
    disk = FillingDisk()
    with Node(directory, settings_of("chosen"), disk=disk, background=False) as node:
        store = Store(EmbeddedBackend(node))
        store.create_topic("forever", retention_ms=UNLIMITED)
        fill(store, "forever")
        disk.percent = 87
        node.run_upkeep()
        assert earliest(store, "forever") == 0
        store.topic("forever").alter(retention_ms=None)
        node.run_upkeep()
        assert earliest(store, "forever") > 0


def test_engines_see_a_time_that_no_age_reaches_and_no_other_limit() -> None:
    config = TopicConfig(
        retention_ms=UNLIMITED,
        retention_bytes=UNLIMITED,
        retention_records=UNLIMITED,
        tiering=TieringPolicy(
            local_retention_ms=UNLIMITED,
            local_retention_bytes=UNLIMITED,
            tier_retention_ms=UNLIMITED,
        ),
    )
    shard = shard_config(config)
    assert (shard.retention_ms, shard.retention_bytes, shard.retention_records) == (
        FOREVER_MS,
        None,
        None,
    )
    assert shard.tiering is not None
    assert (shard.tiering.local_retention_ms, shard.tiering.retention_ms) == (
        FOREVER_MS,
        FOREVER_MS,
    )
    assert shard.tiering.local_retention_bytes is None
    assert shard_config(TopicConfig()).retention_ms is None


@pytest.mark.parametrize("kind", ["memory", "rocksdb", "segment"])
def test_no_limit_survives_a_restart_and_none_stays_the_default(directory: Path, kind: str) -> None:
    with penstock.open(directory) as store:
        store.create_topic("forever", storage=kind, retention_ms=-1, retention_records=-1)
        store.create_topic("default", storage=kind)
        store.topic("forever").write(b"old", timestamp=1)
        store.run_upkeep()
        assert sum(1 for _ in store.topic("forever")) == 1
    with penstock.open(directory) as store:
        forever, default = (store.topic(name).describe().config for name in ("forever", "default"))
        assert (forever.retention_ms, forever.retention_bytes, forever.retention_records) == (
            -1,
            None,
            -1,
        )
        assert (default.retention_ms, default.retention_records) == (None, None)
