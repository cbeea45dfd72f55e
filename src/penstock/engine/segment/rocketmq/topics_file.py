"""`config/topics.json`: RocketMQ's list of topics, with the kind of queue each one has.

RocketMQ needs it to read batch queues; for us it is a by-product. It is written when shards were
created or deleted, and whatever else the file says about topics is kept.

Ten thousand topics must cost little: the file is not read before it has to be written, and of what
it said only that is kept in memory which the shards do not tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from penstock.engine.segment.recovery.checksummed_file import read_whole
from penstock.engine.segment.rocketmq.config_files import (
    DataVersion,
    TopicConfig,
    Topics,
    read_topics,
    write_topics,
)
from penstock.errors import CorruptionError
from penstock.platform.clock import Clock
from penstock.platform.disk import Disk
from penstock.platform.log import get_logger
from penstock.record import QueueKind, ShardId

_log: Final = get_logger(__name__)


class TopicsFile:
    """The file, written by `save` when it is out of date: many shards come between two calls."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        clock: Clock,
        shards: Callable[[], Iterable[tuple[ShardId, QueueKind]]],
    ) -> None:
        """`shards` gives all that there are; the file lists them until a change is noted."""
        self._disk: Final = disk
        self._path: Final = path
        self._clock: Final = clock
        self._shards: Final = shards
        self._lock: Final = threading.Lock()
        self._deleting: Final = threading.Lock()
        """Guards the set of deleted topics; after the other one."""
        self._stale = not disk.exists(path)
        self._deleted: set[str] = set()
        self._kept: dict[str, TopicConfig] | None = None
        self._counter = 0

    def mark_stale(self) -> None:
        self._stale = True

    def mark_deleted(self, topic: str) -> None:
        """The topic is dropped from the list when none of its shards remains. Waits for no file
        that is being written."""
        with self._deleting:
            self._deleted.add(topic)
        self._stale = True

    def save(self) -> None:
        with self._lock:
            if not self._stale:
                return
            # What changes from here on makes it stale again.
            self._stale = False
            try:
                self._write()
            except BaseException:
                self._stale = True
                raise

    def _write(self) -> None:
        with self._deleting:
            deleted = set(self._deleted)
        ours = self._own_topics()
        kept = self._read() if self._kept is None else self._kept
        for topic in deleted - ours.keys():
            kept.pop(topic, None)
        configs = dict(kept)
        for topic, own in ours.items():
            known = kept.get(topic)
            configs[topic] = own if known is None else _merge(known, own)
        self._counter += 1
        version = DataVersion(counter=self._counter, timestamp_ms=self._clock.now_ms())
        self._disk.replace(self._path, write_topics(Topics(configs, version)))
        with self._deleting:
            self._deleted -= deleted
        self._kept = {topic: configs[topic] for topic in kept if configs[topic] != ours.get(topic)}

    def _own_topics(self) -> dict[str, TopicConfig]:
        queues: dict[str, int] = {}
        kinds: dict[str, QueueKind] = {}
        for shard, kind in self._shards():
            queues[shard.topic] = max(shard.partition + 1, queues.get(shard.topic, 1))
            kinds[shard.topic] = kind
        return {topic: TopicConfig.create(topic, queues[topic], kinds[topic]) for topic in queues}

    def _read(self) -> dict[str, TopicConfig]:
        data = read_whole(self._disk, self._path)
        if data is None:
            return {}
        try:
            topics = read_topics(data, self._path)
        except CorruptionError as error:
            # Nothing of ours depends on it: it is written anew from the shards that there are.
            _log.warning("topics_file_damaged", path=self._path, error=str(error))
            return {}
        self._counter = topics.version.counter
        return dict(topics.configs)


def _merge(known: TopicConfig, own: TopicConfig) -> TopicConfig:
    """Return what the file said, if that is enough for our shards."""
    if known.queues >= own.queues and known.kind is own.kind:
        return known
    queues = max(known.queues, own.queues)
    return TopicConfig.create(own.name, queues, own.kind, known.attributes)
