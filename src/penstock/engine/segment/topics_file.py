"""`config/topics.json`: RocketMQ's list of topics, with the kind of queue each one has.

RocketMQ needs it to read batch queues; for us it is a by-product. It is written when a shard is
created or deleted, and whatever else the file says about other topics is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.disk import Disk
from penstock.engine.segment.rocketmq_json import (
    DataVersion,
    TopicConfig,
    Topics,
    read_topics,
    write_topics,
)
from penstock.engine.segment.sidecar import read_whole
from penstock.errors import CorruptionError
from penstock.log import get_logger
from penstock.record import QueueKind, ShardId

_log: Final = get_logger(__name__)


class TopicsFile:
    """The file, written by `save` when it changed: many shards are created between two calls."""

    def __init__(self, disk: Disk, path: str, clock: Clock) -> None:
        self._disk: Final = disk
        self._path: Final = path
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._stale = False
        self._configs: dict[str, TopicConfig] = {}
        self._counter = 0
        data = read_whole(disk, path)
        if data is not None:
            self._read(data)

    def _read(self, data: bytes) -> None:
        try:
            topics = read_topics(data, self._path)
        except CorruptionError as error:
            # Nothing of ours depends on it: it is written anew from the shards that there are.
            _log.warning("topics_file_damaged", path=self._path, error=str(error))
            return
        self._configs = dict(topics.configs)
        self._counter = topics.version.counter

    def note(self, shard: ShardId, kind: QueueKind) -> None:
        """List the topic of a shard with enough queues."""
        with self._lock:
            known = self._configs.get(shard.topic)
            queues = max(shard.partition + 1, 1 if known is None else known.queues)
            if known is not None and known.queues >= queues and known.kind is kind:
                return
            attributes = () if known is None else known.attributes
            self._configs[shard.topic] = TopicConfig.create(shard.topic, queues, kind, attributes)
            self._stale = True

    def forget(self, topic: str, exists: Callable[[ShardId], bool]) -> None:
        """Drop a topic when none of its shards exists."""
        with self._lock:
            known = self._configs.get(topic)
            if known is None or any(exists(ShardId(topic, n)) for n in range(known.queues)):
                return
            del self._configs[topic]
            self._stale = True

    def save(self) -> None:
        with self._lock:
            if self._stale:
                self._counter += 1
                version = DataVersion(counter=self._counter, timestamp_ms=self._clock.now_ms())
                self._disk.replace(self._path, write_topics(Topics(self._configs, version)))
                self._stale = False
