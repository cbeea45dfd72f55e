"""`config/topics.json`: RocketMQ's list of topics, with the kind of queue each one has.

RocketMQ needs it to read batch queues; for us it is a by-product. It is written when a shard is
created or deleted, and whatever else the file says about other topics is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from penstock.disk import Disk
from penstock.engine.segment.rocketmq_json import TopicConfig, read_topics, write_topics
from penstock.engine.segment.sidecar import read_whole
from penstock.record import QueueKind, ShardId


class TopicsFile:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk: Final = disk
        self._path: Final = path
        self._lock: Final = threading.Lock()
        self._topics: dict[str, TopicConfig] | None = None
